"""The oracle of realised outcomes (Section 5.3)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.calibration import fit_thresholds
from mdl_torch.evaluation.oracle import (
    ADOPT,
    REJECT,
    PairedOracle,
    agrees,
    injects,
    labelled,
    oracle_action,
    oracle_adopts,
    paired_oracle,
)
from mdl_torch.evaluation.scoring import Outcome
from mdl_torch.outputs import Action

SAFE = (Outcome.CORRECT, Outcome.ABSTENTION, Outcome.OTHER)
FULL = (*SAFE, Outcome.HALLUCINATION)


def test_with_memories_a_hallucination_rejects_and_without_it_adopts():
    for outcome in SAFE:
        assert oracle_adopts(outcome, injected=True) is True
        assert oracle_adopts(outcome, injected=False) is False
    assert oracle_adopts(Outcome.HALLUCINATION, injected=True) is False
    assert oracle_adopts(Outcome.HALLUCINATION, injected=False) is True
    assert oracle_adopts(Outcome.EMPTY, injected=True) is None
    assert oracle_adopts(Outcome.EMPTY, injected=False) is None


def test_of_b3_the_action_tells_what_was_injected():
    expected = {Action.ACTIVE: True, Action.SUPP: True, Action.SILENT: False, Action.OPT_OUT: False}
    assert {action: injects(action) for action in Action} == expected
    assert oracle_adopts(Outcome.ABSTENTION, injected=injects(Action.OPT_OUT)) is False


def test_records_say_it_in_words():
    for outcome, injected in itertools.product(Outcome, (True, False)):
        adopt = oracle_adopts(outcome, injected=injected)
        expected = {True: ADOPT, False: REJECT, None: None}[adopt]
        assert oracle_action({"outcome": outcome.label, "injected": injected}) == expected
    assert oracle_action({"outcome": None, "injected": True}) is None
    with pytest.raises(ValueError, match="'wrong' is not a valid Outcome"):
        oracle_action({"outcome": "wrong", "injected": True})


def test_active_is_adopt_and_every_other_action_reject():
    assert [agrees(action, True) for action in Action] == [True, False, False, False]
    assert [agrees(action, False) for action in Action] == [False, True, True, True]


def test_the_paired_oracle():
    for b1, b2 in itertools.product(FULL, FULL):
        wrong = Outcome.HALLUCINATION
        expected = {
            (False, False): PairedOracle.BOTH_SAFE,
            (False, True): PairedOracle.ONLY_B1,
            (True, False): PairedOracle.ONLY_B2,
            (True, True): PairedOracle.NEITHER,
        }[b1 is wrong, b2 is wrong]
        assert paired_oracle(b1, b2) is expected
    assert paired_oracle(Outcome.EMPTY, Outcome.CORRECT) is None
    assert paired_oracle(Outcome.CORRECT, Outcome.EMPTY) is None
    adopts = {o: o.adopt for o in PairedOracle}
    assert adopts == {
        PairedOracle.BOTH_SAFE: None,
        PairedOracle.ONLY_B1: False,
        PairedOracle.ONLY_B2: True,
        PairedOracle.NEITHER: None,
    }


@given(st.lists(st.tuples(st.sampled_from(FULL), st.sampled_from(FULL)), min_size=1, max_size=40), st.randoms())
def test_both_oracles_prefer_the_same_thresholds(pairs, random):
    """The two labels of a pair that makes no difference cancel; those of the others are the pair's, twice."""
    confidence = np.array([random.random() for _ in pairs])
    records, adopt = labelled(answers(pairs))
    rows = [record["row"] for record in records]
    paired = [paired_oracle(*pair).adopt for pair in pairs]
    for row, label in enumerate(paired):
        labels = [a for r, a in zip(rows, adopt, strict=True) if r == row]
        assert sorted(labels) == ([False, True] if label is None else [label, label])
    telling = [row for row, label in enumerate(paired) if label is not None]
    best = np.mean(
        [
            (max(a.count(True), a.count(False))) / 2
            for a in ([x for r, x in zip(rows, adopt, strict=True) if r == row] for row in range(len(pairs)))
        ]
    )
    assert best == pytest.approx((len(telling) + (len(pairs) - len(telling)) / 2) / len(pairs))
    if telling:
        everything = fit_thresholds(confidence[rows], adopt)
        assert everything == fit_thresholds(confidence[telling], [paired[row] for row in telling])


def answers(pairs):
    """Records of B1 and B2, a pair a question."""
    return [
        {"system": system, "row": row, "outcome": outcome.label, "injected": system == "b2"}
        for row, pair in enumerate(pairs)
        for system, outcome in zip(("b1", "b2"), pair, strict=True)
    ]


def test_what_says_nothing_is_not_learned_from():
    """Empty outputs, answers that were not scored, and systems that follow a decision."""
    given = answers([(Outcome.EMPTY, Outcome.EMPTY), (Outcome.CORRECT, Outcome.EMPTY)])
    given.append({"system": "b1", "row": 2, "outcome": None, "injected": False})
    given.append({"system": "b3", "row": 3, "outcome": "hallucination", "injected": True})
    records, adopt = labelled(given)
    assert ([record["row"] for record in records], adopt) == ([1], [False])


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "records must be of b1 and b2 on a calibration split, got none"),
        (answers([(Outcome.CORRECT, Outcome.CORRECT)])[:1], "got b1"),
        (answers([(Outcome.EMPTY, Outcome.EMPTY)]), "every answer is empty or was not scored"),
    ],
)
def test_there_has_to_be_something_to_learn_from(records, message):
    with pytest.raises(ValueError, match=message):
        labelled(records)
