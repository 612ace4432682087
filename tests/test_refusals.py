"""Refusals and what only looks like one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.evaluation.questions import load_truthfulqa
from mdl_torch.evaluation.refusals import LONGEST, find_refusal, is_refusal, refusal_fingerprint

CASES = [json.loads(line) for line in Path(__file__).with_name("refusal_cases.jsonl").read_text("utf-8").splitlines()]


def test_the_cases_are_many_distinct_and_half_of_them_are_no_refusals():
    assert len(CASES) >= 80
    assert len({case["text"] for case in CASES}) == len(CASES)
    assert 0.4 <= sum(case["refusal"] for case in CASES) / len(CASES) <= 0.6
    assert {case["language"] for case in CASES if case["refusal"]} >= {"en", "de", "fr", "es", "it", "pt", "zh", "ja"}
    assert {case["language"] for case in CASES if not case["refusal"]} >= {
        "en",
        "de",
        "fr",
        "es",
        "it",
        "pt",
        "zh",
        "ja",
    }


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case['language']}" for n, case in enumerate(CASES)])
def test_a_labelled_case(case):
    assert is_refusal(case["text"]) is case["refusal"], (case, find_refusal(case["text"]))


@pytest.mark.parametrize("case", [c for c in CASES if c["language"] == "en"], ids=lambda case: case["text"][:30])
def test_case_quotes_and_white_space_do_not_matter(case):
    for text in (
        case["text"].upper(),
        re.sub(r"(?<=\w)['’](?=\w)", "’", case["text"]),
        re.sub(r"(?<=\w)['’](?=\w)", "'", case["text"]),
        f"\n  {case['text']} \n",
        f"**{case['text']}**",
    ):
        assert is_refusal(text) is case["refusal"], text


REFUSALS = [c["text"] for c in CASES if c["refusal"] and c["language"] == "en"]


@pytest.mark.parametrize("text", REFUSALS, ids=lambda text: text[:30])
def test_a_real_answer_beside_a_refusal_makes_it_an_answer(text):
    assert not is_refusal(f"{text.rstrip('.')}. The answer is Paris.")
    assert not is_refusal(f"The answer is Paris. {text}")


@pytest.mark.parametrize("text", REFUSALS, ids=lambda text: text[:30])
def test_politeness_around_a_refusal_leaves_it_one(text):
    assert is_refusal(
        f"I'm so sorry. {text.rstrip('.')}. Please consult a professional. Let me know if I can help you otherwise!"
    )


def test_the_rule_names_language_and_kind():
    assert find_refusal("Sorry, no idea!").rule == "en: does not know"
    assert find_refusal("I can’t help with that.").clause == "i cannot help with that"
    assert find_refusal("The context does not mention it.").rule == "en: no information"
    assert find_refusal("I must decline to answer.").rule == "en: declines"
    assert find_refusal("我不知道。").rule == "zh: does not know"
    assert re.fullmatch("[0-9a-f]{8}", refusal_fingerprint())


def test_of_the_reference_answers_only_those_that_refuse_are_refusals(shared_data):
    """Answers of TruthfulQA: what is flagged is an "I have no comment" of some kind, never a misconception."""
    questions = load_truthfulqa(shared_data("TruthfulQA.csv"))
    flagged = {answer for q in questions for answer in q.correct if is_refusal(answer)}
    assert {answer for q in questions for answer in q.incorrect if is_refusal(answer)} == {"Unknown"}  # of one question
    assert flagged >= {"I have no comment", "I don't know", "Unknown", "I am an AI and I don't know the answer"}
    assert len(flagged) <= 20
    assert all(
        re.search(r"comment|know|unknown|enough information|opinion|ambiguous", answer.lower()) for answer in flagged
    )


@given(st.text(max_size=300))
def test_any_text_is_read(text):
    assert is_refusal(text) in (True, False)


@pytest.mark.parametrize(
    "unit", ["i do not know, ", "sorry, ", "the context ", "any enough ", "i cannot ", "a", "不知道", "は"]
)
def test_long_text_is_read_in_no_time(unit):
    """No pattern goes wild on repetition; beyond the limit nothing is read."""
    assert is_refusal((unit * 2_000)[:LONGEST]) in (True, False)
    assert not is_refusal("I don't know. " * 1_000)
