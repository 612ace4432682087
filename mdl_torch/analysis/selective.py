"""Selective prediction, which the paper leaves out: what abstaining costs, and how well each score orders answers.

A system that may abstain answers a share of the questions, its coverage, and hallucinates in a share of those, its
risk. A score that is higher where an answer can be trusted gives a risk at every coverage, and a single number: the
area under that curve (Geifman & El-Yaniv, 2017; Geifman, Uziel & El-Yaniv, 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mdl_torch.evaluation.oracle import signals_of
from mdl_torch.evaluation.report import name_of
from mdl_torch.evaluation.results import REFERENCES, Rate, rate
from mdl_torch.evaluation.scoring import Outcome
from mdl_torch.evaluation.statistics import bootstrapped, drawn
from mdl_torch.evaluation.systems import SYSTEMS
from mdl_torch.evaluation.tables import Cell, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.statistics import Estimate

    Floats = NDArray[np.float64]
    Record = Mapping[str, Any]

BASELINES = {"M alone": 0, "R alone": 1, "1 − A alone": 2}
"""Scores that need no system, with the place of their signal."""


# ------------------------------------------------------------------------------------------------- numbers of arrays


@dataclass(frozen=True)
class RiskCoverage:
    """How a score orders answers.

    Attributes:
        system: Whose score; of ``BASELINES``, its name.
        coverage: k / n for k = 1 … n, ``(n,)``.
        risk: Share of hallucinations among the k most trusted answers, ``(n,)``; among ties their expected order.
        area: Mean of the risk over all coverages (AURC).
        best: Area of the order that has all hallucinations last.
        random: Area of any order by chance: the risk at full coverage.
    """

    system: str
    coverage: Floats
    risk: Floats
    area: float
    best: float
    random: float

    @property
    def excess(self) -> float:
        """E-AURC: what the order costs beyond the best one."""
        return self.area - self.best


class Ties(NamedTuple):
    """Answers with one score each.

    Attributes:
        order: Places of all answers, the most trusted first, ``(n,)``.
        starts: Where in ``order`` each group of ties begins, ``(g,)``.
    """

    order: NDArray[np.int64]
    starts: NDArray[np.int64]


def ties(scores: ArrayLike) -> Ties:
    """Groups of equal scores, the highest first.

    Raises:
        ValueError: There are no scores, or one is not finite.

    Example:
        >>> found = ties([0.2, 0.9, 0.2])
        >>> found.order.tolist(), found.starts.tolist()
        ([1, 0, 2], [0, 1])
    """
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ValueError(f"scores must be finite numbers, (n,) with n >= 1, got {values.shape}")
    order = np.argsort(-values, kind="stable")
    return Ties(order, np.flatnonzero(np.diff(values[order], prepend=np.inf)))


def area_of(errors: ArrayLike, counts: ArrayLike) -> Floats:
    """AURC = 1/n · Σ_{k=1…n} E_k / k, E_k the expected hallucinations among the k most trusted answers.

    In a group of W ties with E hallucinations, after n' answers with e', E_{n'+j} = e' + j·E/W; its terms sum to
    E + (e' − n'·E/W)·(H_{n'+W} − H_{n'}), H the harmonic numbers: no order within the group has to be drawn.

    Args:
        errors: Hallucinations of each group, the most trusted first, ``(*, g)``.
        counts: Answers of each group, whole numbers, ``(*, g)``; a group may be empty, not all.

    Returns:
        ``(*,)``.

    Example:
        >>> area_of([0, 1], [1, 1]).item(), area_of([1], [2]).item(), area_of([1, 0], [1, 1]).item()
        (0.25, 0.5, 0.75)
    """
    e, w = np.asarray(errors, np.float64), np.asarray(counts, np.int64)
    ends, errors_before = np.cumsum(w, axis=-1), np.cumsum(e, axis=-1) - e
    starts = ends - w
    harmonic = np.concatenate(([0.0], np.cumsum(1 / np.arange(1, ends.max() + 1))))
    share = e / np.maximum(w, 1)
    terms = e + (errors_before - starts * share) * (harmonic[ends] - harmonic[starts])
    return np.asarray(terms.sum(axis=-1) / ends[..., -1])


def risk_coverage(system: str, scores: ArrayLike, hallucinated: ArrayLike) -> RiskCoverage:
    """The curve of a score, and its area.

    risk(k/n) = E_k / k, of the k answers with the highest scores; see ``area_of``.

    Args:
        system: Its name.
        scores: Higher is more trusted, ``(n,)``.
        hallucinated: bool ``(n,)``.

    Raises:
        ValueError: Lengths differ, there are none, or a score is not finite.

    Example:
        >>> found = risk_coverage("x", [0.9, 0.5, 0.5, 0.1], [False, True, False, True])
        >>> found.risk.round(3).tolist(), found.random
        ([0.0, 0.25, 0.333, 0.5], 0.5)
    """
    wrong, groups = np.asarray(hallucinated, bool), ties(scores)
    n = len(groups.order)
    if wrong.shape != (n,):
        raise ValueError(f"hallucinated must be ({n},), one for each score, got {wrong.shape}")
    errors, counts = (np.add.reduceat(v[groups.order].astype(np.int64), groups.starts) for v in (wrong, np.ones(n)))
    k, total = np.arange(1, n + 1), int(wrong.sum())
    expected = np.cumsum(np.repeat(errors / counts, counts))
    return RiskCoverage(
        system=system,
        coverage=k / n,
        risk=expected / k,
        area=float(area_of(errors, counts)),
        best=float(area_of([0, total], [n - total, total])),
        random=total / n,
    )


@dataclass(frozen=True)
class OperatingPoint:
    """Where a system stands.

    Attributes:
        system: Its name.
        answers: That were scored.
        coverage: Share of them that are neither abstentions nor empty.
        risk: Hallucinations among those.
        abstentions: How many, of the gate or in the model's words.
        over_abstention: Share of its answers that abstain though B1 or B2, to the same question at the same seed,
            answered correctly. None counts only where both are scored.
        of_abstentions: The same as a share of its abstentions.
    """

    system: str
    answers: int
    coverage: Rate
    risk: Rate
    abstentions: int
    over_abstention: Rate
    of_abstentions: Rate


def operating_point(system: str, records: Iterable[Record]) -> OperatingPoint:
    """The operating point of one system among the records of a run.

    Args:
        system: Its name.
        records: Of all systems; B1's and B2's say what could have been answered, whichever of them there are.

    Example:
        >>> b1 = {"system": "b1", "question_id": "q", "seed": 0, "outcome": "correct"}
        >>> found = operating_point("b3", [b1, {**b1, "system": "b3", "outcome": "abstention"}])
        >>> found.coverage.value, found.risk.value, found.over_abstention.value
        (0.0, None, 1.0)
    """
    scored = [record for record in records if record["outcome"] is not None]
    references = [_by_slot(scored, name) for name in REFERENCES]
    references = [found for found in references if found]
    own = list(_by_slot(scored, system).values())
    outcomes = [Outcome(record["outcome"]) for record in own]
    asked = [record["question_id"] for record in own]
    answered = [float(outcome.answered) for outcome in outcomes]
    told = [float(bool(references) and all(_slot(r) in found for found in references)) for r in own]
    abstained = [float(outcome is Outcome.ABSTENTION) for outcome in outcomes]
    needless = [
        float(bool(known and left) and any(found[_slot(r)]["outcome"] == Outcome.CORRECT for found in references))
        for r, known, left in zip(own, told, abstained, strict=True)
    ]
    return OperatingPoint(
        system=system,
        answers=len(own),
        coverage=rate(answered, [1.0] * len(own), asked),
        risk=rate([float(outcome is Outcome.HALLUCINATION) for outcome in outcomes], answered, asked),
        abstentions=int(sum(abstained)),
        over_abstention=rate(needless, told, asked),
        of_abstentions=rate(needless, [known * left for known, left in zip(told, abstained, strict=True)], asked),
    )


# ----------------------------------------------------------------------------------------------------------- of a run


class Scored(NamedTuple):
    """B2's answers with a score of each, and that of M beside it.

    Attributes:
        system: Whose score.
        questions: ``(n,)``.
        scores: ``(n,)``.
        relevance: M, ``(n,)``.
        hallucinated: bool ``(n,)``.
    """

    system: str
    questions: NDArray[np.str_]
    scores: Floats
    relevance: Floats
    hallucinated: NDArray[np.bool_]


def scored(study: Study) -> list[Scored]:
    """Every score of a run, on what B2 answered: systems as the experiment lists them, then ``BASELINES``.

    A system with a gate has C_final, one that was learned its P(adopt). B2's abstentions and empty outputs are left
    out: there is nothing to trust.
    """
    answers = {
        _slot(record): record
        for record in study.run.of("b2")
        if record["outcome"] is not None and Outcome(record["outcome"]).answered
    }
    found = [_scored(system, _scores(system, study.run.of(system)), answers) for system in study.run.systems]
    for name, place in BASELINES.items():
        signals = {slot: signals_of(record)[place] for slot, record in answers.items()}
        found.append(_scored(name, {s: 1 - v if place == 2 else v for s, v in signals.items()}, answers))
    return [columns for columns in found if len(columns.scores)]


def curves(study: Study) -> list[RiskCoverage]:
    """The risk–coverage curves of a run, a score each; none where B2 answered nothing."""
    return [risk_coverage(columns.system, columns.scores, columns.hallucinated) for columns in scored(study)]


def operating_points(study: Study) -> list[OperatingPoint]:
    """Of every system of a run that has a scored answer."""
    found = [operating_point(system, study.run.records) for system in study.run.systems]
    return [point for point in found if point.answers]


def selective_table(study: Study) -> Table:
    """Coverage, risk and over-abstention of every system."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name_of(point.system),
            point.answers,
            point.coverage,
            point.risk,
            point.abstentions,
            point.over_abstention,
            point.of_abstentions,
        )
        for point in operating_points(study)
    )
    columns = ("system", "answers", "coverage", "risk", "abstentions", "over-abstention", "of its abstentions")
    return Table("selective", "Operating points and over-abstention", columns, rows, SELECTIVE_NOTE)


SELECTIVE_NOTE = (
    "Coverage: share of scored answers that are neither abstentions (of the gate or in the model's words) nor empty."
    " Risk: hallucinations among those. Over-abstention: the system abstained though B1 or B2, to the same question at"
    " the same seed, answered correctly; as a share of all its answers, and of its abstentions. A system that always"
    " abstains shows the most there can be. Correct is correct for the scorer, and may be so by chance. In brackets:"
    " 95% intervals, over questions where they have several answers."
)


def area_table(study: Study) -> Table:
    """The area under each risk–coverage curve, beside that of the best and of a random order, and of M alone."""
    columns = ("score", "answers", "AURC", "best order", "random order", "excess AURC", "AURC less that of M alone")
    rows: list[tuple[Cell, ...]] = []
    for given in scored(study):
        curve = risk_coverage(given.system, given.scores, given.hallucinated)
        area, difference = _areas(given)
        low, high = area.interval or (None, None)
        method = "none" if area.interval is None else "bootstrap"
        value = Rate(curve.area, low, high, method, area.samples, area.questions)
        beside = None if given.system == "M alone" else difference
        rows.append((_label(given.system), area.samples, value, curve.best, curve.random, curve.excess, beside))
    note = AREA_NOTE if rows else "There are no answers of B2 in this run, which the curves are of."
    return Table("areas", "Area under the risk–coverage curve", columns, tuple(rows), note)


AREA_NOTE = (
    "What if the system answered only where its score is highest, with memories in the prompt? Answers of B2 (without"
    " abstentions and empty outputs), ordered by the score: C_final of systems with a gate, P(adopt) of learned ones,"
    " and signals alone. C_final ranks a retrieval even where the gate's guard, finding nothing relevant, overrode the"
    " equations to Silent or Opt-Out. Risk is the share of hallucinations among the k most trusted of n, ties in"
    " expected order; AURC its mean over k = 1 … n: lower is better. The random order's is the risk of answering all;"
    " excess is over the best order. P(adopt) was learned from labels that also say how B1 fares, which no answer of B2"
    " shows. In brackets: 95% intervals of a bootstrap over questions; of a difference, on the same resamples."
)


def _areas(given: Scored) -> tuple[Estimate, Estimate]:
    """Area of the score, and less that of M, with their intervals."""
    counts = drawn(given.questions)
    groups = [ties(values) for values in (given.scores, given.relevance)]

    def area(weights: NDArray[np.int64], found: Ties) -> Floats:
        w = weights[..., found.order]
        wrong = w * given.hallucinated[found.order]
        return area_of(np.add.reduceat(wrong, found.starts, axis=-1), np.add.reduceat(w, found.starts, axis=-1))

    own = bootstrapped(lambda w: area(w, groups[0]), given.questions, counts)
    gap = bootstrapped(lambda w: area(w, groups[0]) - area(w, groups[1]), given.questions, counts)
    return own, gap


def _scores(system: str, records: Iterable[Record]) -> dict[tuple[str, int], float]:
    """How far a system trusts the memories, by question and seed; empty of one that has no score."""
    if system in SYSTEMS and SYSTEMS[system]().gate is not None:
        return {_slot(record): float(record["decision"]["gated_confidence"]) for record in records}
    noted = {_slot(record): record.get("notes", {}).get("probability") for record in records}
    return {slot: float(value) for slot, value in noted.items() if value is not None}


def _scored(system: str, scores: Mapping[Any, float], answers: Mapping[Any, Record]) -> Scored:
    slots = [slot for slot in answers if slot in scores]
    return Scored(
        system,
        np.array([question for question, _ in slots], np.str_),
        np.array([scores[slot] for slot in slots], np.float64),
        np.array([signals_of(answers[slot])[0] for slot in slots], np.float64),
        np.array([answers[slot]["outcome"] == Outcome.HALLUCINATION for slot in slots], np.bool_),
    )


def _by_slot(records: Sequence[Record], system: str) -> dict[tuple[str, int], Record]:
    return {_slot(record): record for record in records if record["system"] == system}


def _slot(record: Record) -> tuple[str, int]:
    return record["question_id"], record["seed"]


def _label(system: str) -> str:
    return system if system in BASELINES else name_of(system)
