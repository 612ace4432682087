"""The two systems that trust what most memories say, on answers given by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mdl_torch.evaluation.agreement import Comparer, Likeness
from mdl_torch.evaluation.questions import Question
from mdl_torch.evaluation.systems.base import ABSTENTION, Answer, Item
from mdl_torch.evaluation.systems.consensus import IsolatedVote, LargestCluster
from mdl_torch.generation.backend import Completion
from mdl_torch.generation.prompts import Prompt, ask, inject
from mdl_torch.retrieval import Memory, Retrieval
from mdl_torch.stance import detector

TEA = "What is tea?"
DRINK, DRINK_TOO, LIE = "Tea is a drink.", "Tea is a kind of drink.", "Tea is not a drink."
CATS, TRAINS = "Cats sleep a lot.", "Trains run on rails."


@pytest.fixture(scope="module")
def compare(encoder):
    return Comparer(encoder, detector("lexical"))


def item_of(memories, compare):
    store = Retrieval(TEA, memories=tuple(Memory(text=text) for text in memories))
    return Item(Question("tea", TEA, (DRINK,), (LIE,)), store, decision=None, compare=compare)


def driven(system, item, *replies):
    """All that the system asks, in its shape, and its answer; a list of replies answers a list of prompts."""
    steps = system.answer(item)
    asked = [next(steps)]
    for reply in replies:
        texts = [reply] if isinstance(reply, str) else reply
        completions = [Completion(text, "stop", 1, 1, 0.0, "scripted") for text in texts]
        assert isinstance(asked[-1], Prompt) == isinstance(reply, str)
        assert isinstance(reply, str) or len(asked[-1]) == len(completions)
        try:
            asked.append(steps.send(completions[0] if isinstance(reply, str) else completions))
        except StopIteration as done:
            return asked, done.value
    raise AssertionError(f"it asks for more: {asked[-1]}")


# ----------------------------------------------------------------------------------------------------- largest cluster


@pytest.mark.parametrize(
    ("memories", "kept", "corroborated"),
    [
        ([LIE, CATS, DRINK_TOO, TRAINS, DRINK], [DRINK_TOO, DRINK], True),  # in the order of the store
        ([DRINK, LIE, LIE, DRINK_TOO, LIE], [LIE, LIE, LIE], True),  # three copies of a lie win
        ([DRINK, DRINK], [DRINK, DRINK], True),
        ([CATS, DRINK, TRAINS], [], False),  # nothing is borne out
        ([DRINK, LIE], [], False),  # nor is either of two that contradict each other
        ([LIE], [LIE], False),  # nothing could bear it out
        (["", "", ""], [], False),  # blank memories do not bear each other out
        ([], [], False),
    ],
)
def test_the_largest_cluster_goes_in_alone(compare, memories, kept, corroborated):
    asked, answer = driven(LargestCluster(), item_of(memories, compare), "It is wet.")
    assert asked == [inject(TEA, kept) if kept else ask(TEA)]
    notes = {"memories kept": len(kept), "memories": len(memories), "corroborated": corroborated}
    assert answer == Answer("It is wet.", injected=bool(kept), notes=notes)


def test_its_threshold_says_which_memories_agree(compare):
    memories = [DRINK, DRINK_TOO, CATS]
    assert 0.7 < compare(memories).similarity[0, 1] < 0.99
    assert driven(LargestCluster(0.7), item_of(memories, compare), "")[0] == [inject(TEA, memories[:2])]
    assert driven(LargestCluster(0.99), item_of(memories, compare), "")[0] == [ask(TEA)]


# -------------------------------------------------------------------------------------------------------- isolated vote


def vote(compare, memories, answers, **settings):
    """The answer by the answers to each memory; they must all have been asked for at once."""
    asked, answer = driven(IsolatedVote(**settings), item_of(memories, compare), answers)
    assert asked == [[inject(TEA, [memory]) for memory in memories]]
    return answer


@pytest.mark.parametrize(
    ("answers", "text", "votes", "agreeing"),
    [
        ([CATS, DRINK_TOO, DRINK, DRINK], DRINK, 4, 3),  # the medoid, not the first
        ([DRINK, DRINK_TOO, CATS], DRINK, 3, 2),  # of two equal medoids the first
        ([DRINK, DRINK_TOO, CATS, TRAINS], ABSTENTION, 4, 2),  # half is no majority
        ([DRINK, LIE], ABSTENTION, 2, 1),
        ([CATS, DRINK, TRAINS], ABSTENTION, 3, 1),
        ([LIE, DRINK, LIE, DRINK, LIE], LIE, 5, 3),  # three copies of a lie win
        (["I don't know.", " ", DRINK, "", "I cannot answer that."], DRINK, 1, 1),  # who says nothing does not vote
        (["I don't know.", "I don't know.", DRINK, CATS], ABSTENTION, 2, 1),
        (["I don't know.", "", " \n"], ABSTENTION, 0, 0),
        ([DRINK], DRINK, 1, 1),
    ],
)
def test_what_more_than_half_of_the_votes_agree_on_is_the_answer(compare, answers, text, votes, agreeing):
    memories = [f"Memory number {number}." for number in range(len(answers))]
    notes = {"votes": votes, "agreeing": agreeing, "majority": text != ABSTENTION}
    assert vote(compare, memories, answers) == Answer(text, injected=text != ABSTENTION, notes=notes)


def test_each_copy_of_a_memory_votes(compare):
    assert vote(compare, [LIE, DRINK, LIE], [LIE, DRINK, LIE]).text == LIE


def test_without_memories_the_model_answers_alone(compare):
    asked, answer = driven(IsolatedVote(), item_of([], compare), "A drink.")
    assert asked == [ask(TEA)]
    assert answer == Answer("A drink.", injected=False, notes={"votes": 0, "agreeing": 0, "majority": False})


def test_the_medoid_is_the_member_that_is_most_like_the_others():
    def compare(texts):
        assert texts == ["a", "b", "c", "d"]
        cosines = [[1, 0.6, 0.5, 0.1], [0.6, 1, 0.9, 0.1], [0.5, 0.9, 1, 0.1], [0.1, 0.1, 0.1, 1]]
        return Likeness(np.array(cosines), np.zeros((4, 4), dtype=bool))

    assert vote(compare, ["m"] * 5, ["a", "b", "", "c", "d"]).text == "b"


def test_its_threshold_says_which_answers_agree(compare):
    assert vote(compare, [LIE, CATS], [DRINK, DRINK_TOO], threshold=0.7).text == DRINK
    assert vote(compare, [LIE, CATS], [DRINK, DRINK_TOO], threshold=0.99).text == ABSTENTION


# -------------------------------------------------------------------------------------------------------- both of them


@pytest.mark.parametrize(("system", "name"), [(LargestCluster, "largest_cluster"), (IsolatedVote, "isolated_vote")])
def test_records_of_another_threshold_are_told_apart(system, name):
    assert (system().name, system().gate, system().learns) == (name, None, False)
    assert system(0.5).identity == system().identity
    assert len({system(value).identity for value in (0.5, 0.6, 0.6000001, 1)}) == 4
    with pytest.raises(ValueError, match=r"threshold must be in \(0, 1\], got 0"):
        system(0)
