"""Embeddings in, decisions out: the part of the gate that is one torch graph, without text and without a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.policy import guard
from mdl_torch.signals import SignalExtractor

if TYPE_CHECKING:
    from mdl_torch.outputs import Decision, Signals
    from mdl_torch.stance import TextFeatures


class EmbeddingGate(nn.Module):
    """Signals, controller and the guard of empty stores, composed: Fig. 1 from stage 1 to stage 4.

    Args:
        layer: The controller; the ``paper`` preset with the exact range by default.
        extractor: The signals; with the lexical conflict detector by default.
        require_relevant: Whether a store needs a relevant memory to be injected.

    Example:
        >>> import torch
        >>> gate = EmbeddingGate()
        >>> memories = torch.tensor([[0.6, 0.8], [0.7, 0.7], [-1.0, 0.0]])
        >>> signals, decision = gate(torch.tensor([1.0, 0.0]), memories, torch.tensor(0.2))
        >>> signals.relevant, decision.action
        (tensor([ True,  True, False]), tensor(0, dtype=torch.int8))
    """

    def __init__(
        self,
        layer: MemoryDecisionLayer | None = None,
        extractor: SignalExtractor | None = None,
        *,
        require_relevant: bool = True,
    ) -> None:
        super().__init__()
        self.layer = MemoryDecisionLayer() if layer is None else layer
        self.extractor = SignalExtractor() if extractor is None else extractor
        self.require_relevant = require_relevant

    def forward(
        self,
        query: Tensor,
        memories: Tensor,
        risk: Tensor,
        *,
        mask: Tensor | None = None,
        stance: TextFeatures | None = None,
    ) -> tuple[Signals, Decision]:
        """Decide over stores of embeddings; arguments and errors as for ``SignalExtractor.forward``."""
        signals = self.extractor(query, memories, risk, mask=mask, stance=stance)
        decision = self.layer(signals.relevance, signals.reliability, signals.risk)
        return signals, guard(decision, signals.status, require_relevant=self.require_relevant)
