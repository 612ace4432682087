"""Confidence and consistency: how alike they are, whether α tells right from wrong, and the gate's weights (Fig. 5(b)).

C says how convinced the controller is, α whether its conviction points where relevance does, and the gate joins them:
C_final = C·(g_a + g_b·α) (Section 3.3). What the paper concludes of them is in Section 5.4, point 2.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from mdl_torch.analysis.samples import FAVOURED
from mdl_torch.calibration import fit_thresholds
from mdl_torch.evaluation.statistics import Estimate, MeanStd, bootstrapped, drawn, paired_difference
from mdl_torch.evaluation.tables import Cell, Table, p_in_words
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.statistics import Counts

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

PAPER_RESAMPLES = 10
"""Bootstrap runs of the paper's grid."""

GATE_VALUES = tuple(round(0.1 * step, 1) for step in range(11))
"""g_a and g_b of the grid."""

PURE = (1.0, 0.0)
"""(g_a, g_b) without α."""
PAPER = (0.3, 0.7)
"""The paper's (g_a, g_b)."""


# -------------------------------------------------------------------------------------------------- numbers of arrays


def pearson(first: ArrayLike, second: ArrayLike, weights: ArrayLike) -> Floats:
    """Pearson's r = Σ w·(x − x̄)(y − ȳ) / √(Σ w·(x − x̄)² · Σ w·(y − ȳ)²) over the last axis; NaN of a constant.

    Args:
        first: x, broadcast to ``(*, n)``.
        second: y, the same.
        weights: w, not negative, ``(*, n)``.

    Example:
        >>> pearson([1, 2, 3], [2, 4, 7], [1, 1, 0]).round(6).item()
        1.0
    """
    w = np.asarray(weights, np.float64)
    total = w.sum(axis=-1, keepdims=True)
    x, y = (v - (w * v).sum(axis=-1, keepdims=True) / total for v in (_floats(first), _floats(second)))
    xy, xx, yy = ((w * product).sum(axis=-1) for product in (x * y, x * x, y * y))
    sizes = ((w * _floats(v) ** 2).sum(axis=-1) for v in (first, second))
    varies = np.logical_and(*(left > 1e-24 * size for left, size in zip((xx, yy), sizes, strict=True)))  # not rounding
    return np.where(varies, xy / np.sqrt(np.where(varies, xx * yy, 1.0)), np.nan)


def weighted_ranks(values: ArrayLike, weights: ArrayLike) -> Floats:
    """Mid-ranks from 1 of values that are there w times each: ties share the mean of their ranks.

    Args:
        values: ``(n,)``.
        weights: How often each is there, ``(*, n)``.

    Example:
        >>> weighted_ranks([5, 7, 7], [1, 1, 1]).tolist(), weighted_ranks([5, 7, 9], [2, 0, 1]).tolist()
        ([1.0, 2.5, 2.5], [1.5, 2.5, 3.0])
    """
    w = np.asarray(weights, np.float64)
    distinct, of = np.unique(np.asarray(values), return_inverse=True)
    order = np.argsort(of, kind="stable")
    starts = np.searchsorted(of[order], np.arange(len(distinct)))
    counts = np.add.reduceat(w[..., order], starts, axis=-1)
    middle: Floats = np.cumsum(counts, axis=-1) - (counts - 1) / 2
    return middle[..., of]


def spearman(first: ArrayLike, second: ArrayLike, weights: ArrayLike) -> Floats:
    """Pearson's correlation of the mid-ranks; see ``pearson`` and ``weighted_ranks``.

    Example:
        >>> spearman([1, 2, 3], [1, 4, 90], [1, 1, 1]).round(6).item()
        1.0
    """
    return pearson(weighted_ranks(first, weights), weighted_ranks(second, weights), weights)


class Contrast(NamedTuple):
    """Two groups of numbers compared.

    Attributes:
        first: Mean of the first; None of no numbers.
        second: Mean of the second.
        t: Welch's t = (x̄₁ − x̄₂) / √(s₁²/n₁ + s₂²/n₂); None where it is not defined.
        df: Its degrees of freedom (Welch–Satterthwaite); None where t is.
        p: Two-sided; None where t is.
        d: Cohen's d, (x̄₁ − x̄₂) over the pooled standard deviation; None where t is.
        g: Hedges' g, d without the bias of small samples: d·Γ(m/2)/(√(m/2)·Γ((m−1)/2)), m = n₁ + n₂ − 2.
    """

    first: float | None
    second: float | None
    t: float | None = None
    df: float | None = None
    p: float | None = None
    d: float | None = None
    g: float | None = None


def contrast(first: ArrayLike, second: ArrayLike) -> Contrast:
    """Welch's t-test with effect sizes. It takes all values as independent.

    Args:
        first: ``(n,)``.
        second: ``(m,)``. With fewer than two values in a group, or where neither varies, there are only means.

    Example:
        >>> found = contrast([2, 4, 6], [1, 2, 3])
        >>> round(found.t, 4), round(found.df, 4), round(found.d, 4), round(found.g, 4)
        (1.5492, 2.9412, 1.2649, 1.0093)
    """
    one, other = _floats(first), _floats(second)
    mean, mean_other = (float(v.mean()) if len(v) else None for v in (one, other))
    if min(len(one), len(other)) < 2 or np.ptp(one) == np.ptp(other) == 0:
        return Contrast(mean, mean_other)
    from scipy.stats import ttest_ind

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of one group that does not vary
        test = ttest_ind(one, other, equal_var=False)
    m = len(one) + len(other) - 2
    pooled = sum(float(v.var(ddof=1)) * (len(v) - 1) for v in (one, other)) / m
    d = float(one.mean() - other.mean()) / math.sqrt(pooled)
    shrink = math.exp(math.lgamma(m / 2) - math.lgamma((m - 1) / 2)) / math.sqrt(m / 2)
    return Contrast(mean, mean_other, float(test.statistic), float(test.df), float(test.pvalue), d, d * shrink)


def mean_gap(values: ArrayLike, group: ArrayLike, weights: ArrayLike) -> Floats:
    """Mean of the values in a group less the mean of the others, over the last axis; NaN where one is empty.

    Args:
        values: ``(n,)``.
        group: bool ``(n,)``.
        weights: How often each is there, ``(*, n)``.

    Example:
        >>> mean_gap([1, 2, 6], [False, False, True], [1, 1, 1]).item()
        4.5
    """
    w, v, inside = np.asarray(weights, np.float64), _floats(values), np.asarray(group, bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [(w * (v * side)).sum(axis=-1) / (w * side).sum(axis=-1) for side in (inside, ~inside)]
    return np.asarray(means[0] - means[1])


# ----------------------------------------------------------------------------------------------------------- the grid


@dataclass(frozen=True)
class GateGrid:
    """Accuracy of the gate over g_a and g_b, thresholds fitted anew in each cell; see ``grid_of``.

    Attributes:
        constants: g_a, ``(a,)``.
        coefficients: g_b, ``(b,)``.
        accuracy: On all answers, ``(a, b)``; the cell that gates with 0 is masked.
        std: Standard deviation of the accuracy over resamples (n − 1), masked alike.
        thresholds: θ0 of each cell, for ``normalized_gate``, masked alike.
    """

    constants: Floats
    coefficients: Floats
    accuracy: np.ma.MaskedArray[Any, Any]
    std: np.ma.MaskedArray[Any, Any]
    thresholds: np.ma.MaskedArray[Any, Any]

    @property
    def best(self) -> tuple[int, int]:
        """Place (a, b) of the highest accuracy, chosen on the answers that it is of; of equal ones the first."""
        a, b = np.unravel_index(int(self.accuracy.argmax()), self.accuracy.shape)
        return int(a), int(b)

    def place(self, gate: tuple[float, float]) -> tuple[int, int]:
        """Place (a, b) of the cell nearest to a gate (g_a, g_b).

        Example:
            >>> ones = np.ma.masked_less(np.ones((2, 2)), 0)
            >>> GateGrid(np.array([0.0, 1.0]), np.array([0.0, 1.0]), ones, ones, ones).place((0.3, 0.7))
            (0, 1)
        """
        constant, coefficient = gate
        return int(np.abs(self.constants - constant).argmin()), int(np.abs(self.coefficients - coefficient).argmin())


def normalized_gate(confidence: ArrayLike, consistency: ArrayLike, constant: float, coefficient: float) -> Floats:
    """C·(g_a + g_b·α) / (g_a + g_b), in [0, 1] whatever the sum, so that one search range of θ0 fits all cells.

    Args:
        confidence: C, ``(n,)``.
        consistency: α, ``(n,)``.
        constant: g_a, not negative.
        coefficient: g_b, not negative, not 0 where g_a is.

    Example:
        >>> normalized_gate([1.0, 0.5], [0.5, 1.0], 1.0, 1.0).tolist()
        [0.75, 0.5]
    """
    return _floats(confidence) * (constant + coefficient * _floats(consistency)) / (constant + coefficient)


def grid_of(
    fit: tuple[ArrayLike, ArrayLike, ArrayLike],
    test: tuple[ArrayLike, ArrayLike, ArrayLike],
    questions: ArrayLike,
    *,
    constants: ArrayLike = GATE_VALUES,
    coefficients: ArrayLike = GATE_VALUES,
    resamples: int = PAPER_RESAMPLES,
    seed: int = 0,
) -> GateGrid:
    """The accuracy of adopting where C·(g_a + g_b·α) / (g_a + g_b) ≥ θ0, θ0 by ``fit_thresholds`` in each cell.

    Undivided, C_final would reach from 0 to g_a + g_b, and where the search of θ0 ends would decide what a cell can do.
    Divided, only the ratio g_a : g_b matters.

    Args:
        fit: C, α and what the oracle says, ``(m,)`` each, that thresholds are fitted on.
        test: The same, ``(n,)`` each, that accuracy is of.
        questions: Which question each of the n is of.
        constants: g_a, ``(a,)``, not negative.
        coefficients: g_b, ``(b,)``, not negative.
        resamples: Of the test's questions, at least 2.
        seed: Of the draws.

    Raises:
        ValueError: There is nothing to fit on or to test, or lengths differ.

    Example:
        >>> columns = ([0.2, 0.9], [0.9, 0.9], [False, True])
        >>> grid_of(columns, columns, ["a", "b"]).accuracy[10, 0].item()
        1.0
    """
    (c_fit, alpha_fit), (c, alpha) = (tuple(map(_floats, columns[:2])) for columns in (fit, test))
    labels, asked = np.asarray(test[2], bool), np.asarray(questions)
    if not len(c) or not len(c) == len(alpha) == len(labels) == len(asked):
        lengths = len(c), len(alpha), len(labels), len(asked)
        raise ValueError(f"test and questions must be as many, at least 1, got {lengths}")
    a, b = _floats(constants), _floats(coefficients)
    counts = drawn(asked, resamples=resamples, seed=seed)
    right, theta = np.zeros((len(a), len(b), len(c)), np.bool_), np.zeros((len(a), len(b)))
    mask = a[:, None] + b <= 0
    for i, j in np.argwhere(~mask):
        theta[i, j] = fit_thresholds(normalized_gate(c_fit, alpha_fit, a[i], b[j]), fit[2])[0]
        right[i, j] = (normalized_gate(c, alpha, a[i], b[j]) >= theta[i, j]) == labels
    rates = right @ counts.T / counts.sum(axis=1)
    values = (right.mean(axis=-1), rates.std(axis=-1, ddof=1), theta)
    return GateGrid(a, b, *(np.ma.masked_array(np.where(mask, 0.0, v), mask) for v in values))


# ----------------------------------------------------------------------------------------------------------- of a run


def gate_grid(study: Study) -> GateGrid | None:
    """The grid of a run: fitted on its calibration split, with the paper gate's range, tested on the pooled answers.

    Returns:
        None where the run has no calibration split, no ``paper`` gate, or no answers.
    """
    if "paper" not in study.layers or not len(study.split) or not len(study.samples):
        return None
    fit, test = (_columns(study, rows.signals) for rows in (study.split, study.samples))
    return grid_of((*fit[:2], study.split.adopt), (*test[:2], study.samples.adopt), study.samples.questions)


def gating_table(study: Study) -> Table:
    """Correlation of C and α, both among right and wrong decisions, and what α adds to accuracy, beside the paper's."""
    columns = ("figure", "value", "the paper")
    title = "Confidence C and consistency α (Section 5.4)"
    samples = study.samples
    if "paper" not in study.layers or not len(samples):
        missing = "The run has no `paper` gate, or no labelled answers of B1, B2 or B3."
        return Table("gating", title, columns, (), missing)
    c, alpha, gated, adopts = _columns(study, samples.signals)
    right, counts = adopts == samples.adopt, drawn(samples.questions)

    def estimate(statistic: Callable[[Counts], Floats]) -> Estimate:
        return bootstrapped(statistic, samples.questions, counts)

    test = contrast(alpha[right], alpha[~right])
    rows: list[tuple[Cell, ...]] = [
        ("answers", len(samples), 3600),
        ("correlation of C and α, Pearson", estimate(lambda w: pearson(c, alpha, w)), 0.902),
        ("correlation of C and α, Spearman", estimate(lambda w: spearman(c, alpha, w)), None),
        ("decisions that are right", int(right.sum()), None),
        ("mean α, right decisions", test.first, 0.950),
        ("mean α, wrong decisions", test.second, 0.946),
        ("difference of mean α, thousandths", estimate(lambda w: 1000 * mean_gap(alpha, right, w)), 4.0),
        ("Welch's t", test.t, 3.70),
        ("degrees of freedom", test.df, None),
        ("p, two-sided", None if test.p is None else p_in_words(test.p), "p < 0.001"),
        ("Cohen's d of α", test.d, None),
        ("Hedges' g of α", test.g, None),
        ("Cohen's d of C", contrast(c[right], c[~right]).d, None),
        ("Cohen's d of C_final", contrast(gated[right], gated[~right]).d, None),
        ("correlation of α with being right", estimate(lambda w: pearson(alpha, right, w)), None),
        ("the same with C held fixed", estimate(lambda w: _partial(alpha, right, c, w)), None),
    ]
    return Table("gating", title, columns, tuple(rows + _gated(study)), GATING_NOTE)


GATING_NOTE = (
    "Of the pooled answers of B1, B2 and B3, as in the paper; C, α and decisions are the `paper` gate's, and a decision"
    " is right if it is Active where the oracle says adopt. In brackets: 95% intervals of a bootstrap over questions."
    " The t-test takes answers as independent, which those to one question are not, since they share C and α: go by the"
    " interval of the difference. “With C held fixed” is the partial correlation (linear). Accuracies are on"
    " all answers, with thresholds fitted in each case on the calibration split, for C_final over g_a + g_b."
    f" {FAVOURED}"
)


def grid_table(study: Study) -> Table:
    """Accuracy over g_a (rows) and g_b (columns), and its standard deviation over resamples (Fig. 5(b))."""
    title = "Accuracy of C_final = C·(g_a + g_b·α) (Fig. 5(b))"
    columns = ("g_a", *(f"g_b = {value}" for value in GATE_VALUES))
    grid = gate_grid(study)
    if grid is None:
        return Table("gate_grid", title, columns, (), NO_GRID)
    rows = tuple(
        (f"{constant:.1f}", *(_cell(grid, a, b) for b in range(len(GATE_VALUES))))
        for a, constant in enumerate(grid.constants)
    )
    best = grid.best
    named = {"Without α (1, 0)": grid.place(PURE), "the paper's (0.3, 0.7)": grid.place(PAPER)}
    said = "; ".join(f"{name}: {grid.accuracy[place]:.3f}" for name, place in named.items())
    note = (
        f"{said}; best, chosen on these answers, {_pair(grid, best)}: {grid.accuracy[best]:.3f}. The lowest is"
        f" {grid.accuracy.min():.3f}. The paper: 0.596, 0.612, and up to 0.644 at g_a ≤ 0.2, g_b ≥ 0.7. Accuracy on all"
        f" answers ± its standard deviation over {PAPER_RESAMPLES} resamples of questions, the same in every cell. θ0"
        " is fitted in each cell on the calibration split, for C_final over g_a + g_b, and the range is the run's: only"
        " the ratio g_a : g_b matters, so cells of one ratio are alike. Undivided, C_final ends at g_a + g_b, and"
        f" what a cell reaches would depend on where the search of θ0 ends. {FAVOURED}"
    )
    return Table("gate_grid", title, columns, rows, note)


NO_GRID = "The run has no calibration split to fit thresholds on, no `paper` gate, or no labelled answers."


def _gated(study: Study) -> list[tuple[Cell, ...]]:
    """Rows on what the gate's weights do to accuracy."""
    grid = gate_grid(study)
    if grid is None:
        return []
    samples = study.samples
    c, alpha, _, _ = _columns(study, samples.signals)

    def right(place: tuple[int, int]) -> Bools:
        gated = normalized_gate(c, alpha, grid.constants[place[0]], grid.coefficients[place[1]])
        return np.asarray((gated >= grid.thresholds[place]) == samples.adopt)

    pure, paper, best = grid.place(PURE), grid.place(PAPER), grid.best
    asked = samples.questions.tolist()
    gain = paired_difference(right(paper), right(pure), asked)
    return [
        ("accuracy without α (1, 0)", float(grid.accuracy[pure]), 0.596),
        ("accuracy with α (0.3, 0.7)", float(grid.accuracy[paper]), 0.612),
        ("gain by α", gain, 0.016),
        (
            f"accuracy at the best of the grid {_pair(grid, best)}, chosen on these answers",
            float(grid.accuracy[best]),
            0.644,
        ),
    ]


def _columns(study: Study, signals: Floats) -> tuple[Floats, Floats, Floats, Bools]:
    """C, α, C_final and whether the paper gate adopts."""
    found = study.layers["paper"](*torch.tensor(signals, dtype=torch.float64).unbind(-1))
    c, alpha, gated = (v.numpy() for v in (found.confidence, found.consistency, found.gated_confidence))
    return c, alpha, gated, (found.action == Action.ACTIVE).numpy()


def _partial(first: Floats, second: ArrayLike, fixed: Floats, weights: Counts) -> Floats:
    """Partial correlation (r₁₂ − r₁₃·r₂₃) / √((1 − r₁₃²)(1 − r₂₃²)); NaN where ``fixed`` leaves nothing."""
    r12, r13, r23 = (pearson(x, y, weights) for x, y in ((first, second), (first, fixed), (second, fixed)))
    left = np.sqrt(np.clip((1 - r13**2) * (1 - r23**2), 0.0, None))
    return np.where(left > 1e-9, (r12 - r13 * r23) / np.where(left > 1e-9, left, 1.0), np.nan)


def _cell(grid: GateGrid, a: int, b: int) -> MeanStd | None:
    if grid.accuracy[a, b] is np.ma.masked:
        return None
    return MeanStd(float(grid.accuracy[a, b]), float(grid.std[a, b]), PAPER_RESAMPLES)


def _pair(grid: GateGrid, place: tuple[int, int]) -> str:
    return f"({grid.constants[place[0]]:.1f}, {grid.coefficients[place[1]]:.1f})"


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, np.float64)
