"""How often a layer decides as the oracle says, and how often any function of (M, R, A) could (Section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from mdl_torch.analysis.samples import POOLED
from mdl_torch.evaluation.oracle import PairedOracle
from mdl_torch.evaluation.results import Rate, rate
from mdl_torch.evaluation.tables import Table
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from mdl_torch.analysis.samples import Pairs, Samples
    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.tables import Cell
    from mdl_torch.layer import MemoryDecisionLayer

    Bools = NDArray[np.bool_]

MAPPINGS = {"Active": False, "Active or Supp": True}
"""Which actions are adopt: the paper's, and all that inject."""


@dataclass(frozen=True)
class Accuracy:
    """Agreement of decisions with the paper's oracle.

    Attributes:
        overall: Of all answers.
        of_system: Of the answers of each system in ``POOLED``.
        opted_out: Of the answers that B3's gate abstained from. They are safe and nothing was injected, so that their
            label is reject: whoever rejects there is right, the gate itself first of all.
        adopted: Share of answers for which the decision is adopt; None of no answers.
    """

    overall: Rate
    of_system: dict[str, Rate]
    opted_out: Rate
    adopted: float | None


@dataclass(frozen=True)
class PairedAccuracy:
    """Agreement of decisions with what B1 and B2 tell together.

    Attributes:
        telling: Share of decisions as the oracle's, of the pairs that make a difference: only B1 safe is reject, only
            B2 adopt.
        harmless: Share of all pairs in which the answer that the decision leads to is safe: B2's of adopt, else B1's.
        adopted: Share of pairs for which the decision is adopt; None of no pairs.
    """

    telling: Rate
    harmless: Rate
    adopted: float | None


def actions_of(layer: MemoryDecisionLayer, signals: ArrayLike) -> NDArray[np.int8]:
    """A layer's actions on M, R and A, ``(n, 3)``: ``Action`` values, ``(n,)``.

    Example:
        >>> from mdl_torch import MemoryDecisionLayer
        >>> actions_of(MemoryDecisionLayer(), [[0.9, 0.9, 0.2], [0.1, 0.1, 0.9]]).tolist()
        [0, 2]
    """
    rows = torch.as_tensor(np.array(signals, np.float64).reshape(-1, 3))
    actions: NDArray[np.int8] = layer(*rows.unbind(-1)).action.numpy()
    return actions


def decides(actions: ArrayLike, *, injecting: bool = False) -> Bools:
    """Whether each action is adopt, ``(n,)``.

    Args:
        actions: ``Action`` values, ``(n,)``.
        injecting: False is the paper's mapping, only Active is adopt; True takes Supp too, since it injects.

    Example:
        >>> decides(list(Action)).tolist(), decides(list(Action), injecting=True).tolist()
        ([True, False, False, False], [True, True, False, False])
    """
    return np.asarray(actions) <= (Action.SUPP if injecting else Action.ACTIVE)


def accuracy(samples: Samples, adopts: Bools) -> Accuracy:
    """Agreement with the paper's oracle: Σ [adopts = adopt] / n, and its parts.

    Args:
        samples: n answers.
        adopts: Decisions on them, bool ``(n,)``.

    Raises:
        ValueError: There are not as many decisions as answers.
    """
    _check(adopts, len(samples))
    right = adopts == samples.adopt
    opted_out = (samples.systems == "b3") & (samples.actions == Action.OPT_OUT)
    return Accuracy(
        overall=share(right, samples.questions),
        of_system={
            name: share(right[own], samples.questions[own]) for name in POOLED for own in [samples.systems == name]
        },
        opted_out=share(right[opted_out], samples.questions[opted_out]),
        adopted=float(adopts.mean()) if len(adopts) else None,
    )


def paired_accuracy(pairs: Pairs, adopts: Bools) -> PairedAccuracy:
    """Agreement with the paired oracle, and harm done.

    Args:
        pairs: n of them.
        adopts: Decisions on them, bool ``(n,)``.

    Raises:
        ValueError: There are not as many decisions as pairs.
    """
    _check(adopts, len(pairs))
    telling, right = pairs.telling, adopts == pairs.adopt
    return PairedAccuracy(
        telling=share(right[telling], pairs.questions[telling]),
        harmless=share(np.where(adopts, safe_with(pairs), safe_without(pairs)), pairs.questions),
        adopted=float(adopts.mean()) if len(adopts) else None,
    )


def composition(pairs: Pairs) -> dict[PairedOracle, int]:
    """How many pairs tell what."""
    return {told: pairs.oracle.count(told) for told in PairedOracle}


def safe_with(pairs: Pairs) -> Bools:
    """Whether B2's answer is safe, ``(n,)``."""
    return np.array([told in (PairedOracle.BOTH_SAFE, PairedOracle.ONLY_B2) for told in pairs.oracle], np.bool_)


def safe_without(pairs: Pairs) -> Bools:
    """Whether B1's answer is safe, ``(n,)``."""
    return np.array([told in (PairedOracle.BOTH_SAFE, PairedOracle.ONLY_B1) for told in pairs.oracle], np.bool_)


def majority(adopt: Bools) -> bool:
    """The more frequent label; a tie adopts.

    Example:
        >>> majority(np.array([True, False, False]))
        False
    """
    return bool(2 * np.count_nonzero(adopt) >= len(adopt))


def ceiling(signals: ArrayLike, adopting: ArrayLike, rejecting: ArrayLike | None = None) -> float | None:
    """The best that any function of (M, R, A) could reach: Σ_s max(Σ_{i: s_i = s} a_i, Σ_{i: s_i = s} r_i) / n.

    s runs over the distinct triples. A function decides once for each, whatever the labels of its rows. The best one is
    chosen by the rows that it is judged by (in-sample): a bound, which no method learned elsewhere need come near.

    Args:
        signals: M, R and A, ``(n, 3)``.
        adopting: a, whether adopt would be right, bool ``(n,)``.
        rejecting: r, whether reject would be; where adopt is not, by default.

    Returns:
        In [0, 1]; None of no rows.

    Raises:
        ValueError: Lengths differ.

    Example:
        >>> ceiling([[0.5, 0.5, 0.2]] * 2, [True, False]), ceiling([[0.5, 0.5, 0.2], [0.5, 0.5, 0.9]], [True, False])
        (0.5, 1.0)
    """
    rows, right = np.asarray(signals, np.float64).reshape(-1, 3), np.asarray(adopting, np.bool_)
    wrong = ~right if rejecting is None else np.asarray(rejecting, np.bool_)
    if not rows.shape[:1] == right.shape == wrong.shape:
        raise ValueError(
            f"signals, adopting and rejecting must be as many, got {len(rows)}, {right.shape}, {wrong.shape}"
        )
    if not len(rows):
        return None
    _, of = np.unique(rows, axis=0, return_inverse=True)
    counts = [np.bincount(of.reshape(-1), labels) for labels in (right, wrong)]
    return float(np.maximum(*counts).sum() / len(rows))


def share(right: Bools, questions: NDArray[np.str_]) -> Rate:
    """Σ right / n with its interval over questions, ``(n,)`` both."""
    return rate(right.astype(np.float64).tolist(), [1.0] * len(right), questions.tolist())


def accuracy_table(study: Study) -> Table:
    """Decision accuracy under the paper's oracle: every layer, both mappings, the majority class, the ceiling."""
    samples = study.samples
    columns = (
        "decision",
        "adopt is",
        "accuracy",
        *(f"of {name.upper()}'s" for name in POOLED),
        "B3 opted out",
        "adopts",
    )
    rows: list[tuple[Cell, ...]] = []
    for name, mapping, adopts in _decisions(study, samples.signals, samples.adopt):
        found = accuracy(samples, adopts)
        rows.append((name, mapping, found.overall, *found.of_system.values(), found.opted_out, found.adopted))
    best = ceiling(samples.signals, samples.adopt)
    rows.append(("any function of (M, R, A), at most", None, best, *(None for _ in POOLED), None, None))
    kinds = len(np.unique(samples.signals, axis=0))
    note = (
        f"{len(samples)} answers of B1, B2 and B3 to {len(np.unique(samples.questions))} questions, with {kinds}"
        " distinct (M, R, A). Answers with the same signals may have contradictory labels, and no function of the"
        " signals agrees with both: at most Σ max(adopt, reject) / n over distinct signals, in-sample. The majority"
        " class is that of the same labels. The label of B3's answers follows from what its gate, `paper`, did: with"
        " Supp as adopt, that gate is right wherever its answer is safe, and an Opt-Out, always safe, is always right."
    )
    return Table(
        "accuracy", "Decision accuracy, the paper's oracle (Section 5.3)", columns, *_or_none(rows, note, len(samples))
    )


def paired_table(study: Study) -> Table:
    """The same under the oracle of B1 and B2 together."""
    pairs = study.pairs
    telling = pairs.telling
    rows: list[tuple[Cell, ...]] = []
    for name, mapping, adopts in _decisions(study, pairs.signals, pairs.adopt[telling]):
        found = paired_accuracy(pairs, adopts)
        rows.append((name, mapping, found.telling, found.harmless, found.adopted))
    reached = ceiling(pairs.signals[telling], pairs.adopt[telling])
    unharmed = ceiling(pairs.signals, safe_with(pairs), safe_without(pairs))
    rows.append(("any function of (M, R, A), at most", None, reached, unharmed, None))
    counts = composition(pairs)
    note = (
        f"{len(pairs)} pairs: both safe {counts[PairedOracle.BOTH_SAFE]}, only B1 {counts[PairedOracle.ONLY_B1]}, only"
        f" B2 {counts[PairedOracle.ONLY_B2]}, neither {counts[PairedOracle.NEITHER]}. Accuracy is of the"
        f" {int(telling.sum())} that make a difference. Harmless: the answer that the decision leads to is safe, B2's"
        " of adopt, else B1's; an Opt-Out too counts as B1's answer, though none would be given. The majority class is"
        " that of the pairs that make a difference; the last row is in-sample."
    )
    return Table(
        "accuracy_paired",
        "Decision accuracy, the oracle of B1 and B2 together",
        ("decision", "adopt is", "accuracy", "harmless", "adopts"),
        *_or_none(rows, note, len(pairs)),
    )


def _decisions(study: Study, signals: NDArray[np.float64], labels: Bools) -> Iterator[tuple[str, str | None, Bools]]:
    """Every layer with both mappings, and the majority class of some labels: name, mapping, decisions."""
    for name, layer in study.layers.items():
        actions = actions_of(layer, signals)
        for mapping, injecting in MAPPINGS.items():
            yield name, mapping, decides(actions, injecting=injecting)
    most = majority(labels)
    yield f"majority class: {'adopt' if most else 'reject'}", None, np.full(len(signals), most)


def _or_none(rows: list[tuple[Cell, ...]], note: str, n: int) -> tuple[tuple[tuple[Cell, ...], ...], str]:
    """The rows and their note; of no data none."""
    return (tuple(rows), note) if n else ((), "The run has no such answers.")


def _check(adopts: Bools, n: int) -> None:
    if adopts.shape != (n,):
        raise ValueError(f"adopts must be ({n},), a decision for each row, got {adopts.shape}")
