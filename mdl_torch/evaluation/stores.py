"""Memory stores as the paper builds them: the conflicting positions on a question, and distractors (Section 5.1)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mdl_torch.evaluation.questions import Question, load_halueval, load_truthfulqa
from mdl_torch.retrieval import Memory, Retrieval

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

DISTRACTORS = 2
"""Records drawn from other questions, as irrelevant noise."""


def stores(questions: Sequence[Question], *, seed: int = 0, answers: int | None = None) -> Iterator[Retrieval]:
    """One retrieval a question: its answers right and wrong, its knowledge, and two right answers of other questions.

    A store depends on the seed, its question and the pool, not on what was drawn for other questions: skipping some, or
    asking for fewer answers, leaves the distractors of the rest as they are. A distractor is never an answer listed
    for the question itself, though another question may have the same one ("I have no comment").

    Args:
        questions: Of one data set; also the pool that distractors come from.
        seed: Of distractors and order.
        answers: How many correct, and how many incorrect answers go in; all by default. Knowledge always does.

    Raises:
        ValueError: There are too few other questions to draw distractors from.

    Example:
        >>> asked = [Question(f"q{i}", f"Is {i} even?", (f"{i} is.",), (f"{i} is not.",)) for i in range(3)]
        >>> [memory.id for memory in next(stores(asked)).memories]
        ['correct-0', 'incorrect-0', 'distractor-1', 'distractor-0']
    """
    if len(questions) <= DISTRACTORS:
        raise ValueError(f"questions must be more than {DISTRACTORS} to draw distractors from, got {len(questions)}")
    for place, question in enumerate(questions):
        rng = random.Random(f"{seed}:{question.id}:{question.text}")
        others = [other if other < place else other + 1 for other in rng.sample(range(len(questions) - 1), DISTRACTORS)]
        memories = [
            *_named("correct", question.correct[:answers]),
            *_named("incorrect", question.incorrect[:answers]),
            *_named("knowledge", [question.knowledge] if question.knowledge is not None else []),
            *_named("distractor", [questions[other].correct[0] for other in others]),
        ]
        rng.shuffle(memories)
        yield Retrieval(id=question.id, query=question.text, memories=tuple(memories), category=question.category)


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


def _named(kind: str, texts: Sequence[str]) -> list[Memory]:
    return [Memory(text=text, id=f"{kind}-{number}") for number, text in enumerate(texts)]
