"""Calibration split and evaluation sample."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl_torch.evaluation.questions import Question, load_questions
from mdl_torch.evaluation.splits import TOP_RISK_QUESTIONS, is_top_risk, split_questions
from mdl_torch.risk import RiskPolicy

POLICY = RiskPolicy.default()


def pool(count, top=10):
    """Every ``top``-th question is at A = 0.85."""
    return [
        Question(f"q{n}", f"Is {n} even?", ("Yes",), ("No",), "Law" if n % top == 0 else "Weather")
        for n in range(count)
    ]


def words(questions):
    return {" ".join(q.text.casefold().split()) for q in questions}


@settings(max_examples=200)
@given(
    texts=st.lists(
        st.sampled_from(["is a", "Is A", "is  a", *(f"is {n}" for n in range(30))]), min_size=3, max_size=60
    ),
    data=st.data(),
)
def test_no_question_calibrates_and_is_evaluated(texts, data):
    questions = [Question(f"q{n}", t, ("y",), ("n",), "Law" if n % 3 else "Weather") for n, t in enumerate(texts)]
    distinct = len(words(questions))
    if distinct < 2:
        return
    calibration = data.draw(st.integers(0, distinct - 1))
    evaluated = data.draw(st.integers(1, distinct - calibration))
    at_top_risk = data.draw(st.integers(0, evaluated))
    seed = data.draw(st.integers(0, 5))
    found = split_questions(questions, calibration=calibration, evaluated=evaluated, at_top_risk=at_top_risk, seed=seed)
    assert (len(found.calibration), len(found.evaluated)) == (calibration, evaluated)
    assert not words(found.calibration) & words(found.evaluated)
    both = [*found.calibration, *found.evaluated]
    assert len(words(both)) == len({q.id for q in both}) == len(both)
    assert {q.id for q in both} <= {q.id for q in questions}
    assert found.top_risk == sum(is_top_risk(q, POLICY) for q in found.evaluated)
    assert found.top_risk >= at_top_risk or found.top_risk_left == 0
    assert found.top_risk >= found.top_risk_by_chance


def test_the_order_of_the_file_and_its_ids_do_not_matter():
    questions = pool(200)
    shuffled = [dataclasses.replace(q, id=f"other-{n}") for n, q in enumerate(random.Random(1).sample(questions, 200))]
    one, other = (split_questions(asked, evaluated=60, at_top_risk=9) for asked in (questions, shuffled))
    assert [q.text for q in one.calibration] == [q.text for q in other.calibration]
    assert [q.text for q in one.evaluated] == [q.text for q in other.evaluated]


def test_the_calibration_does_not_depend_on_what_is_evaluated_and_samples_are_nested():
    questions = pool(300)
    splits = [split_questions(questions, evaluated=n) for n in (50, 100, None)]
    assert len({s.calibration for s in splits}) == 1
    assert splits[1].evaluated[:50] == splits[0].evaluated
    assert splits[2].evaluated[:100] == splits[1].evaluated
    assert len(splits[2].evaluated) == 220
    assert split_questions(questions, evaluated=50, at_top_risk=20).calibration == splits[0].calibration


def test_a_seed_draws_the_same_and_another_others():
    questions = pool(300)
    assert split_questions(questions, seed=1) == split_questions(questions, seed=1)
    common = words(split_questions(questions, seed=1).calibration) & words(
        split_questions(questions, seed=2).calibration
    )
    assert len(common) < 40  # 80 · 80/300 = 21 are expected


@pytest.mark.parametrize(("wanted", "expected"), [(5, 5), (14, 14), (40, 20)])
def test_a_stratified_sample_has_what_is_wanted_or_all_there_is(wanted, expected):
    found = split_questions(pool(200), calibration=0, evaluated=50, at_top_risk=wanted)
    assert found.top_risk == max(expected, found.top_risk_by_chance)
    assert len(found.evaluated) == 50
    plain = split_questions(pool(200), calibration=0, evaluated=50)
    others = [q for q in plain.evaluated if not is_top_risk(q, POLICY)]
    assert [q for q in found.evaluated if not is_top_risk(q, POLICY)] == others[: 50 - found.top_risk]


def test_the_policy_tells_what_is_at_top_risk():
    policy = RiskPolicy(0.2, {"Weather": 0.85, "Law": 0.75})
    found = split_questions(pool(100), calibration=20, evaluated=30, at_top_risk=30, risk=policy)
    assert {q.category for q in found.evaluated} == {"Weather"}
    with pytest.raises(ValueError, match="unknown category"):
        split_questions(pool(100), risk=RiskPolicy(0.2, {"Law": 0.85}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"calibration": 100}, "calibration must be from 0 to fewer than the 100 questions, got 100"),
        ({"calibration": -1}, "calibration must be from 0"),
        ({"evaluated": 21}, "evaluated must be from 1 to the 20 questions that do not calibrate, got 21"),
        ({"evaluated": 0}, "evaluated must be from 1"),
        ({"evaluated": 10, "at_top_risk": 11}, "at_top_risk must be from 0 to the 10 evaluated, got 11"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        split_questions(pool(100), **arguments)


def test_truthfulqa_has_sixty_questions_at_top_risk_beside_the_calibration(shared_data):
    questions = load_questions(shared_data("TruthfulQA.csv")).questions
    for seed in range(5):
        found = split_questions(questions, evaluated=150, at_top_risk=TOP_RISK_QUESTIONS, seed=seed)
        assert (len(found.calibration), len(found.evaluated), found.top_risk) == (80, 150, 60)
        assert found.top_risk_by_chance < 45


def test_halueval_gives_all_it_has(shared_data):
    found = split_questions(load_questions(shared_data("halueval_qa.jsonl")).questions, evaluated=100, at_top_risk=60)
    assert found.top_risk_left == 0
    assert 5 <= found.top_risk <= 15
