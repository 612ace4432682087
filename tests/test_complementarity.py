"""Complementarity of the signals: planted gaps, a known d_z, and data of which one signal tells all."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from analysis_cases import pairs, samples, study, three_answers_a_question
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl_torch.analysis import complementarity
from mdl_torch.analysis.complementarity import (
    CONFIGURATIONS,
    FULL,
    PAPER,
    compare,
    complementarity_table,
    fitted,
    held,
    holm,
    points,
    restricted,
)
from mdl_torch.evaluation.fitting import refit
from mdl_torch.evaluation.statistics import McNemar
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Action


def told_by(column: int, n: int = 60, seed: int = 0, *, others: float | None = None):
    """Answers whose label is all told by one signal: M or R above a half, A below; ``others`` holds the rest fixed."""
    signals = np.random.default_rng(seed).random((n, 3))
    signals[:, column] = np.where(np.arange(n) % 2, 0.9, 0.1)  # nothing is near the boundary
    if others is not None:
        signals[:, [c for c in range(3) if c != column]] = others
    return samples(signals, (signals[:, column] > 0.5) != (column == 2))


def row(table, name: str) -> dict:
    [found] = [cells for cells in table.rows if cells[0] == name]
    return dict(zip(table.columns, found, strict=True))


# --------------------------------------------------------------------------------------------------------- comparisons


def right(n: int, both: int, first: int, second: int) -> tuple[np.ndarray, np.ndarray]:
    """Two indicators of n answers: right both times, the first alone, the second alone, never."""
    one, other = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    one[: both + first] = True
    other[:both] = True
    other[both + first : both + first + second] = True
    return one, other


def test_a_planted_gap_of_five_points():
    """Of 200 answers the first alone is right on 4, the second alone on 14: 5 points."""
    first, second = right(200, both=120, first=4, second=14)
    found = compare(first, second, np.array([f"q{i}" for i in range(200)]))
    assert points(found.difference).value == pytest.approx(-5.0)
    low, high = points(found.difference).interval
    spread = 1.96 * 100 * math.sqrt((18 / 200 - 0.05**2) / 200)  # of a normal approximation
    assert (low, high) == (pytest.approx(-5 - spread, abs=0.6), pytest.approx(-5 + spread, abs=0.6))
    tail = sum(math.comb(18, k) for k in range(5)) / 2**18
    assert found.mcnemar == McNemar(4, 14, pytest.approx(2 * tail))


def test_a_known_effect_size():
    """d ∈ {1, 0, −1}: mean (b − c)/n, variance (b + c − n·mean²)/(n − 1)."""
    first, second = right(200, both=120, first=4, second=14)
    found = compare(first, second, np.array([f"q{i}" for i in range(200)]))
    d_z = -0.05 / math.sqrt((18 - 200 * 0.05**2) / 199)
    assert found.over_answers.d_z == pytest.approx(d_z)
    assert found.over_answers.t == pytest.approx(d_z * math.sqrt(200))
    assert found.over_answers.n == 200
    assert found.over_questions == found.over_answers  # each answer is to a question of its own


def test_answers_to_one_question_are_one_observation():
    """Every answer three times over: t over answers grows by about √3, that over questions stays, and the interval."""
    first, second = right(40, both=20, first=2, second=9)
    names = np.array([f"q{i}" for i in range(40)])
    once, thrice = compare(first, second, names), compare(*(np.tile(x, 3) for x in (first, second, names)))
    assert thrice.over_answers.t == pytest.approx(once.over_answers.t * math.sqrt(3 * (119 / 3) / 39))
    assert thrice.over_answers.p < once.over_answers.p / 3
    assert thrice.over_questions == once.over_questions
    assert thrice.difference.interval == once.difference.interval


def test_equal_decisions_have_nothing_to_test():
    first, _ = right(10, both=5, first=0, second=0)
    found = compare(first, first, np.array([f"q{i}" for i in range(10)]))
    assert (found.difference.value, found.over_answers.t, found.mcnemar.p) == (0.0, None, 1.0)


@settings(max_examples=15)  # statsmodels collects garbage at each call
@given(st.lists(st.none() | st.floats(0, 1), max_size=8))
def test_holm_by_its_definition(values):
    counted = [1.0 if p is None else p for p in values]
    order = sorted(range(len(values)), key=counted.__getitem__)
    expected, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * counted[place]))
        expected[place] = largest
    for p, corrected, wanted in zip(values, holm(values), expected, strict=True):
        assert corrected is None if p is None else corrected == pytest.approx(wanted)


# ------------------------------------------------------------------------------------------------- the configurations


def test_a_missing_signal_is_held_at_its_mean_on_the_split():
    split = samples([[0.2, 0.4, 0.9], [0.8, 0.6, 0.1]], [False, True])
    one = restricted(split, (0,))
    assert one.neutral.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert held([[0.3, 0.9, 0.9]], (0,), one.neutral).tolist() == [[0.3, pytest.approx(0.5), pytest.approx(0.5)]]


@pytest.mark.parametrize("kept", [kept for name, kept in CONFIGURATIONS.items() if name != FULL])
def test_a_missing_signal_decides_nothing(kept):
    split, rng = told_by(0), np.random.default_rng(1)
    signals, others = rng.random((50, 3)), rng.random((50, 3))
    others[:, kept] = signals[:, kept]
    one = restricted(split, kept)
    assert (one.adopts(signals) == one.adopts(others)).all()


def test_each_is_fitted_on_its_own_signals():
    split = told_by(2)
    for kept in CONFIGURATIONS.values():
        expected = refit(MemoryDecisionLayer(), held(split.signals, kept, split.signals.mean(axis=0)), split.adopt)
        assert restricted(split, kept).layer.digest() == expected.digest()


def test_all_three_are_the_layer_itself():
    split, rng = told_by(2), np.random.default_rng(1)
    signals = rng.random((50, 3))
    layer = refit(MemoryDecisionLayer(), split.signals, split.adopt)
    active = layer(*torch.from_numpy(signals).unbind(-1)).action.numpy() == Action.ACTIVE
    assert (restricted(split, (0, 1, 2)).adopts(signals) == active).all()


def test_a_split_that_does_not_vary_leaves_no_range():
    still = samples([[0.5, 0.5, 0.2]] * 4, [True, False] * 2)
    assert restricted(still, (0, 1, 2)) is None
    assert fitted(MemoryDecisionLayer(), still.signals[:1], still.adopt[:1]) is None
    with pytest.raises(ValueError, match="split must have at least one answer"):
        restricted(still.where(np.zeros(4, np.bool_)), (0,))


# ----------------------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize(("column", "name"), [(0, "M"), (1, "R"), (2, "A")])
def test_the_signal_that_tells_all_is_enough_and_the_others_are_not(column, name):
    """The one signal decides all rightly; sets without it know nothing, of half and half."""
    table = complementarity_table(study(told_by(column, 200, seed=1), split=told_by(column, 200)))
    assert row(table, name)["accuracy"].value == 1.0
    for other, kept in CONFIGURATIONS.items():
        if column not in kept:
            found = row(table, other)
            assert found["accuracy"].value == pytest.approx(0.5, abs=0.15)
            assert found["Holm"] == "p < 0.001"
            full = row(table, FULL)["accuracy"].value
            assert found["difference (points)"].value == pytest.approx(100 * (found["accuracy"].value - full))
    assert row(table, FULL)["difference (points)"] is None


def test_a_set_of_which_nothing_varies_is_said_to_have_no_range():
    told = told_by(0, others=0.5)
    table = complementarity_table(study(told, split=told))
    assert [row(table, name)["accuracy"].value for name in ("M", "M + R", "M + A", FULL)] == [1.0] * 4
    for name in ("R", "A", "R + A"):
        found = row(table, name)
        assert [found.pop("signals"), found.pop("paper")] == [name, PAPER[name]]
        assert set(found.values()) == {None}
    assert row(table, "M")["t over questions"] == "no variation"
    assert row(table, "M")["Holm"] is None
    assert table.note.endswith("R, A, R + A: nothing that is read varies on the split, which leaves no range.")


def test_a_run_whose_split_does_not_vary_has_the_papers_figures_alone():
    still = samples([[0.5, 0.5, 0.2]] * 4, [True, False] * 2)
    table = complementarity_table(study(still, split=still))
    assert [cells[1:-1] for cells in table.rows] == [(None,) * 12] * 7
    assert [cells[-1] for cells in table.rows] == [0.581, 0.581, 0.581, 0.581, 0.583, 0.627, 0.612]


def test_holms_correction_is_of_the_test_over_questions():
    """Three answers to each question, of which M tells the label two times in three."""
    rng, asked = np.random.default_rng(3), np.repeat([f"q{i}" for i in range(40)], 3)
    signals = np.repeat(rng.random((40, 3)), 3, axis=0)
    told = samples(signals, (signals[:, 0] > 0.5) ^ (rng.random(120) < 1 / 3), questions=asked)
    right = {name: restricted(told, kept).adopts(signals) == told.adopt for name, kept in CONFIGURATIONS.items()}
    found = {name: compare(mine, right[FULL], asked) for name, mine in right.items() if name != FULL}
    table = complementarity_table(study(told, split=told))
    corrected = holm([one.over_questions.p for one in found.values()])
    assert corrected != pytest.approx(holm([one.over_answers.p for one in found.values()]), abs=0.01)
    for name, p in zip(found, corrected, strict=True):
        assert row(table, name)["Holm"] == ("p < 0.001" if p < 0.001 else f"p = {p:.3f}")


def test_the_pairs_have_their_own_accuracy():
    """Of pairs on which M misleads: where B2 alone is safe it is low. Those that tell nothing are not counted."""
    told = told_by(0)
    misled = pairs([[0.1, 0.5, 0.5], [0.9, 0.5, 0.5], [0.9, 0.5, 0.5]], ["only_b2", "only_b1", "neither"])
    table = complementarity_table(study(told, split=told, pairs=misled))
    found = row(table, "M")["accuracy (B1 and B2 together)"]
    assert (found.value, found.n) == (0.0, 2)


@pytest.mark.parametrize("lacking", ["samples", "split"])
def test_what_a_run_lacks_is_said(lacking):
    told = told_by(0, 4)
    nothing = told.where(np.zeros(4, np.bool_))
    given = study(nothing, split=told) if lacking == "samples" else study(told)
    table = complementarity_table(given)
    assert table.rows == ()
    assert "The run has no labelled answers" in table.note
    assert ("calibration split" in table.note) == (lacking == "split")


@pytest.fixture
def by_hand(monkeypatch):
    """The table of ``three_answers_a_question``, where a set of signals decides by the last of them."""

    def last(split, kept):
        return SimpleNamespace(adopts=lambda signals: signals[:, kept[-1]] > 0.5)

    monkeypatch.setattr(complementarity, "restricted", last)
    return complementarity_table(three_answers_a_question())


def test_every_column_by_hand(by_hand):
    """M is right alone on 4 of 12 answers, M + R + A on 2; by question M gains 1, ⅓, −⅔ and 0.

    Of a bootstrap over 4 questions 5 of 256 draws are below −5/12 and 9 at most that, and as many above and at ¾; a
    bootstrap over answers would be narrower. Of three questions of pairs M gains 1, −½ and ½, 1 of 27 draws being −½.
    """
    found = row(by_hand, "M")
    assert (found["accuracy"].value, found["accuracy"].n, found["accuracy"].questions) == (0.5, 12, 4)
    assert (found["accuracy"].low, found["accuracy"].high) == (pytest.approx(1 / 6), pytest.approx(5 / 6))
    assert found["adopts"] == 0.5
    difference = found["difference (points)"]
    assert (difference.value, difference.questions, difference.samples) == (pytest.approx(100 / 6), 4, 12)
    assert difference.interval == (pytest.approx(-500 / 12), pytest.approx(75.0))
    assert found["t over answers"] == "t(11) = 0.80, p = 0.438"
    assert found["d_z"] == pytest.approx((1 / 6) / math.sqrt((6 - 12 / 36) / 11))
    assert found["McNemar"] == "4 : 2, p = 0.688"  # 2·(1 + 6 + 15)/64
    assert found["t over questions"] == "t(3) = 0.48, p = 0.664"
    assert found["d_z over questions"] == pytest.approx((1 / 6) / math.sqrt((1 + 1 / 9 + 4 / 9 - 4 / 36) / 3))
    assert found["Holm"] == "p = 1.000"
    together = found["accuracy (B1 and B2 together)"]
    assert (together.value, together.n, together.questions) == (pytest.approx(5 / 6), 6, 3)
    assert (together.low, together.high) == (0.5, 1.0)
    difference = found["difference (B1 and B2 together, points)"]
    assert (difference.value, difference.questions, difference.samples) == (pytest.approx(100 / 3), 3, 6)
    assert difference.interval == (-50.0, 100.0)
    p = 1 - math.sqrt((4 / 7) / (2 + 4 / 7))  # of two degrees of freedom, t² = 4/7
    assert found["t over questions (B1 and B2 together)"] == f"t(2) = 0.76, p = {p:.3f}"
    assert found["paper"] == 0.581


def test_the_others_by_hand(by_hand):
    """R is right on 7 more answers, by question 1, ⅔, ⅓ and ⅓; of pairs on one more and one less, of one question."""
    found = row(by_hand, "R")
    assert found["accuracy"].value == pytest.approx(11 / 12)
    assert found["adopts"] == pytest.approx(5 / 12)
    assert found["difference (points)"].interval == (pytest.approx(100 / 3), pytest.approx(250 / 3))
    assert found["t over answers"] == "t(11) = 3.92, p = 0.002"
    assert found["McNemar"] == "7 : 0, p = 0.016"
    assert found["t over questions"] == "t(3) = 3.66, p = 0.035"
    assert found["Holm"] == "p = 0.212"  # six times the smallest p
    assert found["difference (B1 and B2 together, points)"].interval == (0.0, 0.0)
    assert found["t over questions (B1 and B2 together)"] == "no variation"
    full = row(by_hand, FULL)
    assert full["accuracy"].value == pytest.approx(4 / 12)
    assert full["accuracy (B1 and B2 together)"].value == 0.5
    assert {full[name] for name in by_hand.columns[3:10] + by_hand.columns[11:13]} == {None}


def test_without_pairs_their_columns_are_empty():
    told = told_by(0)
    found = row(complementarity_table(study(told, split=told)), "M")
    assert found["accuracy (B1 and B2 together)"].value is None
    assert found["difference (B1 and B2 together, points)"] is None
    assert found["t over questions (B1 and B2 together)"] is None
