"""Stage 3: confidence C and consistency α, decoupled from v_meta and joined by the gate (Section 3.3, Eq. 2)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mdl_torch.config import MDLConfig, NormRange
from mdl_torch.stage import Stage


def confidence(norm: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """C = clip((‖v_meta‖ - n_min) / (n_max - n_min), 0, 1), Eq. 2. Any shape.

    Example:
        >>> confidence(torch.tensor([0.5, 1.5, 9.0]), 1.0, 2.0)
        tensor([0.0000, 0.5000, 1.0000])
    """
    return ((norm - low) / (high - low)).clamp(0.0, 1.0)


def consistency(relevance_vector: Tensor, meta: Tensor) -> Tensor:
    """α = cos(v_wm, v_meta) in [-1, 1], Eq. 2 and Corollary 1; 0 where either has no length.

    Args:
        relevance_vector: v_wm, ``(*, D)``, without the gain.
        meta: v_meta, ``(*, D)``.

    Example:
        >>> consistency(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]))
        tensor(0.7071)
    """
    tiny = torch.finfo(meta.dtype).tiny
    largest = relevance_vector.abs().amax(dim=-1, keepdim=True)
    direction = relevance_vector / largest.clamp_min(tiny)  # else squares underflow: without value encoding v_wm = M·1
    lengths: Tensor = direction.norm(dim=-1) * meta.norm(dim=-1)
    dot = (direction * meta).sum(dim=-1)
    return (dot / lengths.clamp_min(tiny)).clamp(-1.0, 1.0)


class Trust(NamedTuple):
    """‖v_meta‖, C, α and C_final, each ``(*)``; of every one of several bases, ``(*, n)``."""

    norm: Tensor
    confidence: Tensor
    consistency: Tensor
    gated_confidence: Tensor


class ConfidenceHead(Stage):
    """C, α and C_final = C·(g_a + g_b·α).

    With ``alpha_gate`` off it is the ablation C_final = C.

    Args:
        config: The configuration.
        norm_range: (n_min, n_max), for all bases; or one such pair for each of several.

    Example:
        >>> head = ConfidenceHead(norm_range=(0.0, 4.0))
        >>> head(torch.ones(16), torch.full((16,), 0.5)).gated_confidence
        tensor(0.5000)
    """

    norm_range: Tensor
    gate: Tensor

    def __init__(self, config: MDLConfig | None = None, *, norm_range: NormRange) -> None:
        super().__init__()
        config = config or MDLConfig()
        self.gated = config.alpha_gate
        ranges = torch.as_tensor(norm_range, dtype=torch.float64)
        self.fixed("norm_range", ranges if config.bases == 1 else ranges.expand(config.bases, 2).clone())
        self.fixed("gate", config.gate)

    def forward(self, relevance_vector: Tensor, meta: Tensor) -> Trust:
        """v_wm and v_meta, ``(*, D)`` each, to four scalars of shape ``(*)``.

        With a range for each of n bases: v_wm ``(*, 1, D)`` and v_meta ``(*, n, D)`` to ``(*, n)``.
        """
        norm = meta.norm(dim=-1)
        low, high = self.norm_range.to(meta.dtype).unbind(-1)
        c = confidence(norm, low, high)
        alpha = consistency(relevance_vector, meta)
        constant, slope = self.gate.to(meta.dtype).unbind()
        return Trust(norm, c, alpha, c * (constant + slope * alpha) if self.gated else c)
