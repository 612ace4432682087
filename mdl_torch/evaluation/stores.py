"""Memory stores as the paper builds them: the conflicting positions on a question, and distractors (Section 5.1)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, get_args

from mdl_torch.errors import unknown_name
from mdl_torch.evaluation.questions import Condition, Question, load_halueval, load_truthfulqa
from mdl_torch.retrieval import Memory, Retrieval

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

DISTRACTORS = 2
"""Records drawn from other questions, as irrelevant noise."""

OFF_TOPIC = "off_topic"
"""What the ids of memories begin with in that condition, so that no output can pass for the paper's."""


def stores(
    questions: Sequence[Question], *, seed: int = 0, answers: int | None = None, condition: Condition = "paper"
) -> Iterator[Retrieval]:
    """One retrieval a question: its answers right and wrong, its knowledge, and two right answers of other questions.

    A store depends on the seed, its question and the pool, not on what was drawn for other questions: skipping some, or
    asking for fewer answers, leaves the distractors of the rest as they are. A distractor is never an answer listed
    for the question itself, though another question may have the same one ("I have no comment").

    With ``condition="off_topic"`` every record is replaced by one of its kind of another question, each of a different
    one: as many memories, none on the matter. The paper's stores hardly reach low relevance; these do. No text is drawn
    that the question itself lists, and none twice.

    Args:
        questions: Of one data set; also the pool that distractors come from.
        seed: Of distractors and order.
        answers: How many correct, and how many incorrect answers go in; all by default. Knowledge always does.
        condition: ``paper`` or ``off_topic``.

    Raises:
        ValueError: There are too few other questions to draw from, or the condition is unknown.

    Example:
        >>> asked = [Question(f"q{i}", f"Is {i} even?", (f"{i} is.",), (f"{i} is not.",)) for i in range(5)]
        >>> [memory.id for memory in next(stores(asked)).memories]
        ['correct-0', 'incorrect-0', 'distractor-1', 'distractor-0']
        >>> sorted(memory.id for memory in next(stores(asked, condition="off_topic")).memories)[0]
        'off_topic-correct-0'
    """
    _check(questions, condition)
    for place in range(len(questions)):
        yield _store(questions, place, seed, answers, condition)


def build_stores(
    pool: Sequence[Question], questions: Sequence[Question], *, condition: Condition = "paper", seed: int = 0
) -> list[Retrieval]:
    """The stores of some of the questions of a pool, as ``stores`` of the whole pool builds them.

    Args:
        pool: The data set.
        questions: Those of it that stores are wanted for, told by their ids.
        condition: ``paper`` or ``off_topic``.
        seed: Of distractors and order.

    Raises:
        ValueError: There are too few other questions to draw from, a question is not of the pool, or the condition is
            unknown.

    Example:
        >>> asked = [Question(f"q{i}", f"Is {i} even?", (f"{i} is.",), (f"{i} is not.",)) for i in range(5)]
        >>> build_stores(asked, asked[3:4])[0] == list(stores(asked))[3]
        True
    """
    _check(pool, condition)
    places = {question.id: place for place, question in enumerate(pool)}
    for question in questions:
        if question.id not in places or pool[places[question.id]] != question:
            raise ValueError(f"questions must be of the pool, got {question.id!r}, which is not")
    return [_store(pool, places[question.id], seed, None, condition) for question in questions]


def truthfulqa_retrievals(path: str | os.PathLike[str], *, seed: int = 0) -> Iterator[Retrieval]:
    """The stores of a TruthfulQA CSV, as ``mdl score`` decides on them.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no TruthfulQA CSV; the message names the line.
    """
    return stores(load_truthfulqa(path), seed=seed)


def halueval_retrievals(path: str | os.PathLike[str], *, seed: int = 0) -> Iterator[Retrieval]:
    """The stores of HaluEval QA, as ``mdl score`` decides on them. They have no category: keywords tell their risk.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no HaluEval QA; the message names the line.
    """
    return stores(load_halueval(path), seed=seed)


def _check(pool: Sequence[Question], condition: str) -> None:
    if condition not in get_args(Condition):
        raise ValueError(unknown_name("condition", condition, get_args(Condition)))
    if len(pool) <= DISTRACTORS:
        raise ValueError(f"questions must be more than {DISTRACTORS} to draw distractors from, got {len(pool)}")


def _store(pool: Sequence[Question], place: int, seed: int, answers: int | None, condition: Condition) -> Retrieval:
    question = pool[place]
    rng = random.Random(f"{seed}:{question.id}:{question.text}")
    others = [other if other < place else other + 1 for other in rng.sample(range(len(pool) - 1), DISTRACTORS)]
    memories = [
        *_named("correct", question.correct[:answers]),
        *_named("incorrect", question.incorrect[:answers]),
        *_named("knowledge", [question.knowledge] if question.knowledge is not None else []),
        *_named("distractor", [pool[other].correct[0] for other in others]),
    ]
    if condition == "off_topic":
        rng = random.Random(f"{seed}:{OFF_TOPIC}:{question.id}:{question.text}")
        memories = _off_topic(memories, pool, place, rng)
    rng.shuffle(memories)
    return Retrieval(id=question.id, query=question.text, memories=tuple(memories), category=question.category)


def _off_topic(memories: Sequence[Memory], pool: Sequence[Question], place: int, rng: random.Random) -> list[Memory]:
    """For each memory one of the same kind of another question."""
    own = pool[place]
    taken = {*own.correct, *own.incorrect, own.knowledge}
    count = min(len(pool) - 1, 4 * len(memories) + 16)  # some will not do
    others = [pool[other if other < place else other + 1] for other in rng.sample(range(len(pool) - 1), count)]
    found = []
    for memory in memories:
        kind = str(memory.id).split("-")[0]
        for number, other in enumerate(others):
            texts = {"incorrect": other.incorrect, "knowledge": (other.knowledge,)}.get(kind, other.correct)
            text = next((text for text in texts if text is not None and text not in taken), None)
            if text is not None:
                found.append(Memory(text=text, id=f"{OFF_TOPIC}-{memory.id}"))
                taken.add(text)
                others.pop(number)
                break
        else:
            raise ValueError(
                f"questions must be more to draw {len(memories)} off-topic memories for {own.id!r} from, "
                f"got {len(pool)}"
            )
    return found


def _named(kind: str, texts: Sequence[str]) -> list[Memory]:
    return [Memory(text=text, id=f"{kind}-{number}") for number, text in enumerate(texts)]
