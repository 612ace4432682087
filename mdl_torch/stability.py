"""How much a decision owes to the seed of the basis, which the paper draws at random and nothing else depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mdl_torch.config import MOST_BASES
from mdl_torch.layer import MemoryDecisionLayer, refit_norm_range, signal_status
from mdl_torch.outputs import Action
from mdl_torch.policy import guard
from mdl_torch.verify import obstacles

if TYPE_CHECKING:
    from mdl_torch.gate import MemoryGate
    from mdl_torch.records import DecisionRecord

CUBE_POINTS = 41
"""Points along each signal of the grid that the seeds decide on where no other number is asked for."""

POINTS_AT_ONCE = 4_096
"""Points times bases that are decided together: some ten megabytes a tensor."""

_LABELS = tuple(action.label for action in Action)


@dataclass(frozen=True)
class SeedStability:
    """Of many decisions: how often they hang on the seed.

    Attributes:
        decisions: Their number.
        seeds: How many seeded layers decided on each.
        changed: Share of the decisions of two seeds that differ, over all pairs of seeds.
        differing: Share of the seeds' decisions that differ from the layer's own.
        unanimous: Share of the points on which all seeds agree.
        by_action: ``differing`` among the points that the layer gives each action; None for an action that it never
            takes.
    """

    decisions: int
    seeds: int
    changed: float
    differing: float
    unanimous: float
    by_action: dict[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class ActionStability:
    """Of one decision: what the layers of other seeds would have done.

    Attributes:
        seeds: Their number.
        first: The first of the seeds.
        action: What was decided.
        actions: How many would have taken each action.
    """

    seeds: int
    first: int
    action: str
    actions: dict[str, int]

    @property
    def share(self) -> float:
        """The share of those that would have taken the same."""
        return self.actions[self.action] / self.seeds

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "share": self.share}


def seeded(layer: MemoryDecisionLayer, seeds: int, *, first: int = 0) -> MemoryDecisionLayer:
    """The layers of other seeds, all else equal, as one layer of as many bases; its own seed may be among them.

    Each has the range that its own basis would have got: fitted on the retrievals of the layer's calibration, or the
    exact one. A range that was set by hand, or fitted by a calibration that does not hold its signals, stays.

    Args:
        layer: Of any configuration; of several bases or a named one, too.
        seeds: How many, from 2.
        first: Seeds are ``first``, ``first + 1`` and so on.

    Raises:
        ValueError: ``seeds`` is out of range, or no configuration holds what was changed of the layer in place.

    Example:
        >>> seeded(MemoryDecisionLayer(), 3).config.bases
        3
    """
    if not 2 <= seeds <= MOST_BASES:
        raise ValueError(f"seeds must be from 2 to {MOST_BASES}, got {seeds}")
    if changed := layer.changed():
        raise ValueError(
            f"layer must be as configured, so that only the seed differs; changed in place: {', '.join(changed)}"
        )
    held, calibration = layer.held_config(), layer.calibration
    config = replace(held, basis=None, seed=first, bases=seeds)
    others = MemoryDecisionLayer(config).to(layer.policy.thresholds.device)
    if calibration is not None and calibration.signals and held.norm_range == calibration.norm_range:
        fitted = refit_norm_range(calibration, others)
        others.head.norm_range = others.head.norm_range.new_tensor(fitted)
    return others


def seeded_actions(others: MemoryDecisionLayer, relevance: Tensor, reliability: Tensor, risk: Tensor) -> Tensor:
    """The action of each basis of a layer of several, at valid signals in [0, 1], ``(n)``: int8 ``(n, bases)``.

    Example:
        >>> seeded_actions(seeded(MemoryDecisionLayer(), 5), *torch.tensor([[0.3], [0.5], [0.85]]))
        tensor([[1, 1, 1, 1, 1]], dtype=torch.int8)
    """
    columns = torch.stack((relevance, reliability, risk)).double()
    at_once = max(1, POINTS_AT_ONCE // others.config.bases)
    blocks = [others.policy(others.trust(*block).gated_confidence) for block in columns.split(at_once, dim=-1)]
    return torch.cat(blocks)


def seed_stability(
    layer: MemoryDecisionLayer, relevance: Tensor, reliability: Tensor, risk: Tensor, *, seeds: int, first: int = 0
) -> SeedStability:
    """How often decisions on signals hang on the seed.

    Args:
        layer: What they are compared with.
        relevance: M, ``(n)`` with n >= 1; clipped to [0, 1], as the layer does.
        reliability: R.
        risk: A.
        seeds: As for ``seeded``.
        first: As for ``seeded``.

    Raises:
        ValueError: As ``seeded`` does; or there are no signals, or some of them are faulty.

    Example:
        >>> signals = torch.rand(3, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> seed_stability(MemoryDecisionLayer(), *signals, seeds=5).decisions
        100
    """
    for name, signal in (("relevance", relevance), ("reliability", reliability), ("risk", risk)):
        if signal.ndim != 1 or not signal.numel() or signal.shape != relevance.shape:
            raise ValueError(f"{name} must be (n) with n >= 1, as many as relevance, got {tuple(signal.shape)}")
    if faulty := int(signal_status(relevance, reliability, risk).count_nonzero()):
        raise ValueError(f"signals must be finite and in [0, 1], got {faulty} of {relevance.numel()} that are not")
    relevance = relevance.clamp(0.0, 1.0)
    actions = seeded_actions(seeded(layer, seeds, first=first), relevance, reliability, risk).long()
    own = layer(relevance.double(), reliability.double(), risk.double()).action.long()
    counts = torch.nn.functional.one_hot(actions, len(Action)).sum(dim=1).double()
    alike = (counts * (counts - 1)).sum(dim=-1) / (seeds * (seeds - 1))
    differing = (actions != own.unsqueeze(-1)).double().mean(dim=-1)
    taken = {action.label: differing[own == action] for action in Action}
    return SeedStability(
        decisions=relevance.numel(),
        seeds=seeds,
        changed=1 - alike.mean().item(),
        differing=differing.mean().item(),
        unanimous=(counts.amax(dim=-1) == seeds).double().mean().item(),
        by_action={label: values.mean().item() if len(values) else None for label, values in taken.items()},
    )


def stability_of(record: DecisionRecord, gate: MemoryGate, seeds: int, *, first: int = 0) -> ActionStability:
    """How many of the layers of other seeds would have taken the action of a decision, guard included.

    A decision on faulty values is Opt-Out whatever the seed.

    Args:
        record: The decision.
        gate: The gate that took it.
        seeds: As for ``seeded``.
        first: As for ``seeded``.

    Raises:
        ValueError: As ``seeded`` does; or another gate took the decision.

    Example:
        >>> from mdl_torch.gate import MemoryGate
        >>> gate = MemoryGate()
        >>> record = gate.decide("What is tea?", ["Tea is a drink.", "Tea is drunk hot."], risk=0.2)
        >>> stability_of(record, gate, 5).actions
        {'active': 5, 'supp': 0, 'silent': 0, 'opt_out': 0}
    """
    if differing := obstacles(record, gate):
        raise ValueError(f"the decision must be one of this gate: {'; '.join(differing)}")
    others = seeded(gate.layer, seeds, first=first)
    point = gate.layer.policy.thresholds.new_tensor([[record.relevance], [record.reliability], [record.risk]])
    decision = gate.layer(*point)
    actions = seeded_actions(others, decision.relevance, decision.reliability, decision.risk)
    status = torch.tensor(record.status, dtype=torch.int32, device=point.device)
    require_relevant = gate.embedding_gate.require_relevant
    guarded = guard(replace(decision, action=actions[0]), status, require_relevant=require_relevant).action
    counts = torch.bincount(guarded.long(), minlength=len(Action)).tolist()
    return ActionStability(seeds, first, record.action.label, dict(zip(_LABELS, counts, strict=True)))


def cube(points: int) -> tuple[Tensor, Tensor, Tensor]:
    """M, R and A of a grid of the cube, in the middle of its ``points``³ cells, so that each stands for as much of it.

    Example:
        >>> cube(2)[2].tolist()
        [0.25, 0.75, 0.25, 0.75, 0.25, 0.75, 0.25, 0.75]
    """
    axis = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    relevance, reliability, risk = torch.cartesian_prod(axis, axis, axis).unbind(-1)
    return relevance, reliability, risk
