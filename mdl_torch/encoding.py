"""Stage 2a: scalars in [0, 1] become value vectors (Section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from mdl_torch.config import MDLConfig
from mdl_torch.stage import Stage


def value_vectors(scalars: Tensor, centres: Tensor, sigma: Tensor | float) -> Tensor:
    """v(s) = s·1 + Σ_i exp(-(s - c_i)² / 2σ²) e_i, Section 3.2.

    Args:
        scalars: s, ``(*)``.
        centres: c, ``(D,)``.
        sigma: σ > 0, width of the peaks.

    Returns:
        v(s), ``(*, D)``.

    Example:
        >>> value_vectors(torch.tensor(1.0), torch.tensor([0.0, 1.0]), 0.2)
        tensor([1.0000, 2.0000])
    """
    s = scalars.unsqueeze(-1)
    return s + torch.exp(-((s - centres) ** 2) / (2 * sigma**2))


class ValueEncoder(Stage):
    """Scalars to value vectors, with D centres evenly spaced over [0, 1].

    With ``value_encoding`` off it is the ablation v(s) = s·1.

    Example:
        >>> ValueEncoder()(torch.tensor([0.0, 0.5])).shape
        torch.Size([2, 16])
    """

    centres: Tensor
    sigma: Tensor

    def __init__(self, config: MDLConfig | None = None) -> None:
        super().__init__()
        config = config or MDLConfig()
        self.peaks = config.value_encoding
        self.fixed("centres", torch.linspace(0.0, 1.0, config.dim, dtype=torch.float64))
        self.fixed("sigma", config.sigma)

    def forward(self, scalars: Tensor) -> Tensor:
        """``(*)`` scalars to ``(*, D)`` vectors of the same dtype."""
        centres = self.centres.to(scalars.dtype)
        if not self.peaks:
            return scalars.unsqueeze(-1).expand(*scalars.shape, centres.shape[0])
        return value_vectors(scalars, centres, self.sigma.to(scalars.dtype))
