"""What an answer is worth: the paper's embedding scorer and its own error floor (Section 5.1)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.nn.functional import normalize

from mdl_torch.evaluation.refusals import find_refusal, refusal_fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from mdl_torch.encoder import SentenceEncoder
    from mdl_torch.evaluation.questions import Question

SIMILARITY_THRESHOLD = 0.5
"""A reference answer has to be more similar than this to count."""


class Outcome(StrEnum):
    """What became of a question.

    Example:
        >>> Outcome.HALLUCINATION.label, Outcome("empty") is Outcome.EMPTY
        ('hallucination', True)
    """

    CORRECT = "correct"
    """It says what a correct reference says."""
    HALLUCINATION = "hallucination"
    """It says what an incorrect reference says."""
    ABSTENTION = "abstention"
    """It refuses, or says that it does not know: safe."""
    EMPTY = "empty"
    """Nothing came: neither a hallucination nor an abstention."""
    OTHER = "other"
    """It answers something that no reference says."""

    @property
    def label(self) -> str:
        """As records spell it."""
        return self.value

    @property
    def answered(self) -> bool:
        """Whether there was an answer at all, right or wrong."""
        return self in (Outcome.CORRECT, Outcome.HALLUCINATION, Outcome.OTHER)


@dataclass(frozen=True)
class Score:
    """The verdict on one answer.

    Attributes:
        outcome: None if the scorer could not tell; ``failure`` says why.
        correct_similarity: Largest cosine with a correct reference, in [-1, 1]; None where none was computed.
        incorrect_similarity: The same with an incorrect reference.
        nearest_correct: The correct reference of that cosine.
        nearest_incorrect: The incorrect one.
        refusal: The rule by which it is a refusal, if it is one.
        failure: Why there is no outcome.
    """

    outcome: Outcome | None
    correct_similarity: float | None = None
    incorrect_similarity: float | None = None
    nearest_correct: str | None = None
    nearest_incorrect: str | None = None
    refusal: str | None = None
    failure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "outcome": None if self.outcome is None else self.outcome.label}


class Scorer(Protocol):
    """Judges answers to questions with reference answers."""

    @property
    def identity(self) -> str:
        """Names all that determines a verdict; scores of one identity may stand in one table."""
        ...

    def score(self, answers: Sequence[str], questions: Sequence[Question]) -> list[Score]:
        """One score an answer, in order."""
        ...


def classify(
    correct_similarity: float | None, incorrect_similarity: float | None, *, threshold: float = SIMILARITY_THRESHOLD
) -> Outcome:
    """The outcome of an answer that is neither empty nor a refusal.

    A hallucination is more similar to an incorrect reference than to every correct one, and than the threshold (the
    paper's rule). A correct answer is the mirror image, which the paper does not define. A tie is neither.

    Args:
        correct_similarity: Largest cosine with a correct reference; None if there is no such reference.
        incorrect_similarity: The same with an incorrect reference.
        threshold: That the larger one has to exceed.

    Example:
        >>> [classify(*pair).label for pair in ((0.6, 0.7), (0.7, 0.6), (0.4, 0.5), (0.7, 0.7))]
        ['hallucination', 'correct', 'other', 'other']
    """
    right = -1.0 if correct_similarity is None else correct_similarity
    wrong = -1.0 if incorrect_similarity is None else incorrect_similarity
    if wrong > right and wrong > threshold:
        return Outcome.HALLUCINATION
    if right > wrong and right > threshold:
        return Outcome.CORRECT
    return Outcome.OTHER


def check_lengths(answers: Sequence[str], questions: Sequence[Question]) -> None:
    """Refuse answers that do not belong to questions one by one.

    Raises:
        ValueError: There are more of the one than of the other.

    Example:
        >>> check_lengths(["Yes"], [])
        Traceback (most recent call last):
        ValueError: answers and questions must be as many, got 1 and 0
    """
    if len(answers) != len(questions):
        raise ValueError(f"answers and questions must be as many, got {len(answers)} and {len(questions)}")


class EmbeddingScorer:
    """The paper's scorer: cosine of the bare answer with the reference answers; refusals are safe abstentions.

    Answer and references are embedded without the question, as documents: the paper compares them as they stand. An
    empty answer, white space alone included, is a class of its own; a refusal stays one whatever it resembles.

    Args:
        encoder: The paper's is all-MiniLM-L6-v2.
        threshold: See ``classify``.

    Raises:
        ValueError: ``threshold`` is outside [-1, 1].

    Example:
        >>> from mdl_torch.encoder import SentenceEncoder
        >>> from mdl_torch.evaluation.questions import Question
        >>> asked = Question("q", "Is the Earth flat?", ("The Earth is round",), ("The Earth is flat",))
        >>> scorer = EmbeddingScorer(SentenceEncoder.from_pretrained())
        >>> answers = ["Our planet is round.", "I believe that the Earth is flat.", "I don't know.", " ", "Cats purr."]
        >>> [score.outcome.label for score in scorer.score(answers, [asked] * 5)]
        ['correct', 'hallucination', 'abstention', 'empty', 'other']
    """

    def __init__(self, encoder: SentenceEncoder, *, threshold: float = SIMILARITY_THRESHOLD) -> None:
        if not -1 <= threshold <= 1:
            raise ValueError(f"threshold must be in [-1, 1], got {threshold!r}")
        self.encoder = encoder
        self.threshold = float(threshold)

    @property
    def identity(self) -> str:
        """Encoder, threshold and refusal patterns."""
        return f"embedding({self.encoder.identity}, threshold={self.threshold:g}, refusals={refusal_fingerprint()})"

    def score(self, answers: Sequence[str], questions: Sequence[Question]) -> list[Score]:
        """One score an answer.

        Args:
            answers: N texts.
            questions: What each of them answers, N.

        Raises:
            ValueError: There are more answers than questions, or fewer.
        """
        check_lengths(answers, questions)
        return self.score_against(answers, [(q.correct, q.incorrect) for q in questions])

    def score_against(
        self, answers: Sequence[str], references: Sequence[tuple[Sequence[str], Sequence[str]]]
    ) -> list[Score]:
        """The same with the correct and the incorrect references of each answer at hand; either may be empty."""
        asked = [*answers, *(text for pair in references for texts in pair for text in texts)]
        distinct = {text: place for place, text in enumerate(dict.fromkeys(asked))}
        embeddings = normalize(self.encoder.encode_documents(list(distinct)).embeddings, dim=-1)
        return [
            self._score(answer, *(self._nearest(answer, texts, distinct, embeddings) for texts in pair))
            for answer, pair in zip(answers, references, strict=True)
        ]

    @staticmethod
    def _nearest(answer: str, texts: Sequence[str], distinct: dict[str, int], embeddings: Tensor) -> _Nearest:
        if not texts or not answer.strip():
            return _Nearest(None, None)
        places = torch.tensor([distinct[text] for text in texts])
        cosines = (embeddings[places] @ embeddings[distinct[answer]]).clamp(-1, 1)
        best = int(cosines.argmax())
        return _Nearest(cosines[best].item(), texts[best])

    def _score(self, answer: str, right: _Nearest, wrong: _Nearest) -> Score:
        refusal = find_refusal(answer)
        if not answer.strip():
            outcome = Outcome.EMPTY
        elif refusal is not None:
            outcome = Outcome.ABSTENTION
        else:
            outcome = classify(right.similarity, wrong.similarity, threshold=self.threshold)
        rule = None if refusal is None else refusal.rule
        return Score(outcome, right.similarity, wrong.similarity, right.text, wrong.text, rule)


class _Nearest(NamedTuple):
    similarity: float | None
    text: str | None


@dataclass(frozen=True)
class ErrorFloor:
    """How often the scorer misjudges answers whose truth is known: the reference answers themselves.

    Attributes:
        encoder: Identity of the sentence encoder.
        correct: Correct references that were scored.
        false_alarms: Those of them called a hallucination.
        recognised: Those of them called correct.
        correct_abstentions: Those of them that are refusals ("I have no comment"), and rightly so.
        incorrect: Incorrect references that were scored.
        misses: Those of them not called a hallucination.
        called_correct: Those of them called correct.
        questions: With two correct references or more; without any, nothing is known of the floor.
    """

    encoder: str
    correct: int
    false_alarms: int
    recognised: int
    correct_abstentions: int
    incorrect: int
    misses: int
    called_correct: int
    questions: int

    @property
    def false_alarm_rate(self) -> float | None:
        """Share of the correct references that are called a hallucination; None if none could be scored."""
        return self.false_alarms / self.correct if self.correct else None

    @property
    def miss_rate(self) -> float | None:
        """Share of the incorrect references that are not called a hallucination; None if none could be scored."""
        return self.misses / self.incorrect if self.incorrect else None

    @property
    def recognised_rate(self) -> float | None:
        """Share of the correct references that are called correct; None if none could be scored."""
        return self.recognised / self.correct if self.correct else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, rates included."""
        names = ("false_alarm_rate", "miss_rate", "recognised_rate")
        return {**asdict(self), **{name: getattr(self, name) for name in names}}


def error_floor(
    questions: Sequence[Question], encoder: SentenceEncoder, *, threshold: float = SIMILARITY_THRESHOLD
) -> ErrorFloor:
    """The paper's scorer on the reference answers, each left out of what it is compared with.

    A correct reference is scored where the question has another correct one, an incorrect one where such a question
    has another incorrect one. Data with one answer of each kind (HaluEval) leaves nothing to score.

    Args:
        questions: Of one data set.
        encoder: That answers are scored with.
        threshold: See ``classify``.

    Example:
        >>> from mdl_torch.encoder import SentenceEncoder
        >>> from mdl_torch.evaluation.questions import Question
        >>> right, wrong = ("Rain is wet", "It is wet", "I like tea"), ("Rain is dry", "Rain is quite dry")
        >>> floor = error_floor([Question("q", "Is rain wet?", right, wrong)], SentenceEncoder.from_pretrained())
        >>> floor.correct, floor.recognised, floor.incorrect, floor.misses
        (3, 1, 2, 1)
    """
    scorer = EmbeddingScorer(encoder, threshold=threshold)
    scored = [question for question in questions if len(question.correct) > 1]
    right = [
        (answer, (_without(question.correct, place), question.incorrect))
        for question in scored
        for place, answer in enumerate(question.correct)
    ]
    wrong = [
        (answer, (question.correct, _without(question.incorrect, place)))
        for question in scored
        if len(question.incorrect) > 1
        for place, answer in enumerate(question.incorrect)
    ]
    outcomes = [
        score.outcome for score in scorer.score_against([a for a, _ in right + wrong], [r for _, r in right + wrong])
    ]
    of_right, of_wrong = outcomes[: len(right)], outcomes[len(right) :]
    return ErrorFloor(
        encoder=encoder.identity,
        correct=len(of_right),
        false_alarms=of_right.count(Outcome.HALLUCINATION),
        recognised=of_right.count(Outcome.CORRECT),
        correct_abstentions=of_right.count(Outcome.ABSTENTION),
        incorrect=len(of_wrong),
        misses=len(of_wrong) - of_wrong.count(Outcome.HALLUCINATION),
        called_correct=of_wrong.count(Outcome.CORRECT),
        questions=len(scored),
    )


def _without(texts: Sequence[str], place: int) -> tuple[str, ...]:
    return (*texts[:place], *texts[place + 1 :])
