"""Supervised controllers: each against what it is defined as, computed here once more by other means."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from mdl_torch.evaluation import controllers
from mdl_torch.evaluation.controllers import CONTROLLERS, EARLY_STOPPING_ROWS, NEVER

FEW = settings(max_examples=15)
NAMES = ("lr", "mlp", "xgboost", "tree", "majority_class", "rule")
CORNERS = np.array([[m, r, a] for m in (0.0, 0.3, 0.9) for r in (0.1, 0.8) for a in (0.0, 0.5, 0.9)])


def noisy(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Signals whose labels follow M and R three times in four."""
    rng = np.random.default_rng(seed)
    signals = rng.random((n, 3))
    return signals, (signals[:, 0] + signals[:, 1] > 1) ^ (rng.random(n) < 0.25)


def fitted(name: str, signals, adopt):
    return CONTROLLERS[name]().fit(signals, adopt)


@st.composite
def labelled(draw, smallest: int = 2, largest: int = 24):
    """Few distinct signals, so that rows coincide and their labels contradict each other; both classes occur."""
    n = draw(st.integers(smallest, largest))
    column = st.lists(st.sampled_from([0.0, 0.2, 0.25, 0.5, 0.6999, 0.7, 0.9, 1.0]), min_size=n, max_size=n)
    adopt = [True, False, *draw(st.lists(st.booleans(), min_size=n - 2, max_size=n - 2))]
    return np.array([draw(column) for _ in range(3)]).T, np.array(adopt)


def test_the_names_are_those_of_the_table():
    assert tuple(CONTROLLERS) == NAMES
    assert all(CONTROLLERS[name]().name == name for name in NAMES)


# ----------------------------------------------------------------------------------------------- each by its definition


def penalised_optimum(signals, adopt, C=1.0):
    """The least C·Σ log-loss + ‖w‖²/2 over w and an intercept that is not penalised."""
    sign = np.where(adopt, 1.0, -1.0)

    def loss(theta):
        margin = sign * (signals @ theta[:3] + theta[3])
        slope = -C * sign / (1 + np.exp(margin))
        value = C * np.logaddexp(0, -margin).sum() + theta[:3] @ theta[:3] / 2
        return value, np.append(signals.T @ slope + theta[:3], slope.sum())

    found = minimize(loss, np.zeros(4), jac=True, method="L-BFGS-B", options={"gtol": 1e-9, "ftol": 1e-15})
    return found.x


@FEW
@given(labelled())
def test_logistic_regression_is_the_penalised_optimum(rows):
    signals, adopt = rows
    optimum = penalised_optimum(signals, adopt)
    lr = fitted("lr", signals, adopt)
    assert [*lr.learned["coefficients"].values(), lr.learned["intercept"]] == pytest.approx(optimum, abs=1e-4)
    assert list(lr.learned["coefficients"]) == ["M", "R", "A"]
    assert lr.probability(CORNERS) == pytest.approx(1 / (1 + np.exp(-(CORNERS @ optimum[:3] + optimum[3]))), abs=1e-4)


def test_the_penalty_is_that_of_c_equal_to_one():
    signals, adopt = noisy()
    weights = list(fitted("lr", signals, adopt).learned["coefficients"].values())
    assert weights == pytest.approx(penalised_optimum(signals, adopt)[:3], abs=1e-6)
    for other in (0.5, 2.0):
        assert weights != pytest.approx(penalised_optimum(signals, adopt, C=other)[:3], abs=1e-2)


def test_the_network_is_64_and_32_wide_with_relu():
    mlp = fitted("mlp", *noisy())
    weights, biases = mlp._model.coefs_, mlp._model.intercepts_
    assert [w.shape for w in weights] == [(3, 64), (64, 32), (32, 1)]
    hidden = CORNERS
    for w, b in zip(weights[:-1], biases[:-1], strict=True):
        hidden = np.maximum(hidden @ w + b, 0)
    p = 1 / (1 + np.exp(-(hidden @ weights[-1] + biases[-1])[:, 0]))
    assert mlp.probability(CORNERS) == pytest.approx(p, abs=1e-12)
    assert mlp._model.max_iter == 500


def test_the_network_stops_early_by_a_tenth_of_the_rows():
    mlp = fitted("mlp", *noisy(400))
    assert mlp.learned["early stopping"]
    assert mlp.learned["ended by itself"]
    assert mlp.learned["passes"] < 500
    scores = mlp._model.validation_scores_
    assert np.array(scores) * 40 == pytest.approx(np.round(np.array(scores) * 40))  # accuracies of 40 rows
    assert max(scores[:-11]) + 1e-4 > max(scores)  # the last ten passes and one brought nothing


@pytest.mark.parametrize(
    ("adopts", "rejects", "early"),
    [(2, EARLY_STOPPING_ROWS - 2, True), (2, EARLY_STOPPING_ROWS - 3, False), (1, 40, False), (40, 1, False)],
)
def test_a_network_of_few_rows_has_nothing_to_stop_by(adopts, rejects, early):
    signals = np.random.default_rng(0).random((adopts + rejects, 3))
    mlp = fitted("mlp", signals, [True] * adopts + [False] * rejects)
    assert mlp.learned["early stopping"] is early
    assert 1 <= mlp.learned["passes"] <= 500


def test_a_network_that_does_not_converge_says_so_without_a_warning(monkeypatch):
    monkeypatch.setattr(controllers.MLP, "settings", {**controllers.MLP.settings, "max_iter": 3})
    mlp = fitted("mlp", *noisy())  # warnings are errors in the tests
    assert (mlp.learned["passes"], mlp.learned["ended by itself"]) == (3, False)


def test_xgboost_has_100_trees_of_depth_4():
    xgboost = fitted("xgboost", *noisy(600))
    trees = [json.loads(tree) for tree in xgboost._model.get_booster().get_dump(dump_format="json")]

    def depth(node):
        return 1 + max(map(depth, node["children"])) if "children" in node else 0

    def numbers(node):
        return 1 + sum(map(numbers, node.get("children", ())))

    assert len(trees) == xgboost.learned["trees"] == 100
    assert max(map(depth, trees)) == 4
    assert xgboost.parameters == sum(map(numbers, trees)) + 1  # a threshold or value a node, and where they start from
    assert xgboost.learned["splits"] + xgboost.learned["leaves"] == sum(map(numbers, trees))


def test_boosted_trees_sum_up_to_the_log_odds():
    signals, adopt = noisy()
    xgboost = fitted("xgboost", signals, adopt)
    start = np.log(adopt.mean() / (1 - adopt.mean()))
    trees = [json.loads(tree) for tree in xgboost._model.get_booster().get_dump(dump_format="json")]

    def value(node, row):
        if "leaf" in node:
            return node["leaf"]
        left = np.float32(row[int(node["split"][1:])]) < np.float32(node["split_condition"])
        return value(next(c for c in node["children"] if c["nodeid"] == node["yes" if left else "no"]), row)

    odds = np.array([start + sum(value(tree, row) for tree in trees) for row in CORNERS])
    assert xgboost.probability(CORNERS) == pytest.approx(1 / (1 + np.exp(-odds)), abs=1e-4)


@FEW
@given(labelled())
def test_what_a_tree_gives_is_the_share_of_its_leaf(rows):
    signals, adopt = rows
    tree = fitted("tree", signals, adopt)
    assert tree.learned["depth"] <= 3
    assert tree.parameters == 2 * tree.learned["leaves"] - 1
    leaves = tree._model.apply(signals)
    assert tree.probability(signals) == pytest.approx([adopt[leaves == leaf].mean() for leaf in leaves], abs=1e-12)


def test_a_tree_of_three_splits_separates_what_three_splits_separate():
    signals = np.random.default_rng(1).random((300, 3))
    adopt = (signals[:, 0] > 0.4) & (signals[:, 1] > 0.3) & (signals[:, 2] < 0.6)
    tree = fitted("tree", signals, adopt)
    assert (tree.adopts(signals) == adopt).all()
    assert set(tree.probability(signals)) == {0.0, 1.0}
    assert (tree.learned["depth"], tree.learned["leaves"], tree.parameters) == (3, 4, 7)
    assert any("class: adopt" in line for line in tree.learned["tree"])
    assert {line.split()[-3] for line in tree.learned["tree"] if "<=" in line} == {"M", "R", "A"}


def brute_force_rule(signals, adopt):
    """The smallest of the best t, its agreement, by trying every one row by row."""
    low = sorted({row[0] for row in signals if row[2] < 0.7 - 1e-6})
    tried = [0.0, *((a + b) / 2 for a, b in itertools.pairwise(low)), 2.0]
    rows = list(zip(signals, adopt, strict=True))
    agreement = {t: sum((row[0] >= t and row[2] < 0.7 - 1e-6) == y for row, y in rows) for t in tried}
    best = max(agreement.values())
    return min(t for t in tried if agreement[t] == best), best


@settings(max_examples=200)
@given(labelled())
def test_the_rule_is_that_of_trying_every_threshold(rows):
    signals, adopt = rows
    rule = fitted("rule", signals, adopt)
    taken = rule.adopts(signals)
    t, best = brute_force_rule(signals.tolist(), adopt.tolist())
    low = signals[:, 2] < 0.7 - 1e-6
    if low.any():
        assert rule.learned["t"] == (NEVER if t == 2.0 else t)
    assert (taken == adopt).sum() == best
    assert (taken == ((signals[:, 0] >= rule.learned["t"]) & low)).all()
    p = rule.probability(signals)
    for side in {*taken.tolist()}:
        assert p[taken == side] == pytest.approx(np.full((taken == side).sum(), adopt[taken == side].mean()))
    everywhere = np.array(np.meshgrid(*[np.linspace(0, 1, 11)] * 3)).reshape(3, -1).T
    assert (rule.probability(everywhere)[rule.adopts(everywhere)] >= 0.5).all()


def test_a_tie_of_the_rule_adopts():
    signals = [[0.3, 0.5, 0.2], [0.3, 0.5, 0.2], [0.6, 0.5, 0.2], [0.6, 0.5, 0.2]]
    rule = fitted("rule", signals, [True, False, True, False])
    assert rule.learned["t"] == 0.0
    assert rule.probability(signals).tolist() == [0.5] * 4


def test_the_rule_may_adopt_nothing():
    rule = fitted(
        "rule", [[0.3, 0.5, 0.2], [1.0, 0.5, 0.2], [1.0, 0.5, 0.2], [0.5, 0.5, 0.9]], [False, False, False, True]
    )
    assert rule.learned["t"] == NEVER > 1
    assert rule.adopts(CORNERS).tolist() == [False] * len(CORNERS)
    assert rule.adopts([[1.0, 1.0, 0.0]]).tolist() == [False]


def test_the_rule_keeps_high_risk_out_whatever_the_labels_say():
    """float32 rounds 0.7 down; it is high risk all the same."""
    high = [[0.9, 0.9, 0.7], [0.9, 0.9, float(np.float32(0.7))], [1.0, 1.0, 1.0]]
    for adopt in ([True, True, True], [True, True, False]):
        rule = fitted("rule", high, adopt)
        assert rule.adopts(high).tolist() == [False] * 3
        assert rule.probability(high) == pytest.approx(np.full(3, np.mean(adopt)))
        assert rule.adopts([[0.0, 0.0, 0.699]]).tolist() == [True]  # nothing is known of low risk but what all say
    assert fitted("rule", high, [False, False, True]).adopts([[1.0, 1.0, 0.0]]).tolist() == [False]


@given(labelled())
def test_the_majority_class_gives_the_share_of_adopt(rows):
    signals, adopt = rows
    majority = fitted("majority_class", signals, adopt)
    assert majority.probability(CORNERS).tolist() == [sum(adopt) / len(adopt)] * len(CORNERS)
    assert majority.adopts(CORNERS).tolist() == [2 * sum(adopt) >= len(adopt)] * len(CORNERS)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_contradict_each_other_give_their_share(name):
    """B1 and B2 of a question share their signals; where both are safe, one says adopt, the other reject."""
    one = np.array([[0.6, 0.4, 0.2]])
    controller = fitted(name, np.repeat(one, 8, axis=0), [True] * 6 + [False] * 2)
    assert controller.adopts(one).tolist() == [True]
    exact = name not in ("mlp", "xgboost")  # those are stopped early, or shrink
    assert controller.probability(one) == pytest.approx([0.75], abs=1e-6 if exact else 0.1)


@pytest.mark.parametrize(("name", "expected"), [("lr", 4), ("mlp", 2369), ("majority_class", 1), ("rule", 1)])
def test_fitted_numbers_are_counted(name, expected):
    assert fitted(name, *noisy()).parameters == expected


# ---------------------------------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8)
@given(rows=labelled())
def test_a_probability_is_one_and_decides(name, rows):
    controller = fitted(name, *rows)
    p, taken = controller.probability(CORNERS), controller.adopts(CORNERS)
    assert (p.shape, p.dtype, taken.dtype) == ((len(CORNERS),), np.float64, np.bool_)
    assert ((p >= 0) & (p <= 1)).all()
    assert (taken == (p >= 0.5)).all() if name != "rule" else (p[taken] >= 0.5).all()
    assert controller.parameters >= 1
    json.dumps(controller.learned, allow_nan=False)
    json.dumps(controller.settings, allow_nan=False)


@pytest.mark.parametrize("name", ["lr", "mlp", "xgboost", "tree", "rule"])
def test_what_can_be_learned_is_learned(name):
    signals = np.random.default_rng(3).random((3000, 3))
    adopt = (signals[:, 0] > 0.5) & (signals[:, 2] < 0.7)
    controller = fitted(name, signals[:2000], adopt[:2000])
    agreement = np.mean(controller.adopts(signals[2000:]) == adopt[2000:])
    assert agreement > {"lr": 0.75, "mlp": 0.9}.get(name, 0.95)  # two bounds are no plane
    assert controller.probability([[0.95, 0.5, 0.1]])[0] > 0.7
    assert controller.probability([[0.05, 0.5, 0.1]])[0] < 0.3


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_is_the_same_again_in_any_order(name):
    signals, adopt = noisy()
    first = fitted(name, signals, adopt)
    order = np.random.default_rng(9).permutation(len(adopt))
    again = fitted(name, signals[order], adopt[order])
    assert (first.probability(CORNERS) == again.probability(CORNERS)).all()
    refitted = fitted(name, 1 - signals, adopt).fit(signals.tolist(), adopt.tolist())
    assert (first.probability(CORNERS) == refitted.probability(CORNERS)).all()
    assert first.learned == again.learned == refitted.learned


FINGERPRINT = """
import hashlib, sys
import numpy as np
from mdl_torch.evaluation.controllers import CONTROLLERS
rng = np.random.default_rng(0)
signals = rng.random((4000, 3))
adopt = (signals[:, 0] + signals[:, 1] > 1) ^ (rng.random(4000) < 0.25)
for name, controller in CONTROLLERS.items():
    print(name, hashlib.sha256(controller().fit(signals, adopt).probability(signals[:50]).tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_a_fit_does_not_depend_on_the_number_of_threads():
    def run(threads: int) -> str:
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        done = subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env={**os.environ, **limits},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert run(1) == run(4)
    assert len(run(2).splitlines()) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("label", [True, False])
def test_labels_that_all_say_the_same_make_it_constant(name, label):
    for rows in (1, 30):
        controller = fitted(name, np.random.default_rng(0).random((rows, 3)), [label] * rows)
        assert controller.probability(CORNERS).tolist() == [float(label)] * len(CORNERS)
        low = CORNERS[:, 2] < 0.7 if name == "rule" else np.full(len(CORNERS), True)
        assert controller.adopts(CORNERS).tolist() == (low & label).tolist()
        assert (controller.parameters, controller.learned) == (1, {"constant": float(label)})


@pytest.mark.parametrize("name", NAMES)
def test_a_later_fit_replaces_a_constant_and_is_replaced_by_one(name):
    signals, adopt = noisy()
    controller = fitted(name, signals, [True] * len(adopt)).fit(signals, adopt)
    assert controller.learned == fitted(name, signals, adopt).learned
    assert controller.fit(signals, ~adopt & False).probability(CORNERS).max() == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_known_before_the_fit(name):
    controller = CONTROLLERS[name]()
    for ask in (
        lambda: controller.probability(CORNERS),
        lambda: controller.adopts(CORNERS),
        lambda: controller.parameters,
        lambda: controller.learned,
    ):
        with pytest.raises(RuntimeError, match=f"controller '{name}' is not fitted: call fit"):
            ask()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("signals", "adopt", "error", "message"),
    [
        ([], [], ValueError, "signals must have at least one row, got none"),
        (np.zeros((0, 3)), [], ValueError, "signals must have at least one row, got none"),
        ([[0.5, 0.5]], [True], ValueError, r"signals must be \(n, 3\), the columns M, R and A, got \(1, 2\)"),
        ([0.5, 0.5, 0.5], [True], ValueError, r"signals must be \(n, 3\), .* got \(3,\)"),
        ([[0.5, 0.5, 0.5], [0.5]], [True], ValueError, r"signals must be \(n, 3\) numbers"),
        ([["a", "b", "c"]], [True], ValueError, r"signals must be \(n, 3\) numbers.*'a'"),
        ([[0.5, 0.5, 0.5], [0.5, np.nan, 0.5]], [True, False], ValueError, r"in \[0, 1\], got R = nan in row 1"),
        ([[0.5, 0.5, np.inf]], [True], ValueError, r"signals must be in \[0, 1\], got A = inf in row 0"),
        ([[-0.1, 0.5, 0.5]], [True], ValueError, r"signals must be in \[0, 1\], got M = -0.1 in row 0"),
        ([[0.5, 0.5, 1.5]], [True], ValueError, r"signals must be in \[0, 1\], got A = 1.5 in row 0"),
        ([[0.5, 0.5, 0.5]], [True, False], ValueError, r"adopt must be \(1,\), one for each row .* got \(2,\)"),
        ([[0.5, 0.5, 0.5]], [], ValueError, r"adopt must be \(1,\), one for each row .* got \(0,\)"),
        ([[0.5, 0.5, 0.5]], [1], TypeError, "adopt must be truth values, got int64"),
        ([[0.5, 0.5, 0.5]], [None], TypeError, "adopt must be truth values, got object"),
    ],
)
def test_bad_rows_are_refused(name, signals, adopt, error, message):
    with pytest.raises(error, match=message):
        fitted(name, signals, adopt)


@pytest.mark.parametrize("name", NAMES)
def test_bad_signals_are_refused_and_none_are_fine(name):
    controller = fitted(name, *noisy(50))
    for ask in (controller.probability, controller.adopts):
        assert ask([]).shape == ask(np.zeros((0, 3))).shape == (0,)
        with pytest.raises(ValueError, match="got M = nan in row 1"):
            ask([[0.5, 0.5, 0.5], [np.nan, 0.5, 0.5]])


@pytest.mark.parametrize("name", ["lr", "mlp", "tree", "xgboost"])
def test_a_missing_library_is_named(name, monkeypatch):
    controller = fitted(name, [[0.5, 0.5, 0.5]], [True])
    for module in [one for one in sys.modules if one.split(".")[0] in ("sklearn", "xgboost")]:
        monkeypatch.delitem(sys.modules, module)
    for module in ("sklearn", "xgboost"):
        monkeypatch.setitem(sys.modules, module, None)
    package = "xgboost" if name == "xgboost" else "scikit-learn"
    with pytest.raises(ImportError, match=rf"'{name}' needs {package}: pip install mdl_torch\[evaluate\]"):
        controller.fit(*noisy(50))
    with pytest.raises(RuntimeError, match="is not fitted"):  # nor is it what it was before
        controller.probability(CORNERS)


def test_libraries_are_loaded_when_they_are_needed():
    code = """
import sys
from mdl_torch.evaluation.controllers import CONTROLLERS
for make in CONTROLLERS.values():
    make()
CONTROLLERS["rule"]().fit([[0.2, 0.2, 0.2], [0.4, 0.4, 0.4]], [True, False])
print({"sklearn", "xgboost", "scipy"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_libraries_are_named_with_their_version():
    import sklearn
    import xgboost

    found = {name: CONTROLLERS[name]().library for name in NAMES}
    assert found == {
        "lr": f"scikit-learn {sklearn.__version__}",
        "mlp": f"scikit-learn {sklearn.__version__}",
        "tree": f"scikit-learn {sklearn.__version__}",
        "xgboost": f"xgboost {xgboost.__version__}",
        "majority_class": "",
        "rule": "",
    }
