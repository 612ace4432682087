"""What the controller decides without one of its mechanisms: the paper's Table 7(a) (Section 5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mdl_torch.analysis.accuracy import actions_of, decides, share
from mdl_torch.analysis.complementarity import FAVOURED, fitted, nothing_to_fit, points
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
    rows: list[tuple[Cell, ...]] = []
    reference: tuple[Bools, Bools] | None = None
    telling = pairs.telling
    for name, layer in layers.items():
        label, left = (name, None) if name == FULL else (f"without {name.replace('_', ' ')}", ABLATIONS[name])
        if layer is None:
            rows.append((label, left, None, None, None, None, None, PAPER[name]))
            continue
        adopts = decides(actions_of(layer, samples.signals))
        right = adopts == samples.adopt
        together = (decides(actions_of(layer, pairs.signals)) == pairs.adopt)[telling]
        differences: tuple[Cell, Cell] = (None, None)
        if name == FULL:
            reference = right, together
        elif reference:
            differences = (
                _difference(right, reference[0], samples.questions),
                _difference(together, reference[1], pairs.questions[telling]),
            )
        rows.append(
            (
                label,
                left,
                share(right, samples.questions),
                float(adopts.mean()),
                differences[0],
                share(together, pairs.questions[telling]),
                differences[1],
                PAPER[name],
            )
        )
    note = (
        f"{len(samples)} answers to {len(np.unique(samples.questions))} questions, only Active is adopt; range and"
        f" thresholds of each are fitted on the calibration split ({len(study.split)} answers). Differences are to the"
        " full controller, their intervals a bootstrap over questions, paired. Where nothing is adopted, or everything,"
        f" accuracy is the share of one label. {FAVOURED} The oracle of B1 and B2 together is of the"
        f" {int(telling.sum())} pairs that make a difference."
    )
    if missing := [row[0] for row in rows if row[2] is None]:
        note += f" {', '.join(map(str, missing))}: the signals hardly vary on the split, which leaves no range."
    return Table("ablation", title, columns, tuple(rows), note)


def _difference(first: Bools, second: Bools, questions: NDArray[np.str_]) -> Estimate:
    return points(paired_difference(first.astype(np.float64), second.astype(np.float64), questions.tolist()))
