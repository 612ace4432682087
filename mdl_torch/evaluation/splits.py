"""Which questions calibrate and which are evaluated: never the same (Section 3.4)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdl_torch.risk import RISK_TOLERANCE, RiskPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdl_torch.evaluation.questions import Question

CALIBRATION_QUESTIONS = 80
"""A data set (Section 3.4)."""

TOP_RISK = 0.85
"""A of health, law and finance: the high risk of Tables 4 and 5."""

TOP_RISK_QUESTIONS = 60
"""At A = 0.85 in a stratified sample."""


@dataclass(frozen=True)
class Split:
    """Questions for two purposes; no question, and no question of the same words, is in both.

    Attributes:
        calibration: To fit range and thresholds on.
        evaluated: To report on.
        seed: That they were drawn with.
        top_risk: Questions at A = 0.85 among the evaluated.
        top_risk_left: Those that neither part has: 0 where a stratified sample could not get more.
        top_risk_by_chance: As many would be evaluated without strata. Where ``top_risk`` is more, overall rates are not
            those of the data set; rates within a tier are.
    """

    calibration: tuple[Question, ...]
    evaluated: tuple[Question, ...]
    seed: int
    top_risk: int
    top_risk_left: int
    top_risk_by_chance: int


def split_questions(
    questions: Sequence[Question],
    *,
    evaluated: int | None = None,
    calibration: int = CALIBRATION_QUESTIONS,
    at_top_risk: int = 0,
    risk: RiskPolicy | None = None,
    seed: int = 0,
) -> Split:
    """A calibration split and an evaluation sample.

    Questions are ordered by the SHA-256 of seed and words, so that neither the order of the file nor its ids matter.
    The first ``calibration`` of them calibrate, whatever is evaluated; the next are evaluated. A larger sample contains
    the smaller one. Questions of the same words (in any case) count as one; the first in the file stands for them.

    A stratified sample takes questions at A = 0.85 first until it has ``at_top_risk`` of them, or all that there are;
    if chance gives more, it keeps them.

    Args:
        questions: Of one data set.
        evaluated: How many to evaluate; all that are left by default.
        calibration: How many calibrate.
        at_top_risk: How many of the evaluated are at A = 0.85, at least (``TOP_RISK_QUESTIONS``); 0 for no strata.
        risk: The policy that gives A; the package's by default.
        seed: Of the draw.

    Raises:
        ValueError: There are not as many questions, or a number is out of range, or a category unknown to the policy.

    Example:
        >>> from mdl_torch.evaluation.questions import Question
        >>> kinds = ["Law"] + ["Weather"] * 8
        >>> asked = [Question(f"q{n}", f"Is {n} even?", ("Yes",), ("No",), kinds[n % 9]) for n in range(90)]
        >>> plain, stratified = (split_questions(asked, evaluated=9, calibration=20, at_top_risk=n) for n in (0, 5))
        >>> plain.top_risk < stratified.top_risk == 5, plain.calibration == stratified.calibration
        (True, True)
    """
    ordered = _ordered(questions, seed)
    if not 0 <= calibration < len(ordered):
        raise ValueError(f"calibration must be from 0 to fewer than the {len(ordered)} questions, got {calibration}")
    rest = ordered[calibration:]
    count = len(rest) if evaluated is None else evaluated
    if not 1 <= count <= len(rest):
        raise ValueError(
            f"evaluated must be from 1 to the {len(rest)} questions that do not calibrate, got {evaluated}"
        )
    if not 0 <= at_top_risk <= count:
        raise ValueError(f"at_top_risk must be from 0 to the {count} evaluated, got {at_top_risk}")
    policy = RiskPolicy.default() if risk is None else risk
    top = [is_top_risk(question, policy) for question in rest]
    chosen = _stratified(top, count, at_top_risk)
    taken = sum(top[place] for place in chosen)
    return Split(
        calibration=tuple(ordered[:calibration]),
        evaluated=tuple(rest[place] for place in chosen),
        seed=seed,
        top_risk=taken,
        top_risk_left=sum(top) - taken,
        top_risk_by_chance=sum(top[:count]),
    )


def is_top_risk(question: Question, policy: RiskPolicy) -> bool:
    """Whether a question is at A = 0.85.

    Raises:
        ValueError: The policy does not know its category.

    Example:
        >>> from mdl_torch.evaluation.questions import Question
        >>> is_top_risk(Question("q", "Which dose is safe?", ("One",), ("Two",)), RiskPolicy.default())
        True
    """
    assessed = policy.assess(question.text, category=question.category).value
    return abs(assessed - TOP_RISK) <= RISK_TOLERANCE


def _ordered(questions: Sequence[Question], seed: int) -> list[Question]:
    """Each once, by hash."""
    by_words: dict[str, Question] = {}
    for question in questions:
        by_words.setdefault(" ".join(question.text.casefold().split()), question)
    keys = {words: hashlib.sha256(f"{seed}:{words}".encode(errors="replace")).digest() for words in by_words}
    return [by_words[words] for words in sorted(by_words, key=keys.__getitem__)]


def _stratified(top: Sequence[bool], count: int, wanted: int) -> list[int]:
    """Places of a sample with at least ``wanted`` of the top, or all of them, in order."""
    of_top = [place for place, is_top in enumerate(top) if is_top]
    others = [place for place, is_top in enumerate(top) if not is_top]
    by_chance = sum(top[:count])
    taken = max(min(wanted, len(of_top)), by_chance)
    taken = max(taken, count - len(others))  # where there are too few others
    return sorted([*of_top[:taken], *others[: count - taken]])
