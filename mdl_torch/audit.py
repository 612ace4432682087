"""Why: what each subspace and channel contributed to a decision, and how little would have changed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from mdl_torch.subspace import projectors

if TYPE_CHECKING:
    from mdl_torch.layer import MemoryDecisionLayer

SEARCH_STEPS = 128
"""A crossing is looked for on the points of [0, 1] so many steps apart; two crossings within one step are missed."""

REFINE_STEPS, REFINEMENTS = 16, 5
"""The step in which a crossing lies is split in 16, five times over: to 1e-8."""

ROWS_AT_ONCE = 64
"""Rows that one basis searches at once: about 3 MB a tensor, so that they stay in the cache."""


@dataclass(frozen=True)
class Audit:
    """The white-box account of decisions; every field float64 (indices int64) on the device of the layer.

    With several bases energies and contributions are means over them, and so add up to the mean of ‖v_meta‖² and to 1.

    Attributes:
        energy: ‖Π_k v_meta‖² for the relevance, reliability and risk subspace, ``(*, 3)``; adds up to ‖v_meta‖².
        contribution: ⟨z_k, z⟩/⟨z, z⟩, the share of each channel in the fused signal z before tanh, ``(*, 3)``; adds
            up to 1, less the share of the bias where there is one. A channel that pulls against the others is negative.
        boundary: Index of the threshold nearest to C_final, ``(*)``: 0 between Active and Supp, 1 and 2 below.
        distance: C_final - θ at that threshold, ``(*)``: negative below it.
        change: Smallest signed change of M, R and A, each alone and within [0, 1], that carries C_final across that
            threshold, ``(*, 3)``; NaN where none does. See ``smallest_change``.
    """

    energy: Tensor
    contribution: Tensor
    boundary: Tensor
    distance: Tensor
    change: Tensor


def audit(layer: MemoryDecisionLayer, relevance: Tensor, reliability: Tensor, risk: Tensor) -> Audit:
    """Account for the decisions of a layer on valid signals in [0, 1], in float64.

    Args:
        layer: The controller.
        relevance: M, ``(*)``.
        reliability: R, ``(*)``.
        risk: A, ``(*)``.

    Example:
        >>> from mdl_torch import MemoryDecisionLayer
        >>> a = audit(MemoryDecisionLayer(), *torch.tensor([0.7, 0.3, 0.5], dtype=torch.float64))
        >>> round(a.energy.sum().item(), 9) == round(2.775632780417214**2, 9)
        True
        >>> round(a.distance.item(), 4), a.boundary.item()
        (0.1283, 0)
    """
    point = torch.stack([t.detach().double() for t in (relevance, reliability, risk)], dim=-1)
    _, channels, meta, _ = layer.represent(*point.unbind(-1))
    pi = projectors(layer.projection.basis, layer.projection.dims)
    energy = torch.einsum("...d,...kde,...e->...k", meta, pi, meta)
    z = channels.sum(dim=-2) + layer.fusion.bias
    contribution = (channels @ z.unsqueeze(-1)).squeeze(-1) / (z * z).sum(-1, keepdim=True).clamp_min(1e-300)
    if layer.config.bases > 1:
        energy, contribution = energy.mean(dim=-2), contribution.mean(dim=-2)
    gaps = layer(*point.unbind(-1)).gated_confidence.unsqueeze(-1) - layer.policy.thresholds
    boundary = gaps.abs().argmin(dim=-1)
    distance = gaps.gather(-1, boundary.unsqueeze(-1)).squeeze(-1)
    threshold = layer.policy.thresholds[boundary]
    change = smallest_change(layer, point, threshold, distance >= 0)
    return Audit(energy, contribution, boundary, distance, change)


def smallest_change(layer: MemoryDecisionLayer, point: Tensor, threshold: Tensor, above: Tensor) -> Tensor:
    """Smallest signed change of one signal alone, within [0, 1], that brings C_final across a threshold.

    The nearest crossing on either side is found on a grid and narrowed down, for all signals at once.

    Args:
        layer: The controller.
        point: (M, R, A), float64 ``(*, 3)``.
        threshold: θ, ``(*)``.
        above: Whether C_final is at or above θ now, bool ``(*)``.

    Returns:
        ``(*, 3)``; NaN for a signal that never crosses.

    Example:
        >>> from mdl_torch import MemoryDecisionLayer
        >>> point = torch.tensor([0.7, 0.3, 0.5], dtype=torch.float64)
        >>> smallest_change(MemoryDecisionLayer(), point, torch.tensor(0.6), torch.tensor(True)).round(decimals=4)
        tensor([-0.4078, -0.2491,  0.3063], dtype=torch.float64)
    """
    columns = point.reshape(-1, 3), threshold.reshape(-1), above.reshape(-1)
    rows = max(1, ROWS_AT_ONCE // layer.config.bases)
    blocks = zip(*(column.split(rows) for column in columns), strict=True)
    return torch.cat([_search(layer, *block) for block in blocks]).reshape(point.shape)


def _search(layer: MemoryDecisionLayer, point: Tensor, threshold: Tensor, above: Tensor) -> Tensor:
    """``smallest_change`` of some rows: ``(n, 3)``, ``(n)`` and ``(n)`` to ``(n, 3)``."""
    here = _channels(layer, point)

    def crossed(values: Tensor) -> Tensor:
        """Whether C_final lies on the other side with signal k alone at ``values[..., k]``, ``(*, n, 3)``."""
        moved = _confidence_along(layer, here, _channels(layer, values))
        return (moved >= threshold.unsqueeze(-1)) != above.unsqueeze(-1)

    grid = torch.linspace(0.0, 1.0, SEARCH_STEPS + 1, dtype=point.dtype, device=point.device)[:, None, None]
    hit, offset = crossed(grid.expand(-1, 1, 3)), grid - point
    side = torch.tensor([1.0, -1.0], dtype=point.dtype, device=point.device)[:, None, None]  # towards 1, towards 0
    reach = torch.stack([torch.where(hit & (x > 0), x, torch.inf).amin(dim=0) for x in (offset, -offset)])
    found = reach.isfinite()
    width = torch.where(found, reach, 0.0).clamp_max(1 / SEARCH_STEPS)  # from the last point not crossed, or the start
    near = torch.where(found, reach, 0.0) - width
    inner = torch.arange(1, REFINE_STEPS, device=point.device)[:, None, None, None]
    for _ in range(REFINEMENTS):
        width = width / REFINE_STEPS
        missed = ~crossed(point + side * (near + inner * width))
        near = near + missed.cumprod(dim=0).sum(dim=0) * width
    reach = torch.where(found, near + width, torch.inf)
    shortest, direction = reach.min(dim=0)
    change = shortest * side.flatten()[direction]
    return torch.where(change.isfinite(), change, torch.nan)


class _Channels(NamedTuple):
    """v_wm ``(*, D)``, g_A ``(*, 1)``, and the projected vectors before modulation, W_k v_k, ``(*, D)`` each.

    With several bases they are ``(*, 1, D)``, ``(*, 1, 1)`` and ``(*, n, D)``.
    """

    vector: Tensor
    gain: Tensor
    relevance: Tensor
    reliability: Tensor
    risk: Tensor


def _channels(layer: MemoryDecisionLayer, signals: Tensor) -> _Channels:
    """What each of the signals ``(*, 3)`` brings to the fusion on its own."""
    vectors = layer.spread(layer.encode(*signals.unbind(-1)))
    gain = layer.fusion.gain(vectors[..., 2, :]).unsqueeze(-1)
    return _Channels(vectors[..., 0, :], gain, *layer.projection(vectors).unbind(-2))


def _confidence_along(layer: MemoryDecisionLayer, here: _Channels, moved: _Channels) -> Tensor:
    """C_final with M, R or A alone moved, ``(*, 3)``; the channels of points and of values broadcast to ``(*)``."""
    z = (
        here.gain * moved.relevance + (here.reliability + here.risk),
        here.gain * here.relevance + here.risk + moved.reliability,
        moved.gain * here.relevance + (here.reliability + moved.risk),
    )
    vectors = torch.broadcast_tensors(moved.vector, here.vector, here.vector)
    signal = -2 if layer.config.bases == 1 else -3  # the axis of M, R and A, before that of the bases
    meta = layer.fusion(torch.stack(z, dim=signal).unsqueeze(-2))  # one channel: their sum
    return layer.averaged(layer.head(torch.stack(vectors, dim=signal), meta)).gated_confidence
