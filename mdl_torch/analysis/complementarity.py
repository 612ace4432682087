"""What each of the three signals adds to the decision: the paper's Table 6 (Section 5.3)."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mdl_torch.analysis.accuracy import actions_of, decides, share
from mdl_torch.analysis.samples import FAVOURED
from mdl_torch.evaluation.fitting import refit
from mdl_torch.evaluation.statistics import (
    Estimate,
    Interval,
    McNemar,
    PairedT,
    mcnemar,
    paired_difference,
    paired_t,
    per_question,
)
from mdl_torch.evaluation.tables import Table, p_in_words, t_in_words
from mdl_torch.layer import MemoryDecisionLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from mdl_torch.analysis.samples import Pairs, Samples
    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.tables import Cell

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

CONFIGURATIONS: dict[str, tuple[int, ...]] = {
    "M": (0,),
    "R": (1,),
    "A": (2,),
    "M + R": (0, 1),
    "M + A": (0, 2),
    "R + A": (1, 2),
    "M + R + A": (0, 1, 2),
}
"""Which columns of the signals each one reads."""

FULL = "M + R + A"
"""What the others are compared with."""

PAPER = {"M": 0.581, "R": 0.581, "A": 0.581, "M + R": 0.581, "M + A": 0.583, "R + A": 0.627, "M + R + A": 0.612}
"""Accuracies of Table 6: deepseek-v4-flash, TruthfulQA and HaluEval, 3600 answers."""


@dataclass(frozen=True)
class Restricted:
    """A layer that reads some of the signals.

    A missing one is held at its mean on the calibration split. A constant tells nothing of an answer, and the mean
    leaves the layer where it usually works; 0 or 1 would move it to an edge of the cube, and a signal cannot be left
    out, since the layer has a place for each.

    Attributes:
        layer: With range and thresholds fitted on signals held like this.
        kept: Columns that it reads.
        neutral: What the others are held at, ``(3,)``.
    """

    layer: MemoryDecisionLayer
    kept: tuple[int, ...]
    neutral: Floats

    def adopts(self, signals: ArrayLike) -> Bools:
        """Whether it is Active on M, R and A, ``(n, 3)``: bool ``(n,)``."""
        return decides(actions_of(self.layer, held(signals, self.kept, self.neutral)))


class Comparison(NamedTuple):
    """Whether one decides right more often than another, on the same answers.

    Attributes:
        difference: In accuracy, first − second, with a bootstrap over questions.
        over_answers: Paired t over indicators of single answers, as the paper's. It takes answers as independent, which
            those to one question are not: its p is too small.
        over_questions: Paired t over the mean indicator of each question.
        mcnemar: On the indicators, which are binary; it takes answers as independent, too.
    """

    difference: Estimate
    over_answers: PairedT
    over_questions: PairedT
    mcnemar: McNemar


def held(signals: ArrayLike, kept: Sequence[int], neutral: ArrayLike) -> Floats:
    """Signals ``(n, 3)``, of which those not kept are replaced by a constant each.

    Example:
        >>> held([[0.9, 0.8, 0.7]], [0, 2], [0.1, 0.2, 0.3]).tolist()
        [[0.9, 0.2, 0.7]]
    """
    rows = np.array(signals, np.float64).reshape(-1, 3)
    missing = [column for column in range(3) if column not in kept]
    rows[:, missing] = np.asarray(neutral, np.float64)[missing]
    return rows


def restricted(split: Samples, kept: tuple[int, ...], layer: MemoryDecisionLayer | None = None) -> Restricted | None:
    """A layer that reads some of the signals, with range and thresholds fitted on a calibration split.

    Args:
        split: Labelled answers.
        kept: Columns of the signals.
        layer: The ``paper`` preset by default.

    Returns:
        None where they leave no range; see ``fitted``.

    Raises:
        ValueError: The split is empty.
    """
    neutral = split.signals.mean(axis=0) if len(split) else np.zeros(3)
    found = fitted(layer or MemoryDecisionLayer(), held(split.signals, kept, neutral), split.adopt)
    return Restricted(found, kept, neutral) if found else None


def fitted(layer: MemoryDecisionLayer, signals: ArrayLike, adopt: Bools) -> MemoryDecisionLayer | None:
    """The layer with range and thresholds of a calibration split; see ``refit``.

    Args:
        layer: Its own range and thresholds play no part.
        signals: M, R and A, ``(n, 3)``, finite.
        adopt: Labels, bool ``(n,)``.

    Returns:
        None where ‖v_meta‖ hardly varies over the split, so that there is no range.

    Raises:
        ValueError: The split is empty.

    Example:
        >>> fitted(MemoryDecisionLayer(), [[0.5, 0.5, 0.2]] * 2, np.array([True, False])) is None
        True
    """
    if not len(adopt):
        raise ValueError("split must have at least one answer, got none")
    try:
        return refit(layer, signals, adopt)
    except ValueError:  # of a split that is not empty and finite: no range
        return None


def compare(first: Bools, second: Bools, questions: NDArray[np.str_]) -> Comparison:
    """Compares who is right.

    Args:
        first: Whether the first is, of each answer, bool ``(n,)``, n >= 1.
        second: Of the second.
        questions: That are answered, ``(n,)``.

    Raises:
        ValueError: Lengths differ, or there is no answer.

    Example:
        >>> right = np.array([True, True, False])
        >>> found = compare(right, ~right, np.array(["a", "b", "c"]))
        >>> round(found.difference.value, 3), round(found.over_answers.d_z, 3), found.mcnemar.p
        (0.333, 0.289, 1.0)
    """
    asked = questions.tolist()
    means = [list(per_question(right.astype(np.float64), asked).values()) for right in (first, second)]
    return Comparison(
        difference=paired_difference(first.astype(np.float64), second.astype(np.float64), asked),
        over_answers=paired_t(first.astype(np.float64), second.astype(np.float64)),
        over_questions=paired_t(*means),
        mcnemar=mcnemar(first.tolist(), second.tolist()),
    )


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for their number, by Holm's method: p_(i) becomes max_{j ≤ i} min(1, (m − j + 1)·p_(j)).

    Args:
        values: m of them; None where a test had nothing to test, which counts as p = 1 and stays None.

    Raises:
        ImportError: statsmodels is not installed.

    Example:
        >>> holm([0.01, None, 0.04])
        [0.03, None, 0.08]
    """
    if not values:
        return []
    try:
        multitest = importlib.import_module("statsmodels.stats.multitest")
    except ImportError as error:
        raise ImportError("Holm's correction needs statsmodels: pip install mdl_torch[evaluate]") from error
    corrected = multitest.multipletests([1.0 if p is None else p for p in values], method="holm")[1]
    return [None if p is None else float(c) for p, c in zip(values, corrected, strict=True)]


def points(difference: Estimate) -> Estimate:
    """A difference of shares in percentage points.

    Example:
        >>> points(Estimate(0.05, Interval(0.01, 0.1), 20, 40))
        Estimate(value=5.0, interval=Interval(low=1.0, high=10.0), questions=20, samples=40)
    """
    value, interval = difference.value, difference.interval
    return Estimate(
        None if value is None else 100 * value,
        None if interval is None else Interval(100 * interval.low, 100 * interval.high),
        difference.questions,
        difference.samples,
    )


def complementarity_table(study: Study) -> Table:
    """Table 6: accuracy with each set of signals, and its difference to all three."""
    columns = (
        "signals", "accuracy", "adopts", "difference (points)", "t over answers", "d_z", "McNemar", "t over questions",
        "d_z over questions", "Holm", "accuracy (B1 and B2 together)", "difference (B1 and B2 together, points)",
        "t over questions (B1 and B2 together)", "paper",
    )  # fmt: skip
    title, samples, pairs = "Complementarity of the signals (Table 6)", study.samples, study.pairs
    if not len(samples) or not len(study.split):
        return Table("complementarity", title, columns, (), nothing_to_fit(study))
    layers = {name: restricted(study.split, kept) for name, kept in CONFIGURATIONS.items()}
    fitting = {name: layer for name, layer in layers.items() if layer}
    adopts = {name: layer.adopts(samples.signals) for name, layer in fitting.items()}
    right = {name: decided == samples.adopt for name, decided in adopts.items()}
    together = {name: right_together(pairs, layer.adopts(pairs.signals)) for name, layer in fitting.items()}
    asked, asked_together = samples.questions, pairs.questions[pairs.telling]
    tests, tests_together = _pooled_tests(right, asked), _paired_tests(together, asked_together)
    rows: list[tuple[Cell, ...]] = []
    for name in CONFIGURATIONS:
        measured = (share(right[name], asked), float(adopts[name].mean())) if name in fitting else (None,) * 2
        reached = share(together[name], asked_together) if name in fitting else None
        rows.append((name, *measured, *tests[name], reached, *tests_together[name], PAPER[name]))
    return Table("complementarity", title, columns, tuple(rows), _note(study, [n for n in layers if n not in fitting]))


def right_together(pairs: Pairs, adopts: Bools) -> Bools:
    """Whether decisions are the paired oracle's, of the pairs that make a difference.

    Args:
        pairs: n of them.
        adopts: Decisions on all of them, bool ``(n,)``.

    Returns:
        ``(m,)``, m the pairs that are ``telling``.
    """
    right: Bools = (adopts == pairs.adopt)[pairs.telling]
    return right


def nothing_to_fit(study: Study) -> str:
    """What a run lacks that a layer would be fitted on, or judged by."""
    return f"The run has no labelled {'answers of a calibration split' if len(study.samples) else 'answers'}."


def _compared(right: dict[str, Bools], questions: NDArray[np.str_]) -> dict[str, Comparison]:
    """Each with ``FULL``; of no answers, or where that is missing, none."""
    if FULL not in right or not len(questions):
        return {}
    return {name: compare(mine, right[FULL], questions) for name, mine in right.items() if name != FULL}


def _pooled_tests(right: dict[str, Bools], questions: NDArray[np.str_]) -> dict[str, tuple[Cell, ...]]:
    """Cells of every comparison, by the name of a configuration; empty ones where there is none."""
    compared = _compared(right, questions)
    corrected = dict(zip(compared, holm([one.over_questions.p for one in compared.values()]), strict=True))
    cells: dict[str, tuple[Cell, ...]] = dict.fromkeys(CONFIGURATIONS, (None,) * 7)
    for name, found in compared.items():
        p = corrected[name]
        cells[name] = (
            points(found.difference),
            t_in_words(found.over_answers),
            found.over_answers.d_z,
            f"{found.mcnemar.only_first} : {found.mcnemar.only_second}, {p_in_words(found.mcnemar.p)}",
            t_in_words(found.over_questions),
            found.over_questions.d_z,
            None if p is None else p_in_words(p),
        )
    return cells


def _paired_tests(right: dict[str, Bools], questions: NDArray[np.str_]) -> dict[str, tuple[Cell, ...]]:
    """The same of the pairs: the difference, and its test over questions."""
    cells: dict[str, tuple[Cell, ...]] = dict.fromkeys(CONFIGURATIONS, (None,) * 2)
    for name, found in _compared(right, questions).items():
        cells[name] = (points(found.difference), t_in_words(found.over_questions))
    return cells


def _note(study: Study, missing: list[str]) -> str:
    samples = study.samples
    note = (
        f"{len(samples)} answers to {len(np.unique(samples.questions))} questions, only Active is adopt. A missing"
        f" signal is held at its mean on the calibration split ({len(study.split)} answers), and range and thresholds"
        " are fitted there for each set. Differences are to M + R + A, their intervals a bootstrap over questions. t"
        " over answers and McNemar (right alone : M + R + A right alone) take answers as independent, as the paper's t"
        " does. Those to one question are not: t over questions, and Holm's correction of it for the number of"
        " comparisons, heed that. Where nothing is adopted, or everything, accuracy is the share of one label, whatever"
        f" the signals; so may be the paper's figures that are alike. {FAVOURED} The oracle of B1 and B2 together is of"
        f" the {int(study.pairs.telling.sum())} pairs that make a difference; its p is not corrected. A difference"
        " weighs answers or pairs alike and t over questions weighs questions alike, so that small ones can differ in"
        " sign where questions have not as many."
    )
    if missing:
        note += f" {', '.join(missing)}: nothing that is read varies on the split, which leaves no range."
    return note
