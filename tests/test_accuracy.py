"""Decision accuracy: every figure by hand or by brute force, on decisions that are planted."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from analysis_cases import adopts_by, pairs, samples, study, three_answers_a_question
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.analysis.accuracy import (
    AS_DECIDED,
    accuracy,
    accuracy_table,
    actions_of,
    ceiling,
    composition,
    decides,
    majority,
    paired_accuracy,
    paired_table,
    recorded,
)
from mdl_torch.evaluation.oracle import PairedOracle
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Action

ACTIVE, SUPP, SILENT, OPT_OUT = Action


def by_relevance(relevance, reliability, risk):
    """A layer of four bands of M, 0.25 each: Opt-Out, Silent, Supp, Active."""
    return SimpleNamespace(action=(3 - (relevance * 4).floor().clamp(max=3)).to(torch.int8))


def rows(*relevance: float) -> list[list[float]]:
    return [[m, 0.5, 0.2] for m in relevance]


def cell(table, row: str, column: str, mapping: str | None = None):
    place = table.columns.index(column)
    [found] = [cells for cells in table.rows if cells[0] == row and cells[1] == mapping]
    return found[place]


# ------------------------------------------------------------------------------------------------------- the decision


@pytest.mark.parametrize(("injecting", "adopted"), [(False, {ACTIVE}), (True, {ACTIVE, SUPP})])
def test_which_actions_are_adopt(injecting, adopted):
    assert {a for a in Action if decides([a], injecting=injecting)[0]} == adopted


def test_the_actions_are_the_layers_own():
    layer, signals = MemoryDecisionLayer(), np.random.default_rng(0).random((50, 3))
    one_by_one = [layer(*torch.tensor(row, dtype=torch.float64)).action.item() for row in signals]
    assert actions_of(layer, signals).tolist() == one_by_one
    assert actions_of(layer, np.empty((0, 3))).shape == (0,)


# ----------------------------------------------------------------------------------------------------- the paper's


def test_accuracy_by_hand():
    """Of 4 answers of B1, 1 is decided rightly; of 2 of B2 both; of 3 of B3 two."""
    told = samples(
        rows(*[0.5] * 9),
        adopt=[True, True, True, False, True, False, True, False, False],
        systems=["b1"] * 4 + ["b2"] * 2 + ["b3"] * 3,
        actions=[SILENT] * 6 + [ACTIVE, OPT_OUT, SILENT],
        injected=[False] * 4 + [True] * 2 + [True, False, False],
    )
    adopts = np.array([True, False, False, True, True, False, False, False, False])
    found = accuracy(told, adopts)
    assert {name: one.value for name, one in found.of_system.items()} == {"b1": 1 / 4, "b2": 1.0, "b3": 2 / 3}
    assert {name: one.n for name, one in found.of_system.items()} == {"b1": 4, "b2": 2, "b3": 3}
    assert found.overall.value == pytest.approx(5 / 9)
    assert (found.opted_out.value, found.opted_out.n) == (1.0, 1)
    assert found.adopted == pytest.approx(3 / 9)


def test_the_interval_is_over_questions():
    """Ten answers alike to each of two questions are two observations, not twenty."""
    told = samples(rows(*[0.5] * 20), [True] * 10 + [False] * 10, questions=["a"] * 10 + ["b"] * 10)
    found = accuracy(told, np.ones(20, np.bool_)).overall
    assert (found.value, found.low, found.high, found.method) == (0.5, 0.0, 1.0, "bootstrap")


def test_an_opt_out_scores_itself_correct():
    """A gate that always abstains agrees with every label of its own answers, whatever the memories were worth."""
    told = samples(
        rows(*[0.1] * 6),
        adopt=[True, False, True, False, False, False],
        systems=["b1", "b1", "b2", "b2", "b3", "b3"],
        actions=[OPT_OUT] * 6,
        injected=[False, False, True, True, False, False],
        abstained=[False] * 4 + [True, True],
    )
    table = accuracy_table(study(told, layers={"paper": by_relevance}))
    assert cell(table, "paper", "of B3's", "Active").value == 1.0
    assert cell(table, "paper", "B3 opted out", "Active").value == 1.0
    assert cell(table, "paper", "of B1's", "Active").value == 0.5


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_the_gate_of_b3_is_right_on_its_own_answers_where_they_are_safe(drawn):
    """With Supp as adopt, which injects: so that this accuracy is 1 − B3's hallucination rate, and nothing else."""
    signals, hallucinated = rows(*(m for m, _ in drawn)), np.array([h for _, h in drawn])
    actions = actions_of(by_relevance, signals)
    injected = actions <= SUPP
    told = samples(signals, ~hallucinated == injected, systems=["b3"] * len(drawn), actions=actions, injected=injected)
    assert (told.hallucinated == hallucinated).all()
    own = accuracy(told, decides(actions, injecting=True)).of_system["b3"]
    assert own.value == pytest.approx(1 - hallucinated.mean())


def test_the_table_has_every_layer_with_both_mappings():
    """M in the four bands; the labels adopt at Active and Supp, so that the second mapping is right everywhere."""
    told = samples(rows(0.9, 0.6, 0.4, 0.1, 0.1), [True, True, False, False, False])
    table = accuracy_table(study(told, layers={"paper": by_relevance, "certified": by_relevance}))
    for name in ("paper", "certified"):
        assert cell(table, name, "accuracy", "Active").value == 0.8
        assert cell(table, name, "accuracy", "Active or Supp").value == 1.0
        assert cell(table, name, "adopts", "Active or Supp") == 0.4
    assert cell(table, "majority class: reject", "accuracy").value == 0.6
    assert cell(table, "any function of (M, R, A), at most", "accuracy") == 1.0
    assert cell(table, "paper", "of B1's", "Active").value is None
    assert "4 distinct (M, R, A)" in table.note


def test_what_the_gate_did_in_the_run_has_its_own_rows():
    """The equations say Active everywhere; the guard made B3's actions Silent, Opt-Out and Supp."""
    told = samples(
        rows(0.9, 0.9, 0.9, 0.9),
        [False, False, True, True],
        systems=["b3", "b3", "b3", "b1"],
        actions=[SILENT, OPT_OUT, SUPP, SILENT],
        injected=[False, False, True, False],
        abstained=[False, True, False, False],
    )
    table = accuracy_table(study(told, layers={"paper": by_relevance}))
    assert cell(table, AS_DECIDED, "of B3's", "Active or Supp").value == 1.0
    assert cell(table, AS_DECIDED, "of B3's", "Active").value == pytest.approx(2 / 3)
    assert cell(table, AS_DECIDED, "of B1's", "Active or Supp").value == 0.0
    assert cell(table, AS_DECIDED, "B3 opted out", "Active").value == 1.0
    assert cell(table, AS_DECIDED, "adopts", "Active or Supp") == 0.25
    assert cell(table, "paper", "of B3's", "Active or Supp").value == pytest.approx(1 / 3)


def test_every_column_by_hand():
    """Four questions of three answers; see ``three_answers_a_question``. Shares of questions: 1, ⅔, 0, ⅓."""
    table = accuracy_table(three_answers_a_question(layers={"paper": adopts_by(0)}))
    found = dict(zip(table.columns, next(row for row in table.rows if row[:2] == ("paper", "Active")), strict=True))
    overall = found["accuracy"]
    assert (overall.value, overall.n, overall.questions, overall.method) == (0.5, 12, 4, "bootstrap")
    assert (overall.low, overall.high) == (pytest.approx(1 / 6), pytest.approx(5 / 6))
    assert [found[f"of {name}'s"].value for name in ("B1", "B2", "B3")] == [3 / 4, 2 / 4, 1 / 4]
    assert found["B3 opted out"].value is None
    assert found["adopts"] == 0.5


def test_real_layers_fit_in():
    table = accuracy_table(study(samples(rows(0.9, 0.1), [True, False]), layers={"paper": MemoryDecisionLayer()}))
    assert cell(table, "paper", "accuracy", "Active").n == 2
    assert "nan" not in (table.markdown() + table.csv()).lower()


# -------------------------------------------------------------------------------------------------------- the ceiling


@st.composite
def few_triples(draw):
    """Rows of up to four triples, and for each whether adopt and reject would be right: both, one or none."""
    triples = st.sampled_from([(0.1, 0.5, 0.2), (0.1, 0.5, 0.9), (0.7, 0.5, 0.2), (0.7, 0.3, 0.2)])
    drawn = draw(st.lists(st.tuples(triples, st.booleans(), st.booleans()), min_size=1, max_size=12))
    signals, adopting, rejecting = zip(*drawn, strict=True)
    return np.array(signals), np.array(adopting), np.array(rejecting)


def best_of_all_functions(signals, adopting, rejecting) -> float:
    """By trying every function of the distinct triples."""
    kinds = sorted({tuple(row) for row in signals})
    best = 0.0
    for decided in itertools.product([True, False], repeat=len(kinds)):
        function = dict(zip(kinds, decided, strict=True))
        adopts = np.array([function[tuple(row)] for row in signals])
        best = max(best, float(np.where(adopts, adopting, rejecting).mean()))
    return best


@given(few_triples())
def test_no_function_of_the_signals_does_better(drawn):
    signals, adopting, rejecting = drawn
    assert ceiling(signals, adopting) == pytest.approx(best_of_all_functions(signals, adopting, ~adopting))
    assert ceiling(signals, adopting, rejecting) == pytest.approx(best_of_all_functions(signals, adopting, rejecting))


@given(few_triples())
def test_neither_a_layer_nor_the_majority_exceeds_it(drawn):
    signals, adopt, _ = drawn
    best = ceiling(signals, adopt)
    for adopts in (decides(actions_of(by_relevance, signals)), np.full(len(adopt), majority(adopt))):
        assert (adopts == adopt).mean() <= best + 1e-12


def test_contradictory_labels_halve_it():
    signals = np.repeat(np.random.default_rng(0).random((7, 3)), 2, axis=0)
    assert ceiling(signals, [True, False] * 7) == 0.5
    assert ceiling(signals, [True, True] * 7) == 1.0


def test_without_rows_there_is_none():
    assert ceiling(np.empty((0, 3)), []) is None


def test_labels_for_each_row():
    with pytest.raises(ValueError, match=r"as many, got 2, \(1,\), \(1,\), \(1,\)"):
        ceiling(rows(0.1, 0.2), [True])
    with pytest.raises(ValueError, match=r"adopts must be \(2,\).*got \(1,\)"):
        accuracy(samples(rows(0.1, 0.2), [True, False]), np.array([True]))
    with pytest.raises(ValueError, match=r"actions must be \(1,\).*got \(2,\)"):
        paired_accuracy(pairs(rows(0.1), ["neither"]), np.array([ACTIVE, SILENT]))


@pytest.mark.parametrize(("labels", "most"), [([1, 1, 0], True), ([1, 0, 0], False), ([1, 0], True), ([], True)])
def test_the_majority(labels, most):
    assert majority(np.array(labels, np.bool_)) is most


# ---------------------------------------------------------------------------------------------------------- the pairs


@pytest.mark.parametrize(
    ("told", "harmless", "best"),
    [
        ("both_safe", {ACTIVE, SUPP, SILENT, OPT_OUT}, {ACTIVE, SUPP, SILENT}),
        ("only_b1", {SILENT, OPT_OUT}, {SILENT, OPT_OUT}),
        ("only_b2", {ACTIVE, SUPP, OPT_OUT}, {ACTIVE, SUPP}),
        ("neither", {OPT_OUT}, {OPT_OUT}),
    ],
)
@pytest.mark.parametrize("injecting", [False, True])
def test_what_each_action_leads_to(told, harmless, best, injecting):
    """Of what is done, whichever mapping says what is adopt: an Opt-Out gives no answer, Supp gives B2's."""
    pair = pairs(rows(0.5), [told])
    found = {action: paired_accuracy(pair, [action], injecting=injecting) for action in Action}
    assert {action for action, one in found.items() if one.harmless.value} == harmless
    assert {action for action, one in found.items() if one.best.value} == best
    assert [one.opted_out for one in found.values()] == [0.0, 0.0, 0.0, 1.0]
    assert [one.adopted for one in found.values()] == [1.0, float(injecting), 0.0, 0.0]


def test_paired_accuracy_by_hand():
    """Six pairs, two a question, an action each; a bootstrap of three questions is of 27 equal draws."""
    told = pairs(
        rows(*[0.5] * 6),
        ["only_b1", "only_b1", "only_b2", "both_safe", "neither", "only_b2"],
        questions=["a", "a", "b", "b", "c", "c"],
    )
    actions = [SILENT, ACTIVE, SUPP, OPT_OUT, SILENT, OPT_OUT]
    found, injecting = paired_accuracy(told, actions), paired_accuracy(told, actions, injecting=True)
    assert (found.telling.value, found.telling.n) == (1 / 4, 4)
    assert (injecting.telling.value, injecting.telling.n) == (2 / 4, 4)
    assert (found.adopted, injecting.adopted) == (pytest.approx(1 / 6), pytest.approx(2 / 6))
    for one in (found, injecting):
        assert (one.best.value, one.best.low, one.best.high) == (pytest.approx(2 / 6), 0.0, 0.5)  # ½, ½, 0
        assert (one.harmless.value, one.harmless.n) == (pytest.approx(4 / 6), 6)  # ½, 1, ½
        assert (one.harmless.low, one.harmless.high) == (0.5, 1.0)
        assert one.opted_out == pytest.approx(2 / 6)
    assert composition(told) == dict(zip(PairedOracle, (1, 2, 2, 1), strict=True))


def test_the_paired_table():
    """Of the two triples, one has telling pairs of both kinds: 3 of 4 at most.

    At most 4 of 7 are harmless without abstention; the best actions are injecting at 0.9 (2) and Opt-Out at 0.1 (3).
    """
    told = pairs(
        rows(0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1),
        ["only_b2", "only_b2", "only_b1", "only_b1", "both_safe", "neither", "neither"],
    )
    table = paired_table(study(samples(rows(0.9), [True]), layers={"paper": by_relevance}, pairs=told))
    best = "any function of (M, R, A), at most"
    for mapping in ("Active", "Active or Supp"):  # Active at 0.9, Opt-Out at 0.1
        assert cell(table, "paper", "accuracy", mapping).value == 0.75
        assert cell(table, "paper", "best action", mapping).value == pytest.approx(5 / 7)
        assert cell(table, "paper", "harmless", mapping).value == pytest.approx(6 / 7)
        assert cell(table, "paper", "opts out", mapping) == pytest.approx(4 / 7)
        assert cell(table, "paper", "adopts", mapping) == pytest.approx(3 / 7)
    assert (cell(table, best, "accuracy"), cell(table, best, "harmless")) == (0.75, pytest.approx(4 / 7))
    assert cell(table, best, "best action") == pytest.approx(5 / 7)
    adopting = "majority class: adopt"
    assert cell(table, adopting, "accuracy").value == 0.5
    assert cell(table, adopting, "harmless").value == cell(table, adopting, "best action").value == pytest.approx(3 / 7)
    assert "both safe 1, only B1 2, only B2 2, neither 2" in table.note
    assert "of the 4 that make a difference" in table.note


def test_a_majority_that_rejects_gives_b1s_answer():
    told = pairs(rows(0.9, 0.9, 0.9, 0.9), ["only_b1", "both_safe", "neither", "neither"])
    table = paired_table(study(samples(rows(0.9), [True]), pairs=told))
    rejecting = [cell(table, "majority class: reject", name) for name in table.columns[2:]]
    assert [one.value for one in rejecting[:3]] == [1.0, 0.5, 0.5]
    assert rejecting[3:] == [0.0, 0.0]


def test_the_pairs_have_what_the_gate_did_in_the_run():
    """By question and seed, from B1's answers; where one is not there, no such row."""
    told = samples(
        rows(0.9, 0.9, 0.9, 0.9),
        [False, True, True, True],
        questions=["a", "a", "b", "b"],
        seeds=[0, 1, 1, 1],
        systems=["b1", "b1", "b1", "b2"],
        actions=[SILENT, SUPP, OPT_OUT, ACTIVE],
    )
    slots = {"questions": ["b", "a", "a"], "seeds": [1, 1, 0]}
    both = study(told, layers={"paper": by_relevance}, pairs=pairs(rows(0.9, 0.9, 0.9), ["neither"] * 3, **slots))
    assert recorded(both).tolist() == [OPT_OUT, SUPP, SILENT]
    table = paired_table(both)
    assert cell(table, AS_DECIDED, "harmless", "Active").value == pytest.approx(1 / 3)
    assert cell(table, AS_DECIDED, "adopts", "Active or Supp") == pytest.approx(1 / 3)
    assert cell(table, "paper", "harmless", "Active").value == 0.0  # its equations inject everywhere
    lacking = study(told.of("b2"), layers={"paper": by_relevance}, pairs=both.pairs)
    assert recorded(lacking) is None
    assert AS_DECIDED not in {row[0] for row in paired_table(lacking).rows}


def test_pairs_that_tell_nothing():
    table = paired_table(
        study(samples(rows(0.9), [True]), layers={"paper": by_relevance}, pairs=pairs(rows(0.9), ["neither"]))
    )
    assert cell(table, "paper", "accuracy", "Active").value is None
    assert cell(table, "any function of (M, R, A), at most", "accuracy") is None
    assert "nan" not in (table.markdown() + table.csv()).lower()


@pytest.mark.parametrize("make", [accuracy_table, paired_table])
def test_a_run_without_answers_has_no_rows(make):
    table = make(study(samples(np.empty((0, 3)), []), layers={"paper": MemoryDecisionLayer()}))
    assert table.rows == ()
    assert table.note == "The run has no such answers."
