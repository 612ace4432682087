"""Rates with their uncertainty, and differences between systems that answered the same questions (Section 5.2)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mdl_torch.errors import unknown_name
from mdl_torch.risk import HIGH_RISK, MEDIUM_RISK, reaches, tier

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]

RESAMPLES = 10_000
"""Of a bootstrap."""

DRAWN = 2_000
"""Of a bootstrap of what is not a ratio of sums, which has to be computed anew from the rows of each resample."""

_AT_ONCE = 1_000_000  # drawn counts that are held in memory


class Interval(NamedTuple):
    """Lower and upper bound."""

    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval.

    Attributes:
        value: The figure on the data themselves; None where there are none, or their weights are 0.
        interval: Its bootstrap interval; None with fewer than two questions.
        questions: Clusters that it rests on.
        samples: Answers, or pairs of answers.
    """

    value: float | None
    interval: Interval | None
    questions: int
    samples: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "interval": None if self.interval is None else list(self.interval)}


@dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation over seeds.

    Attributes:
        mean: None of no values.
        std: Of the sample (n − 1); None of fewer than two values.
        n: How many.
    """

    mean: float | None
    std: float | None
    n: int


@dataclass(frozen=True)
class PairedT:
    """A paired t-test with its effect size.

    Attributes:
        difference: Mean of first − second.
        t: Of Student's distribution with ``n − 1`` degrees of freedom; None where the differences do not vary.
        p: Two-sided; None where t is.
        d_z: Cohen's effect size of pairs: mean over standard deviation of the differences; None where t is.
        n: Pairs: seeds or questions.
    """

    difference: float
    t: float | None
    p: float | None
    d_z: float | None
    n: int


@dataclass(frozen=True)
class McNemar:
    """The exact test of McNemar.

    Attributes:
        only_first: Pairs of which the first alone is true.
        only_second: Pairs of which the second alone is.
        p: Two-sided, binomial; 1 where no pair differs.
    """

    only_first: int
    only_second: int
    p: float


def wilson(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share: (p̂ + z²/2n ± z·√(p̂(1−p̂)/n + z²/4n²)) / (1 + z²/n).

    It takes the n trials as independent; several seeds of one question are not, see ``cluster_bootstrap``.

    Args:
        successes: From 0 to n.
        n: Trials; of none at all nothing is known, [0, 1].
        confidence: In (0, 1).

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> [round(bound, 3) for bound in wilson(0, 20)], wilson(0, 0)
        ([0.0, 0.161], Interval(low=0.0, high=1.0))
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be from 0 to n, got {successes} of {n}")
    z = NormalDist().inv_cdf(0.5 + _confidence(confidence) / 2)
    if n == 0:
        return Interval(0.0, 1.0)
    share = successes / n
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else (middle - half) / scale  # exact at the ends, where rounding leaves 1e-18
    return Interval(low, 1.0 if successes == n else (middle + half) / scale)


def cluster_bootstrap(
    numerator: ArrayLike,
    denominator: ArrayLike,
    questions: Sequence[Hashable],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
) -> Estimate:
    """Σ numerator / Σ denominator, with the percentile interval of a bootstrap over questions.

    Whole questions are drawn, all their seeds with them, since answers to one question are alike. A rate is Σ h / Σ 1;
    a risk-weighted one Σ A·h / Σ A. A resample whose denominator is 0 is left out.

    Args:
        numerator: ``(n,)``.
        denominator: ``(n,)``, not negative.
        questions: Which question each of the n is of.
        seed: Of the draws.
        resamples: How many, at least 1.
        confidence: In (0, 1).

    Raises:
        ValueError: Lengths differ, a value is not finite, or an argument is out of its range.

    Example:
        >>> cluster_bootstrap([1, 1, 0, 0], [1, 1, 1, 1], ["a", "a", "b", "b"]).interval
        Interval(low=0.0, high=1.0)
    """
    above, below = _column("numerator", numerator), _column("denominator", denominator)
    if not len(above) == len(below) == len(questions):
        raise ValueError(
            f"numerator, denominator and questions must be as many, got {len(above)}, {len(below)}, {len(questions)}"
        )
    if (below < 0).any():
        raise ValueError("denominator must not be negative")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    _confidence(confidence)
    places = {question: place for place, question in enumerate(dict.fromkeys(questions))}
    clusters, of = len(places), np.array([places[question] for question in questions], np.int64)
    if not below.sum():
        return Estimate(None, None, clusters, len(above))
    sums = np.stack([np.bincount(of, values, clusters).astype(np.float64) for values in (above, below)], axis=1)
    interval = _percentiles(sums, seed, resamples, confidence) if clusters > 1 else None
    return Estimate(float(above.sum() / below.sum()), interval, clusters, len(above))


def drawn(questions: ArrayLike, *, resamples: int = DRAWN, seed: int = 0) -> Counts:
    """How often each row is in each resample of a bootstrap over questions: all rows of a question together.

    Args:
        questions: Which question each row is of, ``(n,)``, n >= 1.
        resamples: How many.
        seed: Of the draws.

    Returns:
        ``(resamples, n)``.

    Example:
        >>> sorted({tuple(row) for row in drawn(["a", "a", "b"], resamples=100).tolist()})
        [(0, 0, 2), (1, 1, 1), (2, 2, 0)]
    """
    ids, of = np.unique(np.asarray(questions), return_inverse=True)
    counts = np.random.default_rng(seed).multinomial(len(ids), np.full(len(ids), 1 / len(ids)), size=resamples)
    return np.asarray(counts[:, of], np.int64)


def bootstrapped(statistic: Callable[[Counts], Floats], questions: ArrayLike, counts: Counts) -> Estimate:
    """A statistic of weighted rows, with its 95% percentile interval over resamples; none of a single question.

    Args:
        statistic: Of weights ``(*, n)``, gives ``(*,)``; resamples of which it is not finite are left out.
        questions: Which question each row is of, ``(n,)``.
        counts: From ``drawn``.

    Example:
        >>> rows = ["a", "b"]
        >>> bootstrapped(lambda w: (w * [0, 1]).sum(axis=-1) / w.sum(axis=-1), rows, drawn(rows)).interval
        Interval(low=0.0, high=1.0)
    """
    n, asked = counts.shape[1], len(np.unique(np.asarray(questions)))
    value = float(statistic(np.ones(n, np.int64)))
    found = statistic(counts)
    found = found[np.isfinite(found)]
    interval = None
    if asked > 1 and len(found):
        interval = Interval(*(float(bound) for bound in np.quantile(found, (0.025, 0.975))))
    return Estimate(value if math.isfinite(value) else None, interval, asked, n)


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    questions: Sequence[Hashable],
    *,
    weights: ArrayLike | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
) -> Estimate:
    """Rate of the first system less that of the second on the same questions and seeds; see ``cluster_bootstrap``.

    Args:
        first: Of each question and seed, 0 or 1, or a number, ``(n,)``.
        second: Of the same, in the same order.
        questions: Which question each of the n is of.
        weights: Of each, such as A for the risk-weighted rate; all alike by default.
        seed: Of the draws.
        resamples: How many.
        confidence: In (0, 1).

    Raises:
        ValueError: As ``cluster_bootstrap`` does.

    Example:
        >>> paired_difference([1, 1, 0], [0, 0, 0], ["a", "b", "c"]).value
        0.6666666666666666
    """
    one, other = _column("first", first), _column("second", second)
    if len(one) != len(other):
        raise ValueError(f"first and second must be as many, got {len(one)} and {len(other)}")
    weight = np.ones(len(one)) if weights is None else _column("weights", weights)
    if len(weight) != len(one):
        raise ValueError(f"weights must be as many as first, got {len(weight)} and {len(one)}")
    return cluster_bootstrap(
        weight * (one - other), weight, questions, seed=seed, resamples=resamples, confidence=confidence
    )


def per_question(values: ArrayLike, questions: Sequence[Hashable]) -> dict[Hashable, float]:
    """Mean of each question over its seeds, in the order of the questions: what a test over questions compares.

    Raises:
        ValueError: Lengths differ, or a value is not finite.

    Example:
        >>> per_question([1, 0, 1], ["a", "a", "b"])
        {'a': 0.5, 'b': 1.0}
    """
    column = _column("values", values)
    if len(column) != len(questions):
        raise ValueError(f"values and questions must be as many, got {len(column)} and {len(questions)}")
    found: dict[Hashable, list[float]] = {}
    for question, value in zip(questions, column.tolist(), strict=True):
        found.setdefault(question, []).append(value)
    return {question: math.fsum(group) / len(group) for question, group in found.items()}


def paired_t(first: ArrayLike, second: ArrayLike) -> PairedT:
    """The paired t-test, two-sided, with d_z = mean(d) / std(d), d = first − second.

    Over seeds, pairs are the rates of two systems at one seed; over questions, the means of ``per_question``. Two seeds
    leave one degree of freedom, three leave two.

    Args:
        first: ``(n,)``, n >= 1.
        second: ``(n,)``.

    Raises:
        ValueError: Lengths differ, there is no pair, or a value is not finite.

    Example:
        >>> test = paired_t([0.5, 0.6, 0.7], [0.2, 0.2, 0.3])
        >>> round(test.t, 2), round(test.p, 4), round(test.d_z, 2)
        (11.0, 0.0082, 6.35)
    """
    one, other = _column("first", first), _column("second", second)
    if len(one) != len(other) or not len(one):
        raise ValueError(f"first and second must be as many, at least 1, got {len(one)} and {len(other)}")
    differences, n = one - other, len(one)
    mean = float(differences.mean())
    deviation = float(differences.std(ddof=1)) if n > 1 else 0.0
    if deviation <= 1e-12 * float(np.abs(differences).max(initial=0.0)):  # what rounding leaves of equal differences
        return PairedT(mean, None, None, None, n)
    from scipy.stats import t as student

    d_z = mean / deviation
    t = d_z * math.sqrt(n)
    return PairedT(mean, t, float(2 * student.sf(abs(t), n - 1)), d_z, n)


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> McNemar:
    """McNemar's exact test on pairs of yes and no: of those that differ, are as many of the one kind as of the other?

    p = min(1, 2·Σ_{k ≤ min(b, c)} C(b+c, k) / 2^{b+c}). Pairs have to be independent: one seed a question.

    Args:
        first: Of n questions.
        second: Of the same.

    Raises:
        ValueError: They are not as many.

    Example:
        >>> mcnemar([True] * 6 + [False], [False] * 6 + [False])
        McNemar(only_first=6, only_second=0, p=0.03125)
    """
    if len(first) != len(second):
        raise ValueError(f"first and second must be as many, got {len(first)} and {len(second)}")
    b = sum(bool(one) and not other for one, other in zip(first, second, strict=True))
    c = sum(bool(other) and not one for one, other in zip(first, second, strict=True))
    tail = sum(math.comb(b + c, k) for k in range(min(b, c) + 1))
    return McNemar(b, c, min(1.0, 2 * tail / 2 ** (b + c)))


def mean_std(values: ArrayLike) -> MeanStd:
    """Mean and standard deviation of a rate over seeds.

    Raises:
        ValueError: A value is not finite.

    Example:
        >>> mean_std([0.25, 0.75]), mean_std([0.5]).std
        (MeanStd(mean=0.5, std=0.3535533905932738, n=2), None)
    """
    column = _column("values", values)
    if not len(column):
        return MeanStd(None, None, 0)
    return MeanStd(float(column.mean()), float(column.std(ddof=1)) if len(column) > 1 else None, len(column))


def _risk(risk: Floats) -> Floats:
    return risk


def _risk_squared(risk: Floats) -> Floats:
    return risk**2


def _above_low(risk: Floats) -> Floats:
    return np.array([float(reaches(a, MEDIUM_RISK)) for a in risk.tolist()])


def _high_only(risk: Floats) -> Floats:
    return np.array([float(reaches(a, HIGH_RISK)) for a in risk.tolist()])


def _tiers_alike(risk: Floats) -> Floats:
    tiers = [tier(a) for a in risk.tolist()]
    return np.array([1 / tiers.count(name) for name in tiers])


def _tiers_by_risk(risk: Floats) -> Floats:
    tiers = np.array([tier(a) for a in risk.tolist()])
    return np.array([risk[tiers == name].mean() / (tiers == name).sum() for name in tiers.tolist()])


RISK_WEIGHTS: dict[str, Callable[[Floats], Floats]] = {
    "risk": _risk,
    "risk squared": _risk_squared,
    "tiers by mean risk": _tiers_by_risk,
    "tiers alike": _tiers_alike,
    "medium and high only": _above_low,
    "high only": _high_only,
}
"""What "risk-weighted" may mean, as the weight of each answer from its A; the paper does not say which it used.

``risk`` is Σ A·h / Σ A, the one meant where nothing else is said. Tiers weigh by their mean A, or all alike.
"""


def risk_weighted(values: ArrayLike, risk: ArrayLike, *, weighting: str = "risk") -> float | None:
    """A rate in which answers count by what is at stake: Σ w(A)·h / Σ w(A).

    Args:
        values: h, 0 or 1, ``(n,)``.
        risk: A, in [0, 1], ``(n,)``.
        weighting: One of ``RISK_WEIGHTS``.

    Returns:
        None where the weights sum to 0.

    Raises:
        ValueError: Lengths differ, a value is not finite, a risk outside [0, 1], or the weighting unknown.

    Example:
        >>> risk_weighted([1, 0, 0], [0.2, 0.2, 0.6])
        0.2
        >>> risk_weighted([1, 0, 0], [0.2, 0.2, 0.6], weighting="tiers alike")
        0.25
    """
    if weighting not in RISK_WEIGHTS:
        raise ValueError(unknown_name("weighting", weighting, RISK_WEIGHTS))
    rates, risks = _column("values", values), _column("risk", risk)
    if len(rates) != len(risks):
        raise ValueError(f"values and risk must be as many, got {len(rates)} and {len(risks)}")
    if ((risks < 0) | (risks > 1)).any():
        raise ValueError("risk must be in [0, 1]")
    weights = RISK_WEIGHTS[weighting](risks)
    total = math.fsum(weights.tolist())
    return math.fsum((weights * rates).tolist()) / total if total else None


def _percentiles(sums: Floats, seed: int, resamples: int, confidence: float) -> Interval | None:
    """Of Σ numerator / Σ denominator over resampled clusters; ``sums`` ``(clusters, 2)``."""
    rng, clusters = np.random.default_rng(seed), len(sums)
    block = max(1, _AT_ONCE // clusters)
    drawn = [
        rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=min(block, resamples - start)) @ sums
        for start in range(0, resamples, block)
    ]
    above, below = np.concatenate(drawn).T
    ratios = above[below > 0] / below[below > 0]
    if not len(ratios):
        return None
    tail = (1 - confidence) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _column(name: str, values: ArrayLike) -> Floats:
    column = np.asarray(values, np.float64)
    if column.ndim != 1 or not np.isfinite(column).all():
        raise ValueError(f"{name} must be finite numbers, (n,), got {column.shape}")
    return column


def _confidence(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence!r}")
    return confidence
