"""C and α: correlations and tests of known value, and a grid whose best cells are planted."""

from __future__ import annotations

import re

import numpy as np
import pytest
from analysis_cases import samples, study
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mdl_torch import MemoryDecisionLayer
from mdl_torch.analysis.gating import (
    GATE_VALUES,
    PAPER,
    PURE,
    GateGrid,
    _partial,
    contrast,
    gate_grid,
    gating_table,
    grid_of,
    grid_table,
    mean_gap,
    normalized_gate,
    pearson,
    spearman,
    weighted_ranks,
)
from mdl_torch.analysis.samples import FAVOURED
from mdl_torch.calibration import fit_thresholds
from mdl_torch.evaluation.statistics import MeanStd, bootstrapped, cluster_bootstrap, drawn

ROWS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5), st.integers(0, 3)), min_size=2, max_size=12).filter(
    lambda rows: sum(row[2] for row in rows) > 1
)


def test_drawn_keeps_questions_whole() -> None:
    counts = drawn(["b", "a", "b", "c"], resamples=50)
    assert counts.shape == (50, 4)
    assert (counts[:, 0] == counts[:, 2]).all()
    assert (counts[:, [0, 1, 3]].sum(axis=1) == 3).all()
    assert (drawn(["b", "a", "b", "c"], resamples=50) == counts).all()
    assert (drawn(["b", "a", "b", "c"], resamples=50, seed=1) != counts).any()


@given(ROWS)
def test_weighted_correlations_are_those_of_repeated_rows(rows: list[tuple[int, int, int]]) -> None:
    x, y, w = np.array(rows).T
    first, second = np.repeat(x, w), np.repeat(y, w)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        assert np.isnan([pearson(x, y, w), spearman(x, y, w)]).all()
    else:
        assert pearson(x, y, w) == pytest.approx(np.corrcoef(first, second)[0, 1])
        assert spearman(x, y, w) == pytest.approx(stats.spearmanr(first, second).statistic)
    here = w > 0
    expected = dict(zip(first.tolist(), stats.rankdata(first).tolist(), strict=True))
    assert weighted_ranks(x, w)[here].tolist() == [expected[value] for value in x[here].tolist()]


def test_correlations_of_many_weights_at_once() -> None:
    x, y, w = np.arange(5.0), np.array([0, 3, 1, 4, 2.0]), np.array([[1, 1, 1, 1, 1], [2, 0, 1, 1, 1]])
    assert pearson(x, y, w).tolist() == [pearson(x, y, row) for row in w]
    assert spearman(x, y, w).tolist() == [spearman(x, y, row) for row in w]


def test_a_constant_that_rounding_blurs_has_no_correlation() -> None:
    x = np.full(7, 0.1) + np.array([0, 1, 0, 0, 1, 0, 0]) * 1e-17
    assert np.isnan(pearson(x, np.arange(7) * 1000, np.ones(7)))


def test_contrast_by_hand() -> None:
    found = contrast([2, 4, 6], [1, 2, 3])  # variances 4 and 1, of three each
    assert found.first, found.second == (4, 2)
    assert found.t == pytest.approx(2 / np.sqrt(5 / 3))
    assert found.df == pytest.approx(50 / 17)
    assert found.d == pytest.approx(2 / np.sqrt(2.5))
    assert found.g == pytest.approx(found.d / (np.sqrt(2) * np.sqrt(np.pi) / 2))  # Γ(2) / (√2·Γ(3/2))
    assert contrast([1, 2, 3], [2, 4, 6]).t == pytest.approx(-found.t)


def test_contrast_is_scipys_with_unequal_sizes() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(1, 1, 9), rng.normal(0, 3, 30)
    test, found = stats.ttest_ind(one, other, equal_var=False), contrast(one, other)
    assert (found.t, found.df, found.p) == pytest.approx((test.statistic, test.df, test.pvalue))
    pooled = np.sqrt((8 * one.var(ddof=1) + 29 * other.var(ddof=1)) / 37)
    assert found.d == pytest.approx((one.mean() - other.mean()) / pooled)
    assert found.g / found.d == pytest.approx(1 - 3 / (4 * 37 - 1), abs=1e-4)


@pytest.mark.parametrize(("one", "other"), [([], [1, 2]), ([1], [1, 2]), ([1, 1], [2, 2])])
def test_contrast_without_a_test(one: list[float], other: list[float]) -> None:
    assert contrast(one, other)[2:] == (None,) * 5
    assert contrast(one, other).first == (1 if one else None)


def test_contrast_where_one_group_does_not_vary() -> None:
    found = contrast([1, 1], [2, 4])  # t = -2 / √(2/2), d = -2 / √((0 + 2) / 2)
    assert (found.t, found.df, found.d) == pytest.approx((-2, 1, -2))


def test_mean_gap_of_empty_groups_is_left_out() -> None:
    assert np.isnan(mean_gap([1, 2], [True, True], [1, 1]))
    found = bootstrapped(lambda w: mean_gap([1, 2], [True, False], w), ["a", "b"], drawn(["a", "b"]))
    assert (found.value, found.interval) == (-1.0, (-1.0, -1.0))


def test_bootstrapped_is_the_bootstrap_of_a_rate() -> None:
    values, questions = np.array([1, 0, 0, 1, 1, 0.0]), ["a", "a", "b", "c", "d", "e"]
    found = bootstrapped(lambda w: (w * values).sum(-1) / w.sum(-1), questions, drawn(questions, resamples=4000))
    known = cluster_bootstrap(values, np.ones(6), questions)
    assert (found.value, found.questions, found.samples) == (known.value, 5, 6)
    assert found.interval == pytest.approx(known.interval, abs=0.03)
    assert bootstrapped(lambda w: w.sum(-1), ["a"], drawn(["a"])).interval is None


def test_partial_correlation_by_hand() -> None:
    fixed, rest, ones = np.array([1, 1, -1, -1.0]), np.array([1, -1, 1, -1.0]), np.ones(4)
    assert _partial(fixed + rest, rest, fixed, ones) == pytest.approx(1)  # without it, √½
    assert pearson(fixed + rest, rest, ones) == pytest.approx(np.sqrt(0.5))
    assert np.isnan(_partial(fixed, rest, fixed, ones))  # nothing is left of it
    assert np.isnan(_partial(fixed, rest, ones, ones))


ADOPT = [True, True, False, False]
QUESTIONS = ["a", "b", "c", "d"]


def test_grid_where_only_consistency_tells() -> None:
    columns = ([0.8] * 4, [0.9, 0.9, 0.4, 0.4], ADOPT)
    grid = grid_of(columns, columns, QUESTIONS)
    assert grid.accuracy[1:, 0].tolist() == [0.5] * 10
    assert grid.accuracy[0, 1:].tolist() == [1.0] * 10
    assert grid.place(PAPER) == (3, 7)
    assert grid.accuracy[3, 7] == 1
    assert grid.std[3, 7] == 0


def test_grid_where_only_confidence_tells() -> None:
    columns = ([0.9, 0.9, 0.5, 0.5], [0.5, 0.5, 0.9, 0.9], ADOPT)  # C·α is the same for all
    grid = grid_of(columns, columns, QUESTIONS)
    assert grid.accuracy[grid.place(PURE)] == 1
    assert grid.accuracy[0, 1:].tolist() == [0.5] * 10
    assert grid.best[1] < 10


def test_grid_is_masked_where_nothing_is_left_of_the_gate() -> None:
    columns = ([0.8] * 4, [0.9, 0.9, 0.4, 0.4], ADOPT)
    grid = grid_of(columns, columns, QUESTIONS)
    for values in (grid.accuracy, grid.std, grid.thresholds):
        assert values.shape == (11, 11)
        assert np.argwhere(values.mask).tolist() == [[0, 0]]
        assert np.isfinite(values.data).all()


def test_grid_resamples_questions_and_fits_on_the_split() -> None:
    fit, test = ([0.2, 0.9], [1.0, 1.0], [False, True]), ([0.5, 0.9, 0.3, 0.6], [1.0] * 4, [True, True, True, True])
    questions = ["a", "a", "b", "c"]
    grid = grid_of(fit, test, questions, constants=[1.0], coefficients=[0.0], resamples=5)
    theta = fit_thresholds([0.2, 0.9], [False, True])[0]
    assert grid.thresholds[0, 0] == theta
    right = np.array([c >= theta for c in test[0]])
    rates = [(counts * right).sum() / counts.sum() for counts in drawn(questions, resamples=5)]
    assert grid.std[0, 0] == pytest.approx(np.std(rates, ddof=1))
    assert grid.accuracy[0, 0] == right.mean() != np.mean(rates)


def test_only_the_ratio_of_the_gate_matters() -> None:
    """Undivided, no C_final of a small sum would reach the least θ0 that is searched."""
    rng = np.random.default_rng(2)
    c, alpha = rng.random(40), rng.random(40)
    columns = (c, alpha, c * (0.3 + 0.7 * alpha) > 0.4)
    grid = grid_of(columns, columns, range(40), constants=[0.015, 0.3, 0.6], coefficients=[0.035, 0.7, 1.4])
    for values in (grid.accuracy, grid.std, grid.thresholds):
        assert values[0, 0] == values[1, 1] == values[2, 2]
    assert grid.accuracy[0, 0] > 0.95
    assert normalized_gate(c, alpha, 0.3, 0.7) == pytest.approx(c * (0.3 + 0.7 * alpha))


def test_the_best_cell_is_of_the_accuracy_that_is_shown() -> None:
    accuracy = np.ma.masked_array([[9.0, 0.5], [0.7, 0.7]], [[True, False], [False, False]])
    assert GateGrid(np.zeros(2), np.zeros(2), accuracy, accuracy, accuracy).best == (1, 0)


def test_grid_refuses_lengths_that_differ() -> None:
    with pytest.raises(ValueError, match="as many, at least 1"):
        grid_of(([0.2], [1.0], [True]), ([0.2, 0.3], [1.0, 1.0], [True, False]), ["a"])


def random_study(*, split: bool = True):
    rng = np.random.default_rng(5)
    layer = MemoryDecisionLayer().ranged((2.0, 3.1), (0.5, 0.4, 0.3))
    made = [samples(rng.random((n, 3)), rng.random(n) < 0.5, [f"{n}-{i // 2}" for i in range(n)]) for n in (60, 40)]
    return study(made[0], made[1] if split else None, {"paper": layer})


def test_gate_grid_keeps_the_range_of_the_run() -> None:
    of = random_study()
    grid, layer = gate_grid(of), of.layers["paper"]
    gated = [
        layer(*(torch_column(rows, c) for c in range(3))).gated_confidence.numpy() for rows in (of.split, of.samples)
    ]
    theta = fit_thresholds(gated[0], of.split.adopt)[0]
    assert grid.thresholds[grid.place(PAPER)] == theta
    assert grid.accuracy[grid.place(PAPER)] == pytest.approx(((gated[1] >= theta) == of.samples.adopt).mean())


def torch_column(rows, column: int):
    import torch

    return torch.tensor(rows.signals[:, column], dtype=torch.float64)


def test_gating_table_says_what_the_columns_say() -> None:
    of = random_study()
    rows = {row[0]: row[1] for row in gating_table(of).rows}
    found = of.layers["paper"](*(torch_column(of.samples, c) for c in range(3)))
    c, alpha = found.confidence.numpy(), found.consistency.numpy()
    right = (found.action.numpy() == 0) == of.samples.adopt
    assert rows["answers"] == 60
    assert rows["decisions that are right"] == right.sum()
    assert rows["correlation of C and α, Pearson"].value == pytest.approx(np.corrcoef(c, alpha)[0, 1])
    assert rows["correlation of C and α, Spearman"].value == pytest.approx(stats.spearmanr(c, alpha).statistic)
    assert rows["mean α, right decisions"] == pytest.approx(alpha[right].mean())
    gap = 1000 * (alpha[right].mean() - alpha[~right].mean())
    assert rows["difference of mean α, thousandths"].value == pytest.approx(gap)
    assert rows["Welch's t"] == pytest.approx(stats.ttest_ind(alpha[right], alpha[~right], equal_var=False).statistic)
    assert rows["p, two-sided"] == f"p = {stats.ttest_ind(alpha[right], alpha[~right], equal_var=False).pvalue:.3f}"
    for name, values in (("α", alpha), ("C", c), ("C_final", found.gated_confidence.numpy())):
        one, other = values[right], values[~right]
        pooled = ((len(one) - 1) * one.var(ddof=1) + (len(other) - 1) * other.var(ddof=1)) / (len(values) - 2)
        assert rows[f"Cohen's d of {name}"] == pytest.approx((one.mean() - other.mean()) / np.sqrt(pooled))
    assert rows["correlation of α with being right"].value == pytest.approx(np.corrcoef(alpha, right)[0, 1])
    rests = [values - np.polyval(np.polyfit(c, values, 1), c) for values in (alpha, right.astype(float))]
    assert rows["the same with C held fixed"].value == pytest.approx(np.corrcoef(*rests)[0, 1])
    grid = gate_grid(of)
    gain = grid.accuracy[grid.place(PAPER)] - grid.accuracy[grid.place(PURE)]
    assert rows["gain by α"].value == pytest.approx(gain)
    assert rows["accuracy with α (0.3, 0.7)"] == grid_table(of).rows[3][8].mean == grid.accuracy[3, 7]
    (best,) = [name for name in rows if name.startswith("accuracy at the best")]
    assert best.endswith("chosen on these answers")
    assert rows[best] == grid.accuracy.max()
    assert gating_table(of).note.endswith(FAVOURED)


def test_grid_table_has_every_cell() -> None:
    of = random_study()
    table, grid = grid_table(of), gate_grid(of)
    assert [row[0] for row in table.rows] == [f"{value:.1f}" for value in GATE_VALUES]
    assert table.rows[0][1] is None
    assert table.rows[3][8] == MeanStd(float(grid.accuracy[3, 7]), float(grid.std[3, 7]), 10)
    assert f"the paper's (0.3, 0.7): {grid.accuracy[3, 7]:.3f}" in table.note
    assert "best, chosen on these answers, (" in table.note
    assert table.note.endswith(FAVOURED)


@pytest.mark.parametrize("of", [random_study(split=False), study(samples(np.zeros((0, 3)), []))])
def test_what_is_missing_is_said(of) -> None:
    assert gate_grid(of) is None
    assert "no calibration split" in grid_table(of).note
    for table in (grid_table(of), gating_table(of)):
        assert not re.search(r"\bnan\b", table.csv())
    assert bool(gating_table(of).rows) == bool(len(of.samples))


def test_one_question_and_all_right_shows_no_nan() -> None:
    of = study(samples([[0.9, 0.9, 0.2]] * 3, [True] * 3, ["q"] * 3), None, {"paper": MemoryDecisionLayer()})
    assert not re.search(r"\bnan\b", gating_table(of).csv() + gating_table(of).markdown())
    for row in gating_table(of).rows:
        if row[0].startswith(("correlation", "the same")):
            assert row[1].value is row[1].interval is None, row[0]
