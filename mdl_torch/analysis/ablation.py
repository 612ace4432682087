"""What the controller decides without one of its mechanisms: the paper's Table 7(a) (Section 5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mdl_torch.analysis.accuracy import actions_of, decides, share
from mdl_torch.analysis.complementarity import fitted, nothing_to_fit, points, right_together
from mdl_torch.analysis.samples import FAVOURED
from mdl_torch.config import ABLATIONS, MDLConfig
from mdl_torch.evaluation.statistics import paired_difference
from mdl_torch.evaluation.tables import Table
from mdl_torch.layer import MemoryDecisionLayer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mdl_torch.analysis.samples import Samples
    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.statistics import Estimate
    from mdl_torch.evaluation.tables import Cell

    Bools = NDArray[np.bool_]

FULL = "full controller"
"""What the others are compared with."""

PAPER = {
    FULL: 0.612,
    "alpha_gate": 0.596,
    "risk_modulation": 0.595,
    "orthogonal_subspaces": 0.640,
    "risk_inversion": 0.557,
    "value_encoding": 0.434,
}
"""Accuracies of Table 7(a): deepseek-v4-flash, TruthfulQA and HaluEval, 3600 answers."""


def ablations(split: Samples, config: MDLConfig | None = None) -> dict[str, MemoryDecisionLayer | None]:
    """The full controller, and one without each mechanism, all with range and thresholds of a calibration split.

    Args:
        split: Labelled answers.
        config: The full one; ``paper`` by default.

    Returns:
        By name, ``FULL`` and the keys of ``ABLATIONS``; None where the split leaves no range, see ``fitted``.

    Raises:
        ValueError: The split is empty.
    """
    full = config or MDLConfig()
    configs = {FULL: full, **{name: full.ablate(name) for name in ABLATIONS}}
    return {name: fitted(MemoryDecisionLayer(one), split.signals, split.adopt) for name, one in configs.items()}


def ablation_table(study: Study) -> Table:
    """Table 7(a): accuracy without each mechanism, and its difference to the full controller."""
    columns = (
        "controller", "what is left", "accuracy", "adopts", "difference (points)",
        "accuracy (B1 and B2 together)", "difference (B1 and B2 together, points)", "paper",
    )  # fmt: skip
    title, samples, pairs = "Ablation of the controller (Table 7(a))", study.samples, study.pairs
    if not len(samples) or not len(study.split):
        return Table("ablation", title, columns, (), nothing_to_fit(study))
    layers = ablations(study.split)
    fitting = {name: layer for name, layer in layers.items() if layer}
    adopts = {name: decides(actions_of(layer, samples.signals)) for name, layer in fitting.items()}
    right = {name: decided == samples.adopt for name, decided in adopts.items()}
    together = {
        name: right_together(pairs, decides(actions_of(layer, pairs.signals))) for name, layer in fitting.items()
    }
    asked, asked_together = samples.questions, pairs.questions[pairs.telling]
    pooled, paired = _differences(right, asked), _differences(together, asked_together)
    rows: list[tuple[Cell, ...]] = []
    for name in layers:
        figures: tuple[Cell, ...] = (None,) * 5
        if name in fitting:
            figures = (
                share(right[name], asked),
                float(adopts[name].mean()),
                pooled.get(name),
                share(together[name], asked_together),
                paired.get(name),
            )
        rows.append((_label(name), ABLATIONS.get(name), *figures, PAPER[name]))
    pooled_only = [name for name in pooled if _excludes_zero(pooled[name]) and not _excludes_zero(paired[name])]
    return Table(
        "ablation", title, columns, tuple(rows), _note(study, [n for n in layers if n not in fitting], pooled_only)
    )


def _label(name: str) -> str:
    return name if name == FULL else f"without {name.replace('_', ' ')}"


def _differences(right: dict[str, Bools], questions: NDArray[np.str_]) -> dict[str, Estimate]:
    """Of each to ``FULL``, in points; none where that is missing."""
    asked, numbers = questions.tolist(), {name: one.astype(np.float64) for name, one in right.items()}
    return {
        name: points(paired_difference(mine, numbers[FULL], asked))
        for name, mine in numbers.items()
        if name != FULL and FULL in numbers
    }


def _excludes_zero(difference: Estimate) -> bool:
    interval = difference.interval
    return interval is not None and (interval.low > 0 or interval.high < 0)


def _note(study: Study, missing: list[str], pooled_only: list[str]) -> str:
    samples, telling = study.samples, int(study.pairs.telling.sum())
    note = (
        f"{len(samples)} answers to {len(np.unique(samples.questions))} questions, only Active is adopt; range and"
        f" thresholds of each are fitted on the calibration split ({len(study.split)} answers). Differences are to the"
        " full controller, their intervals a bootstrap over questions, paired. Where nothing is adopted, or everything,"
        f" accuracy is the share of one label. {FAVOURED} The oracle of B1 and B2 together is of the {telling} pairs"
        " that make a difference."
    )
    if pooled_only and telling:
        note += (
            f" {', '.join(map(_label, pooled_only))}: the interval of the difference excludes 0 only under the"
            " pooled labels, which favour the full controller; under those of B1 and B2 together it does not."
        )
    if missing:
        note += f" {', '.join(map(_label, missing))}: the signals hardly vary on the split, which leaves no range."
    return note
