"""Stage 2c: risk modulation and fusion of the three channels into v_meta (Section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from mdl_torch.config import MDLConfig
from mdl_torch.stage import Stage


def risk_gain(risk_vector: Tensor, coefficients: Tensor) -> Tensor:
    """g_A = g0 + g1·⟨v_a⟩, with ⟨·⟩ the mean over the dimensions; 0.5 + 0.5·⟨v_a⟩ in the paper.

    Args:
        risk_vector: v_a, ``(*, D)``, not projected.
        coefficients: (g0, g1), ``(2,)``.

    Returns:
        ``(*)``.

    Example:
        >>> risk_gain(torch.ones(16), torch.tensor([0.5, 0.5]))
        tensor(1.)
    """
    return coefficients[0] + coefficients[1] * risk_vector.mean(dim=-1)


class MetaFusion(Stage):
    """v_meta = tanh(g_A W_wm v_wm + W_r v_r + W_a v_a + b).

    With ``risk_modulation`` off it is the ablation g_A = 1.

    Example:
        >>> fusion = MetaFusion()
        >>> channels, gain = fusion.modulate(torch.zeros(16), torch.ones(3, 16))
        >>> gain, channels[0, 0], fusion(channels)[0]
        (tensor(0.5000), tensor(0.5000), tensor(0.9866))
    """

    coefficients: Tensor
    bias: Tensor

    def __init__(self, config: MDLConfig | None = None) -> None:
        super().__init__()
        config = config or MDLConfig()
        self.modulated = config.risk_modulation
        self.fixed("coefficients", config.risk_gain)
        self.fixed("bias", torch.full((config.dim,), config.bias, dtype=torch.float64))

    def gain(self, risk_vector: Tensor) -> Tensor:
        """g_A of v_a, ``(*, D)`` to ``(*)``."""
        if not self.modulated:
            return torch.ones_like(risk_vector[..., 0])
        return risk_gain(risk_vector, self.coefficients.to(risk_vector.dtype))

    def modulate(self, risk_vector: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
        """What each channel adds before tanh: g_A W_wm v_wm, W_r v_r and W_a v_a.

        Args:
            risk_vector: v_a, ``(*, D)``, not projected.
            projected: W_k v_k, ``(*, 3, D)``; with several bases ``(*, n, 3, D)`` to a v_a ``(*, 1, D)``.

        Returns:
            The channels, shaped as ``projected``, and g_A, as v_a without D.
        """
        gain = self.gain(risk_vector)
        relevance, reliability, risk = projected.unbind(-2)
        return torch.stack((gain.unsqueeze(-1) * relevance, reliability, risk), dim=-2), gain

    def forward(self, channels: Tensor) -> Tensor:
        """Channels ``(*, 3, D)`` to v_meta ``(*, D)``."""
        return torch.tanh(channels.sum(dim=-2) + self.bias.to(channels.dtype))
