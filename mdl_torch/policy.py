"""Stage 4: gated confidence to one of the four actions, and what holds when a store has nothing to offer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mdl_torch.config import MDLConfig
from mdl_torch.outputs import INVALID, Action, Decision, Status
from mdl_torch.risk import HIGH_RISK, reaches
from mdl_torch.stage import Stage, compute_dtype


class ActionPolicy(Stage):
    """Active if C_final >= θ0, Supp if >= θ1, Silent if >= θ2, else Opt-Out (Section 3.3).

    A NaN is Opt-Out. Half precision is compared in float32, where 0.2 is not rounded to 0.19995.

    Example:
        >>> ActionPolicy()(torch.tensor([0.6, 0.4, 0.2, 0.1]))
        tensor([0, 1, 2, 3], dtype=torch.int8)
    """

    thresholds: Tensor

    def __init__(self, config: MDLConfig | None = None) -> None:
        super().__init__()
        self.fixed("thresholds", (config or MDLConfig()).thresholds)

    def forward(self, gated_confidence: Tensor) -> Tensor:
        """C_final ``(*)`` to ``Action`` values, int8 ``(*)``."""
        dtype = compute_dtype(gated_confidence)
        reached = gated_confidence.to(dtype).unsqueeze(-1) >= self.thresholds.to(dtype)
        return (~reached).sum(dim=-1).to(torch.int8)  # each threshold missed is one step away from Active


def guard(decision: Decision, status: Tensor, *, require_relevant: bool) -> Decision:
    """Keep memories that are not there, or not relevant, out of the prompt.

    The equations know three scalars and would inject an empty store when risk is low. A store without a valid memory
    is never Active or Supp. With ``require_relevant`` a store with no relevant memory is Silent, or Opt-Out where the
    equations say so or the risk is in the top tier.

    Args:
        decision: What the equations say.
        status: ``Status`` bits of the signals, int32 ``(*)``; added to those of the decision.
        require_relevant: Whether memories must be relevant to be injected.

    Example:
        >>> from mdl_torch.layer import MemoryDecisionLayer
        >>> one = torch.tensor(1.0)
        >>> trusted = MemoryDecisionLayer()(one, one, 0 * one)
        >>> guard(trusted, torch.tensor(int(Status.NO_MEMORY)), require_relevant=False).action
        tensor(2, dtype=torch.int8)
    """
    status = decision.status | status.to(decision.status.dtype)
    empty = (status & Status.NO_MEMORY) != 0
    irrelevant = (status & (Status.NO_MEMORY | Status.NO_RELEVANT_MEMORY)) != 0
    invalid = (status & INVALID) != 0
    action = torch.where(empty, decision.action.clamp_min(int(Action.SILENT)), decision.action)
    if require_relevant:
        action = torch.where(irrelevant, action.clamp_min(int(Action.SILENT)), action)
        top = irrelevant & reaches(decision.risk, HIGH_RISK)
        action = torch.where(top, torch.full_like(action, int(Action.OPT_OUT)), action)
    action = torch.where(invalid, torch.full_like(action, int(Action.OPT_OUT)), action)
    return replace(decision, action=action, status=status)
