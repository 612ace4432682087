"""How much a decision owes to the seed of the basis, which the paper draws at random and nothing else depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mdl_torch.config import MOST_BASES
from mdl_torch.layer import MemoryDecisionLayer, refit_norm_range
from mdl_torch.outputs import Action
from mdl_torch.policy import guard

if TYPE_CHECKING:
    from mdl_torch.outputs import Decision

POINTS_AT_ONCE = 4_096
"""Points times bases that are decided together: some ten megabytes a tensor."""


@dataclass(frozen=True)
class SeedStability:
    """Over many decisions: how often they hang on the seed.

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


def seeded(layer: MemoryDecisionLayer, seeds: int, *, first: int = 0) -> MemoryDecisionLayer:
    """The layers of other seeds, all else equal, as one layer of as many bases.

    Each has the range that its own basis would have got: fitted on the retrievals of the layer's calibration, or the
    exact one. A range that was set by hand, or fitted by a calibration that does not hold its signals, stays.

    Args:
        layer: Of any preset.
        seeds: How many, from 2.
        first: Seeds are ``first``, ``first + 1`` and so on.

    Raises:
        ValueError: ``seeds`` is out of range.

    Example:
        >>> seeded(MemoryDecisionLayer(), 3).config.bases
        3
    """
    if not 2 <= seeds <= MOST_BASES:
        raise ValueError(f"seeds must be from 2 to {MOST_BASES}, got {seeds}")
    config = layer.held_config()
    config = replace(config, basis=None, seed=first, bases=seeds)
    calibration = None if layer.hand_set else layer.calibration
    others = MemoryDecisionLayer(config).to(layer.policy.thresholds.device)
    if calibration is not None and calibration.signals:
        fitted = refit_norm_range(calibration, others)
        others.head.norm_range = others.head.norm_range.new_tensor(fitted)
    return others


def seeded_actions(others: MemoryDecisionLayer, relevance: Tensor, reliability: Tensor, risk: Tensor) -> Tensor:
    """The action of each basis of a layer of several, at valid signals in [0, 1], ``(n)``: int8 ``(n, bases)``.

    Example:
        >>> seeded_actions(seeded(MemoryDecisionLayer(), 5), *torch.tensor([[0.3], [0.5], [0.85]]))
        tensor([[2, 2, 2, 2, 2]], dtype=torch.int8)
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
        relevance: M, in [0, 1], ``(n)`` with n >= 1.
        reliability: R.
        risk: A.
        seeds: As for ``seeded``.
        first: As for ``seeded``.

    Raises:
        ValueError: ``seeds`` is out of range, or there are no signals.

    Example:
        >>> signals = torch.rand(3, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> seed_stability(MemoryDecisionLayer(), *signals, seeds=5).decisions
        100
    """
    if relevance.ndim != 1 or not relevance.numel():
        raise ValueError(f"relevance must be (n) with n >= 1, got {tuple(relevance.shape)}")
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


def agreement(others: MemoryDecisionLayer, decision: Decision, status: Tensor, *, require_relevant: bool) -> Tensor:
    """``stability`` of decisions: the share of seeds that take the same action, guard included, ``(n)``.

    Args:
        others: As ``seeded`` makes them.
        decision: The decisions, ``(n)``, after the guard.
        status: ``Status`` bits of the signals.
        require_relevant: As for ``policy.guard``.
    """
    actions = seeded_actions(others, decision.relevance, decision.reliability, decision.risk)
    guarded = [
        guard(replace(decision, action=column), status, require_relevant=require_relevant).action
        for column in actions.unbind(-1)
    ]
    return (torch.stack(guarded, dim=-1) == decision.action.unsqueeze(-1)).double().mean(dim=-1)


def cube(points: int) -> tuple[Tensor, Tensor, Tensor]:
    """M, R and A of a grid of the cube, in the middle of its ``points``³ cells, so that each stands for as much of it.

    Example:
        >>> cube(2)[2]
        tensor([0.2500, 0.7500, 0.2500, 0.7500, 0.2500, 0.7500, 0.2500, 0.7500], dtype=torch.float64)
    """
    axis = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    relevance, reliability, risk = torch.cartesian_prod(axis, axis, axis).unbind(-1)
    return relevance, reliability, risk
