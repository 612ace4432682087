"""Why: what each subspace and channel contributed to a decision, and how little would have changed it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.subspace import projectors

SEARCH_POINTS, REFINE_POINTS, REFINEMENTS = 33, 17, 5
"""A crossing is looked for on 33 points from the signal to 0 and to 1, then narrowed five times by 16: to 3e-8."""


@dataclass(frozen=True)
class Audit:
    """The white-box account of decisions; every field float64 (indices int64) on the device of the layer.

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
        >>> a = audit(MemoryDecisionLayer(), *torch.tensor([0.7, 0.3, 0.5], dtype=torch.float64))
        >>> round(a.energy.sum().item(), 9) == round(2.775632780417214**2, 9)
        True
        >>> round(a.distance.item(), 4), a.boundary.item()
        (0.1283, 0)
    """
    point = torch.stack([t.detach().double() for t in (relevance, reliability, risk)], dim=-1)
    _, channels, meta, _ = layer.represent(*point.unbind(-1))
    pi = projectors(layer.projection.basis, layer.projection.dims)
    energy = torch.einsum("...d,kde,...e->...k", meta, pi, meta)
    z = channels.sum(dim=-2) + layer.fusion.bias
    contribution = (channels @ z.unsqueeze(-1)).squeeze(-1) / (z * z).sum(-1, keepdim=True).clamp_min(1e-300)
    gaps = layer(*point.unbind(-1)).gated_confidence.unsqueeze(-1) - layer.policy.thresholds
    boundary = gaps.abs().argmin(dim=-1)
    distance = gaps.gather(-1, boundary.unsqueeze(-1)).squeeze(-1)
    threshold = layer.policy.thresholds[boundary]
    change = smallest_change(layer, point, threshold, distance >= 0)
    return Audit(energy, contribution, boundary, distance, change)


def smallest_change(layer: MemoryDecisionLayer, point: Tensor, threshold: Tensor, above: Tensor) -> Tensor:
    """Smallest signed change of one signal alone, within [0, 1], that brings C_final across a threshold.

    From the point towards 0 and towards 1, the first crossing on a grid is narrowed down grid by grid, all signals and
    both directions at once.

    Args:
        layer: The controller.
        point: (M, R, A), float64 ``(*, 3)``.
        threshold: θ, ``(*)``.
        above: Whether C_final is at or above θ now, bool ``(*)``.

    Returns:
        ``(*, 3)``; NaN for a signal that never crosses.
    """
    eye = torch.eye(3, dtype=point.dtype, device=point.device)

    def crossed(values: Tensor) -> Tensor:
        """Whether C_final lies on the other side with signal k alone at ``values[..., k]``, ``(n, 2, *, 3)``."""
        moved = point.unsqueeze(-2) * (1 - eye) + values.unsqueeze(-1) * eye
        return (layer(*moved.unbind(-1)).gated_confidence >= threshold.unsqueeze(-1)) != above.unsqueeze(-1)

    ends = torch.arange(2, dtype=point.dtype, device=point.device).reshape(2, *[1] * point.ndim).expand(2, *point.shape)
    near, far = point.expand_as(ends), ends
    found = torch.zeros_like(near, dtype=torch.bool)
    for points in (SEARCH_POINTS, *[REFINE_POINTS] * REFINEMENTS):
        steps = torch.linspace(0.0, 1.0, points, dtype=point.dtype, device=point.device)
        values = near + steps.reshape(-1, *[1] * near.ndim) * (far - near)
        hit = crossed(values)
        first = hit.to(torch.int8).argmax(dim=0, keepdim=True).clamp_min(1)  # the first point, ``near``, has not crossed
        found = found | hit.any(dim=0)
        near, far = values.gather(0, first - 1).squeeze(0), values.gather(0, first).squeeze(0)
    change = torch.where(found, far - point, torch.inf)
    smallest = change.gather(0, change.abs().argmin(dim=0, keepdim=True)).squeeze(0)
    return torch.where(smallest.isfinite(), smallest, torch.nan)
