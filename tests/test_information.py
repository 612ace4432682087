"""Information of signals about labels: against values known in closed form, by quadrature and by brute force."""

from __future__ import annotations

import math

import analysis_cases as cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl_torch.analysis import information as module
from mdl_torch.analysis.information import (
    PAPER,
    PAPER_SYNERGY,
    SETS,
    Null,
    binned,
    cells_of,
    entropy,
    information,
    information_tables,
    informed,
    nearest_information,
    synergy,
)
from mdl_torch.analysis.samples import FAVOURED

QUICK = {"permutations": 99, "nearest_permutations": 19, "resamples": 200}


def by_name(samples, **options):
    return {found.name: found for found in informed(samples, **{**QUICK, **options})}


def answers(signals, labels_of_questions, **given):
    """Answers to questions: the signals of each, and the labels of its answers."""
    counts = [len(labels) for labels in labels_of_questions]
    questions = np.repeat([f"q{i}" for i in range(len(counts))], counts)
    rows = np.repeat(np.asarray(signals, np.float64).reshape(-1, 3), counts, axis=0)
    return cases.samples(rows, np.concatenate([np.asarray(labels, bool) for labels in labels_of_questions]), questions)


def binary_entropy(p):
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


# ------------------------------------------------------------------------------------------------- plug-in, closed form


def test_entropy_of_known_shares():
    assert entropy([5]) == 0
    assert entropy([1, 1, 1, 1]) == pytest.approx(2)
    assert entropy([1, 3]) == pytest.approx(binary_entropy(0.25))
    assert entropy([0, 0]) == 0


def test_a_balanced_label_that_the_signal_decides_is_exactly_one_bit():
    m = np.random.default_rng(0).permutation(200) / 200
    for bins in (2, 4, 8):
        assert information(binned(m, bins), m >= 0.5) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("error", [0.05, 0.25, 0.4])
def test_a_symmetric_channel_has_one_bit_less_the_entropy_of_its_error(error):
    n = 1000
    wrong = round(n * error)
    cells = np.repeat([0, 1], n)
    adopt = np.concatenate([np.arange(n) < wrong, np.arange(n) >= wrong])
    assert information(cells, adopt) == pytest.approx(1 - binary_entropy(error), abs=1e-12)


def test_exclusive_or_is_told_by_the_pair_alone():
    corners = np.array([[m, r, 0.2] for m in (0.1, 0.9) for r in (0.1, 0.9)] * 25)
    found = by_name(cases.samples(corners, (corners[:, 0] > 0.5) ^ (corners[:, 1] > 0.5)))
    told = {name: found[name].plug_in for name in SETS}
    assert told == pytest.approx({"M": 0, "R": 0, "A": 0, "M+R": 1, "M+A": 0, "R+A": 0, "M+R+A": 1}, abs=1e-12)
    assert found["M+R"].synergy == pytest.approx(1)
    assert found["M+A"].synergy == found["R+A"].synergy == pytest.approx(0)
    assert found["M+R+A"].synergy == pytest.approx(0)
    assert found["M"].synergy is None
    assert found["M+R"].null.p == found["M+R"].synergy_null.p == pytest.approx(1 / 100)
    assert found["M+R"].nearest == pytest.approx(1, abs=0.1)


def test_a_signal_that_is_one_of_three_parts_of_the_parity_makes_the_triple_synergetic():
    corners = np.array([[m, r, a] for m in (0.1, 0.9) for r in (0.1, 0.9) for a in (0.2, 0.85)] * 10)
    found = by_name(cases.samples(corners, (corners > 0.5).sum(axis=1) % 2 == 1))
    assert found["M+R+A"].plug_in == pytest.approx(1)
    assert found["M+R+A"].synergy == pytest.approx(1)
    assert found["M+R"].synergy == pytest.approx(0, abs=1e-12)


def test_synergy_is_that_of_the_papers_table():
    assert synergy(PAPER) == pytest.approx(PAPER_SYNERGY, abs=5e-4)


def test_independence_is_within_the_null_as_often_as_it_should_be(monkeypatch):
    """30 data sets in which labels of a question agree mostly: p is uniform, I less the null mean is 0 on average."""
    monkeypatch.setattr(module, "DRAWS", 1)
    found = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        signals = np.column_stack([rng.random((100, 2)), rng.choice([0.2, 0.5, 0.85], 100)])
        samples = answers(signals, rng.random((100, 6)) < rng.choice([0.1, 0.7], 100)[:, None])
        found.append(by_name(samples, nearest_permutations=19))
    for name in SETS:
        p = np.array([each[name].null.p for each in found])
        assert (p <= 0.1).sum() <= 8  # 3 are expected, and 9 or more come once in 500 times
        assert 0.3 < p.mean() < 0.7
        left = np.array([each[name].corrected.value for each in found])
        assert abs(left.mean()) < 4 * left.std() / math.sqrt(30)
        assert np.mean([each[name].corrected.low < 0 < each[name].corrected.high for each in found]) > 0.8
        near = np.array([each[name].nearest_null.p for each in found])
        assert (near <= 0.1).sum() <= 8


# ---------------------------------------------------------------------------------------------------- the bias of it


def test_the_null_knows_that_answers_to_a_question_agree():
    """Six answers that all agree are one: the bias is that of 100 rows, not of 600, and shuffled rows would miss it."""
    rng = np.random.default_rng(3)
    signals = rng.random((100, 3))
    signals[:, 2] = rng.choice([0.2, 0.5, 0.75, 0.85], 100)
    once = rng.random(100) < 0.5
    many, one = (by_name(answers(signals, np.repeat(once[:, None], times, axis=1)))["M+R"] for times in (6, 1))
    assert many.plug_in == pytest.approx(one.plug_in)
    assert many.null.mean == pytest.approx(one.null.mean, rel=0.1)
    assert many.null.mean == pytest.approx((16 - 1) / (2 * 100 * math.log(2)), rel=0.3)  # Miller and Madow's, of 100
    assert many.null.p > 0.05


def test_a_null_is_what_its_permutations_are():
    null = Null.of(2.0, [0.0, 1.0, 2.0, 3.0])
    assert (null.mean, null.p) == (1.5, 3 / 5)
    assert Null.of(9.0, np.zeros(99)).p == 1 / 100


def test_a_planted_signal_is_found_among_dependent_answers():
    rng = np.random.default_rng(4)
    even = rng.permutation(152) / 151
    signals = np.column_stack([rng.random(152), even, rng.choice([0.2, 0.85], 152)])
    chance = np.where(signals[:, 1] > 0.5, 0.75, 0.25)
    found = by_name(answers(signals, rng.random((152, 6)) < chance[:, None]))
    true = 1 - binary_entropy(0.25)
    assert found["R"].null.p == pytest.approx(0.01)
    assert found["R"].corrected.low < true < found["R"].corrected.high
    assert found["R"].nearest_null.p == pytest.approx(1 / 20)
    assert found["R"].nearest == pytest.approx(true, abs=0.06)
    assert found["M"].null.p > 0.05
    assert found["A"].null.p > 0.05


# ----------------------------------------------------------------------------------------------------------- the bins


def test_bins_hold_equal_numbers_and_keep_ties_together():
    assert np.bincount(binned(np.random.default_rng(0).random(400), 4)).tolist() == [100] * 4
    assert binned([0.5, 0.5, 0.5, 0.5], 4).max() == binned([0.5, 0.5, 0.5, 0.5], 4).min()
    assert binned([3.0, 1.0, 2.0, 1.0], None).tolist() == [2, 0, 1, 0]
    assert binned([], 4).tolist() == []
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        binned([0.5], 0)


@given(st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.6, 1.0]), min_size=1, max_size=30), st.integers(1, 6))
def test_bins_follow_the_order_of_the_values(values, bins):
    of = binned(values, bins)
    assert of.min() >= 0
    assert of.max() < bins
    for one, its in zip(values, of, strict=True):
        for other, theirs in zip(values, of, strict=True):
            assert its == theirs or (one != other and (its < theirs) == (one < other))


def test_a_is_taken_by_its_values_and_m_and_r_are_binned():
    rng = np.random.default_rng(5)
    signals = np.column_stack([rng.random((4000, 2)), rng.choice([0.2, 0.5, 0.6, 0.75, 0.85], 4000)])
    assert [len(np.unique(cells_of(signals, name, 4))) for name in SETS] == [4, 4, 5, 16, 20, 20, 80]
    assert [len(np.unique(cells_of(signals, name, 3))) for name in ("M", "A", "M+R")] == [3, 5, 9]


# ------------------------------------------------------------------------------------------------- nearest neighbours


@pytest.mark.parametrize("gap", [0.0, 1.0, 3.0])
def test_two_gaussians_by_quadrature(gap):
    """x ~ N(±gap/2, 1) by the label: I = H(Y) − E[H(Y | x)]. With 2,000 rows the estimate scatters by about 0.02."""
    x = np.linspace(-12, 12, 200_001)
    density = [np.exp(-((x - side * gap / 2) ** 2) / 2) / np.sqrt(2 * np.pi) for side in (-1, 1)]
    total = (density[0] + density[1]) / 2
    chance = np.clip(density[1] / np.maximum(2 * total, 1e-300), 1e-12, 1 - 1e-12)
    true = 1 - np.sum(total * binary_entropy(chance)) * (x[1] - x[0])
    rng = np.random.default_rng(6)
    labels = rng.random(2000) < 0.5
    points = rng.normal(np.where(labels, gap / 2, -gap / 2)).reshape(-1, 1)
    assert nearest_information(points, labels) == pytest.approx(true, abs=0.05)
    assert nearest_information(1000 * points + 7, labels) == pytest.approx(true, abs=0.05)


def ross(points, labels, k):
    """Ross's equation as he writes it, row by row."""
    from scipy.special import digamma

    scaled, terms = points / points.std(axis=0), []
    for i, label in enumerate(labels):
        distance = np.abs(scaled - scaled[i]).max(axis=1)
        alike = labels == label
        radius = np.sort(distance[alike])[k]  # the row itself is the first
        terms.append(digamma(k) - digamma(alike.sum()) - digamma((distance <= radius).sum() - 1))
    return (digamma(len(labels)) + np.mean(terms)) / math.log(2)


@pytest.mark.parametrize("near", [64, 4])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_nearest_neighbours_are_rosss(k, near, monkeypatch):
    """Also where few neighbours are sorted, and the k-th of a label is further away."""
    monkeypatch.setattr(module, "_NEAREST", near)
    rng = np.random.default_rng(k)
    points = rng.random((120, 2))
    labels = rng.random(120) < 0.2 + 0.5 * points[:, 0]
    assert nearest_information(points, labels, k=k) == pytest.approx(ross(points, labels, k), abs=1e-12)


def test_equal_points_are_one_value_as_a_discrete_estimate_has_it():
    rng = np.random.default_rng(7)
    x = rng.choice([0.2, 0.5, 0.85], 3000)
    labels = rng.random(3000) < x
    plain = information(binned(x, None), labels)
    assert nearest_information(x.reshape(-1, 1), labels) == pytest.approx(plain, abs=0.04)


def test_answers_to_one_question_are_not_each_others_neighbours():
    """Labels of a question agree and signals tell nothing: pooled rows would find nearly a bit."""
    rng = np.random.default_rng(8)
    signals = rng.random((120, 3))
    samples = answers(signals, np.repeat(rng.random((120, 1)) < 0.5, 6, axis=1))
    pooled = nearest_information(samples.signals, samples.adopt)
    assert pooled > 0.8
    assert abs(by_name(samples)["M+R+A"].nearest) < 0.15


def test_labels_with_few_rows():
    points = np.arange(6.0).reshape(-1, 1)
    assert nearest_information(points, [True] * 6) == pytest.approx(0)
    assert nearest_information(points[:2], [True, False]) is None
    assert nearest_information(points[:0], []) is None
    assert math.isfinite(nearest_information(points, [True] * 5 + [False]))
    assert math.isfinite(nearest_information(points, [True] * 4 + [False] * 2))
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        nearest_information(points, [True] * 6, k=0)


# ------------------------------------------------------------------------------------------------------- as a whole


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_plug_in_information_is_between_nothing_and_the_entropy_whatever_the_order(data):
    n = data.draw(st.integers(1, 30))
    cells = np.array(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    adopt = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    order = data.draw(st.permutations(range(n)))
    found = information(cells, adopt)
    assert 0 <= found <= entropy(np.bincount(adopt)) + 1e-12
    assert found == pytest.approx(information(cells[order], adopt[order]), abs=1e-12)
    assert found <= information(np.arange(n), adopt) + 1e-12


def test_the_order_of_the_answers_does_not_matter_to_the_estimate_and_repeats_are_alike():
    rng = np.random.default_rng(9)
    samples = answers(rng.random((40, 3)), [rng.random(rng.integers(1, 7)) < 0.4 for _ in range(40)])
    one, again = by_name(samples), by_name(samples)
    assert one == again
    other = by_name(samples.where(rng.permutation(len(samples))))
    for name in SETS:
        assert other[name].plug_in == pytest.approx(one[name].plug_in)
        assert other[name].null.mean == pytest.approx(one[name].null.mean, rel=0.2)


def test_permuted_questions_keep_their_labels_and_get_the_signals_of_one_other():
    questions = np.array(["a", "b", "a", "c", "b", "a"])
    blocks = module._Blocks.grouped(questions)
    donated = blocks.donated(np.array([1, 2, 0]))
    assert questions[donated].tolist() == ["b", "c", "b", "a", "c", "b"]
    assert donated.tolist() == [1, 3, 4, 0, 3, 1]
    rows = np.stack([blocks.one_each(np.random.default_rng(seed)) for seed in range(50)])
    assert (questions[rows] == ["a", "b", "c"]).all()
    assert [sorted(set(column)) for column in rows.T.tolist()] == [[0, 2, 5], [1, 4], [3]]


def test_the_bootstrap_draws_whole_questions():
    """By brute force: the spread of I over resamples of questions."""
    rng = np.random.default_rng(10)
    signals = rng.random((30, 3))
    samples = answers(signals, np.repeat(rng.random((30, 1)) < signals[:, :1], 5, axis=1))
    cells, blocks = cells_of(samples.signals, "M"), module._Blocks.grouped(samples.questions)
    drawn = module._resampled({"M": cells}, samples.adopt, blocks, 3000, np.random.default_rng(0))["M"]
    names = np.unique(samples.questions)
    places = {name: np.flatnonzero(samples.questions == name) for name in names}
    brute = []
    for _ in range(3000):
        rows = np.concatenate([places[name] for name in rng.choice(names, len(names))])
        brute.append(information(cells[rows], samples.adopt[rows]))
    assert drawn.mean() == pytest.approx(np.mean(brute), rel=0.05)
    assert drawn.std() == pytest.approx(np.std(brute), rel=0.08)


# -------------------------------------------------------------------------------------------------------- the table


def quickly(monkeypatch):
    monkeypatch.setattr(module, "informed", lambda samples: informed(samples, **QUICK))


def told(table):
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


@pytest.fixture
def alike():
    """60 questions with three answers that all agree, of which R tells much: signals, labels and samples."""
    rng = np.random.default_rng(12)
    signals = np.column_stack([rng.random((60, 2)), rng.choice([0.2, 0.5, 0.85], 60)])
    labels = rng.random(60) < np.where(signals[:, 1] > 0.5, 0.9, 0.1)
    return signals, labels, answers(signals, np.repeat(labels[:, None], 3, axis=1))


def test_every_null_is_of_its_own_set_and_figure(alike, monkeypatch):
    """By brute force: three answers that agree are one, and so each null is that of 60 rows under the same orders."""
    quickly(monkeypatch)
    signals, labels, _ = alike
    signals = signals + np.random.default_rng(15).random((60, 3)) * 1e-3  # no ties, which noise would have to part
    samples = answers(signals, np.repeat(labels[:, None], 3, axis=1))
    table = told(information_tables(cases.study(samples))[0])

    place = np.unique([f"q{i}" for i in range(60)], return_index=True)[1]  # questions are in the order of their names
    signals, labels = signals[place], labels[place]
    rng = np.random.default_rng(0)
    orders = [np.arange(60), *(rng.permutation(60) for _ in range(99))]
    plain = {n: np.array([information(cells_of(signals, n)[order], labels) for order in orders]) for n in SETS}
    columns = {n: signals[:, ["MRA".index(part) for part in n.split("+")]] for n in SETS}
    near = {n: np.array([ross(columns[n], labels[order], 3) for order in orders[:20]]) for n in SETS}
    beyond = {n: plain[n] - sum(plain[part] for part in n.split("+")) for n in ("M+R", "M+A", "R+A")}
    beyond["M+R+A"] = plain["M+R+A"] - np.maximum.reduce([plain[n] for n in ("M+R", "M+A", "R+A")])

    def share(drawn):
        return np.mean(drawn >= drawn[0] - 1e-12)  # the figure itself is the first

    for n in SETS:
        row = table[n]
        assert row["I"] == pytest.approx(plain[n][0])
        assert row["I less null mean"].value == pytest.approx(plain[n][0] - plain[n][1:].mean())
        assert row["p"] == pytest.approx(share(plain[n]))
        assert row["I (nearest neighbours)"] == pytest.approx(near[n][0])
        assert row["null mean (nearest neighbours)"] == pytest.approx(near[n][1:].mean())
        assert row["p (nearest neighbours)"] == pytest.approx(share(near[n]))
    for n, drawn in beyond.items():
        assert table[n]["synergy"] == pytest.approx(drawn[0])
        assert table[n]["synergy less null mean"] == pytest.approx(drawn[0] - drawn[1:].mean())
        assert table[n]["p (synergy)"] == pytest.approx(share(drawn))
    assert table["M+R"]["p"] == 0.01  # and what R tells is no synergy with M
    assert table["M+R"]["p (synergy)"] > 0.05
    assert len({table[n]["null mean (nearest neighbours)"] for n in SETS}) == len(SETS)


def test_the_interval_is_as_wide_as_questions_differ(alike, monkeypatch):
    """By brute force over questions; over answers it would be 1/√3 as wide."""
    monkeypatch.setattr(module, "informed", lambda samples: informed(samples, **{**QUICK, "resamples": 3000}))
    signals, labels, samples = alike
    table = told(information_tables(cases.study(samples))[0])
    rng = np.random.default_rng(13)
    for name in ("M", "R", "R+A"):
        of, left = cells_of(signals, name), table[name]["I less null mean"]
        drawn = [information(of[rows], labels[rows]) for rows in rng.integers(0, 60, (3000, 60))]
        low, high = np.mean(drawn) - np.quantile(drawn, (0.975, 0.025))
        assert (left.low - left.value, left.high - left.value) == pytest.approx((low, high), rel=0.15)
        assert (left.n, left.questions) == (180, 60)


def test_the_table_has_a_row_a_set_beside_the_papers(monkeypatch):
    quickly(monkeypatch)
    rng = np.random.default_rng(11)
    signals = np.column_stack([rng.random((30, 2)), rng.choice([0.2, 0.85], 30)])
    table, _ = information_tables(cases.study(answers(signals, rng.random((30, 4)) < 0.4)))
    assert [row[0] for row in table.rows] == list(SETS)
    assert [row[-2] for row in table.rows] == list(PAPER.values())
    assert [row[-1] for row in table.rows] == [None, None, None, 0.001, 0.003, 0.001, 0.007]
    assert all(len(row) == len(table.columns) <= 12 for row in table.rows)
    assert "120 labelled answers of B1, B2 and B3 to 30 questions" in table.note
    assert "A by its values (here 2)" in table.note
    assert "p are not corrected for the seven sets" in table.note
    assert "nan" not in (table.markdown() + table.csv()).lower()


def test_what_a_policy_does_with_the_signals_is_told_of_b3_alone(monkeypatch):
    """B3's labels are a function of A, those of B1 and B2 are not: the second table is of these alone."""
    quickly(monkeypatch)
    rng = np.random.default_rng(14)
    signals = np.column_stack([rng.random((80, 2)), rng.choice([0.2, 0.85], 80)])
    labels = np.column_stack([rng.random((80, 2)) < 0.5, signals[:, 2] < 0.5])
    questions, systems = np.repeat([f"q{i}" for i in range(80)], 3), np.tile(["b1", "b2", "b3"], 80)
    samples = cases.samples(np.repeat(signals, 3, axis=0), labels.reshape(-1), questions, systems=systems)
    pooled, alone = information_tables(cases.study(samples))
    assert (pooled.name, alone.name) == ("information", "information_b1_b2")
    assert "B1 and B2 alone" in alone.title
    assert pooled.note.endswith(FAVOURED)
    assert FAVOURED not in alone.note
    assert "160 labelled answers of B1 and B2 to 80 questions" in alone.note
    assert told(pooled)["A"]["p"] == 0.01
    assert told(alone)["A"]["p"] > 0.05
    other = cases.study(samples.of("b1", "b2"))
    assert alone.rows == information_tables(other)[0].rows == information_tables(other)[1].rows


@pytest.mark.parametrize("labels", [[], [[True]], [[True], [False]], [[True, False]], [[True, True]] * 3])
def test_few_answers_give_a_table_without_nan(labels, monkeypatch):
    quickly(monkeypatch)
    samples = answers(np.full((len(labels), 3), 0.5), labels or [[]][:0] or [np.zeros(0)])
    for table in information_tables(cases.study(samples)):
        assert len(table.rows) == (7 if labels else 0)
        assert "nan" not in (table.markdown() + table.csv()).lower()
        assert table.note


def test_answers_of_b3_alone_leave_the_second_table_empty(monkeypatch):
    quickly(monkeypatch)
    pooled, alone = information_tables(cases.study(cases.samples(np.full((3, 3), 0.5), [1, 0, 1], systems=["b3"] * 3)))
    assert len(pooled.rows) == 7
    assert (alone.rows, alone.note) == ((), "There are no labelled answers of B1 and B2.")
