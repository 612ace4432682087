"""CRAG and Self-RAG: every branch, on a model that says what the test tells it to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.evaluation.systems.base import Answer
from mdl_torch.evaluation.systems.crag import CRAG
from mdl_torch.evaluation.systems.self_rag import SelfRAG
from mdl_torch.generation.backend import Request, Sampling
from mdl_torch.generation.prompts import Prompt, ask, combine, critique, grade, inject
from mdl_torch.generation.scripted import ScriptedBackend

QUESTION = "What is tea?"
GRADES = st.lists(st.sampled_from(["Correct", "Incorrect", "Ambiguous", None]), max_size=7)


def item(*memories):
    return SimpleNamespace(question=SimpleNamespace(text=QUESTION), memories=list(memories))


def answer(system, item, says) -> tuple[Answer, list[Prompt]]:
    """The answer, and all prompts in their order; ``says`` maps a prompt to a text."""
    backend = ScriptedBackend(lambda request: says(prompts[request.key]))
    steps, prompts, asked, sent = system.answer(item), {}, [], None
    while True:
        try:
            yielded = steps.send(sent)
        except StopIteration as done:
            return done.value, asked
        several = [yielded] if isinstance(yielded, Prompt) else yielded
        requests = []
        for prompt in several:
            key = str(len(asked))
            asked.append(prompt)
            prompts[key] = prompt
            requests.append(Request.of(prompt, key))
        found = [
            (backend.choose if request.form else lambda one: backend.generate(one, Sampling()))([request])[0]
            for request in requests
        ]
        sent = found[0] if isinstance(yielded, Prompt) else found


def grader(grades, **answers):
    """Grades by memory, and an answer by the kind of prompt."""

    def says(prompt):
        if prompt.form is not None:
            return grades[prompt.user.split("Memory: ")[1]]
        kind = "combined" if "own knowledge:" in prompt.user else "injected" if "emories" in prompt.user else "alone"
        return answers[kind]

    return says


# ------------------------------------------------------------------------------------------------------------- CRAG


def test_a_correct_memory_is_refined_and_used_alone():
    memories = ["Tea is a drink.", "Tea is a metal.", "Who knows?"]
    grades = {"Tea is a drink.": "Correct", "Tea is a metal.": "Grade: Incorrect.", "Who knows?": "**Ambiguous**"}
    found, asked = answer(CRAG(), item(*memories), grader(grades, injected="A drink."))
    assert asked == [*(grade(QUESTION, memory) for memory in memories), inject(QUESTION, ["Tea is a drink."])]
    assert (found.text, found.injected) == ("A drink.", True)
    assert found.notes == {
        "action": "Correct",
        "memories graded Correct": 1,
        "memories graded Incorrect": 1,
        "memories graded Ambiguous": 1,
        "grades not read": 0,
        "strips": 0,
    }


def test_initials_and_abbreviations_end_no_sentence():
    """Two sentences are one strip: most memories that seem to have two have one."""
    memory = "Sherlock Holmes and Dr. Watson lived in Baker Street."
    _, asked = answer(CRAG(), item(memory), grader({memory: "Correct"}, injected="They did."))
    assert asked == [grade(QUESTION, memory), inject(QUESTION, [memory])]


@pytest.mark.parametrize(
    ("rule", "grades", "action"),
    [
        ("any", ["Correct", None], "Correct"),
        ("any", ["Incorrect", None], "undecided"),
        ("any", ["Ambiguous", None], "undecided"),
        ("unanimous", ["Correct", None], "undecided"),
        ("unanimous", ["Correct", "Incorrect", None], "Ambiguous"),
        ("unanimous", ["Ambiguous", None], "Ambiguous"),
    ],
)
def test_a_store_that_hangs_on_an_unread_grade_is_counted_apart(rule, grades, action):
    memories = [f"Memory {n}." for n in range(len(grades))]
    said = dict(zip(memories, [grade or "?" for grade in grades], strict=True))
    found, _ = answer(CRAG(rule=rule), item(*memories), grader(said, alone="a", combined="b", injected="c"))
    assert found.notes["action"] == action


def test_a_memory_of_several_sentences_is_taken_apart():
    """What is not Correct of it is left out; a memory of one sentence is not graded again."""
    long, short = "Tea is a drink. It is made of iron! People like it.", "Tea is drunk hot."
    grades = {
        long: "Correct",
        short: "Correct",
        "Tea is a drink.": "Correct",
        "It is made of iron!": "Incorrect",
        "People like it.": "Correct, I think",
    }
    found, asked = answer(CRAG(), item(long, short), grader(grades, injected="A drink."))
    strips = ["Tea is a drink.", "It is made of iron!", "People like it."]
    assert asked[2:5] == [grade(QUESTION, strip) for strip in strips]
    assert asked[5] == inject(QUESTION, ["Tea is a drink.", short])
    assert (found.notes["strips"], found.notes["grades not read"]) == (3, 1)


def test_a_memory_stays_whole_if_none_of_its_sentences_would():
    memory = "Tea is a drink. It is hot. So it is."
    grades = {memory: "Correct", "Tea is a drink.": "Incorrect", "It is hot.": "Ambiguous", "So it is.": "Incorrect"}
    _, asked = answer(CRAG(), item(memory), grader(grades, injected="A drink."))
    assert asked[-1] == inject(QUESTION, [memory])


def test_incorrect_memories_are_not_used():
    memories = ["Tea is a metal.", "Bananas grow in bunches."]
    found, asked = answer(CRAG(), item(*memories), grader(dict.fromkeys(memories, "Incorrect"), alone="A drink."))
    assert asked[-1] == ask(QUESTION)
    assert len(asked) == 3
    assert (found.text, found.injected, found.notes["action"]) == ("A drink.", False, "Incorrect")


def test_in_doubt_the_memories_stand_beside_the_models_own_answer():
    memories = ["Tea is a metal.", "Some drink it.", "Hm."]
    grades = {"Tea is a metal.": "Incorrect", "Some drink it.": "Ambiguous", "Hm.": "I cannot say"}
    found, asked = answer(CRAG(), item(*memories), grader(grades, alone="A plant.", combined="A drink."))
    assert asked[3:] == [ask(QUESTION), combine(QUESTION, ["Some drink it.", "Hm."], "A plant.")]
    assert (found.text, found.injected, found.notes["action"]) == ("A drink.", True, "undecided")
    assert found.notes["grades not read"] == 1  # had it been Correct, the store would have been


def test_grades_that_cannot_be_read_are_no_grades():
    """They are counted apart, so that no store passes for Ambiguous that nobody graded."""
    memories = ["Tea is a metal.", "Tea is a drink."]
    grades = dict.fromkeys(memories, "Correct or Incorrect")
    found, asked = answer(CRAG(), item(*memories), grader(grades, alone="A plant.", combined="A drink."))
    assert asked[-1] == combine(QUESTION, memories, "A plant.")
    assert (found.notes["action"], found.notes["grades not read"]) == ("undecided", 2)


def test_without_memories_there_is_nothing_to_correct():
    found, asked = answer(CRAG(), item(), grader({}, alone="A drink."))
    assert (asked, found.injected, found.notes["action"]) == ([ask(QUESTION)], False, "no memories")


def test_the_rules_differ_on_mixed_stores():
    memories = ["Tea is a drink.", "Tea is a metal."]
    grades = {"Tea is a drink.": "Correct", "Tea is a metal.": "Incorrect"}
    says = grader(grades, alone="A plant.", combined="Perhaps a drink.", injected="A drink.")
    assert answer(CRAG(), item(*memories), says)[0].text == "A drink."
    found, asked = answer(CRAG("crag_unanimous", "unanimous"), item(*memories), says)
    assert asked[-1] == combine(QUESTION, ["Tea is a drink."], "A plant.")
    assert (found.text, found.notes["action"]) == ("Perhaps a drink.", "Ambiguous")


@given(GRADES)
def test_actions_follow_the_rule(grades):
    given = [one for one in grades if one is not None]
    any_action, all_action = CRAG().action(grades), CRAG("x", "unanimous").action(grades)
    assert (any_action == "Correct") == ("Correct" in given)
    assert (all_action == "Correct") == (bool(grades) and grades.count("Correct") == len(grades))
    for action in (any_action, all_action):
        assert (action == "Incorrect") == (grades.count("Incorrect") == len(grades))


def test_rules_and_wording_are_in_the_identity(monkeypatch):
    assert CRAG().identity != CRAG(rule="unanimous").identity
    before = CRAG().identity, SelfRAG().identity
    monkeypatch.setattr("mdl_torch.generation.prompts.GRADE_INSTRUCTION", "changed")
    monkeypatch.setattr("mdl_torch.generation.prompts.CRITIQUE_EXAMPLE", "changed")
    assert not {CRAG().identity, SelfRAG().identity} & set(before)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match=r"unknown rule 'most'.*any"):
        CRAG(rule="most")


# --------------------------------------------------------------------------------------------------------- Self-RAG


def critic(line, draft="A metal.", alone="A drink."):
    def says(prompt):
        if prompt.form is not None:
            return line
        return draft if "emories" in prompt.user else alone

    return says


MEMORIES = ["Tea is a metal.", "Tea is shiny."]
FINE = "ISREL: Relevant; ISSUP: Fully supported; ISUSE: 4"


def test_a_draft_that_passes_stands():
    found, asked = answer(SelfRAG(), item(*MEMORIES), critic(FINE))
    assert asked == [inject(QUESTION, MEMORIES), critique(QUESTION, MEMORIES, "A metal.")]
    assert (found.text, found.injected) == ("A metal.", True)
    assert found.notes == {
        "ISREL": "Relevant",
        "ISSUP": "Fully supported",
        "ISUSE": "4",
        "tokens not read": 0,
        "regenerated": False,
    }


@pytest.mark.parametrize(
    "line",
    [
        "ISREL: Irrelevant; ISSUP: Fully supported; ISUSE: 5",
        "ISREL: Relevant; ISSUP: No support; ISUSE: 5",
        "isrel = irrelevant\nissup = NO SUPPORT\nisuse = 1",
        "ISREL: Irrelevant",
    ],
)
def test_an_irrelevant_or_unsupported_draft_is_thrown_away(line):
    found, asked = answer(SelfRAG(), item(*MEMORIES), critic(line))
    assert asked[2:] == [ask(QUESTION)]
    assert (found.text, found.injected, found.notes["regenerated"]) == ("A drink.", False, True)


@pytest.mark.parametrize(
    ("line", "unread"),
    [
        ("ISREL: Relevant; ISSUP: Partially supported; ISUSE: 1", 0),
        ("ISREL: Relevant or Irrelevant; ISSUP: none; ISUSE: 9", 3),
        ("The draft looks irrelevant.", 3),
        ("", 3),
        ("ISREL: Relevant; ISSUP: Fully supported", 1),
    ],
)
def test_neither_low_use_nor_an_unread_token_condemns_a_draft(line, unread):
    found, asked = answer(SelfRAG(), item(*MEMORIES), critic(line))
    assert (found.text, len(asked), found.notes["regenerated"]) == ("A metal.", 2, False)
    assert found.notes["tokens not read"] == unread


def test_a_draft_without_memories_injects_nothing():
    found, asked = answer(SelfRAG(), item(), critic(FINE, alone="A drink."))
    assert asked == [ask(QUESTION)]
    assert (found.text, found.injected, found.notes["regenerated"]) == ("A drink.", False, False)
