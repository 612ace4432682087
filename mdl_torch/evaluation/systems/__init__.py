"""Every system by its name."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from mdl_torch.evaluation.controllers import CONTROLLERS
from mdl_torch.evaluation.systems.consensus import IsolatedVote, LargestCluster
from mdl_torch.evaluation.systems.crag import CRAG
from mdl_torch.evaluation.systems.learned import LearnedDecision
from mdl_torch.evaluation.systems.plain import AlwaysAbstain, MemoryDecision, NoMemory, StandardRAG
from mdl_torch.evaluation.systems.self_rag import SelfRAG

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdl_torch.evaluation.systems.base import System

SYSTEMS: dict[str, Callable[[], System]] = {
    "b1": NoMemory,
    "b2": StandardRAG,
    "b3": MemoryDecision,
    "certified": lambda: MemoryDecision("certified", "certified"),
    "ensemble": lambda: MemoryDecision("ensemble", "ensemble"),
    "abstain": AlwaysAbstain,
    "crag": CRAG,
    "crag_unanimous": lambda: CRAG("crag_unanimous", "unanimous"),
    "self_rag": SelfRAG,
    "largest_cluster": LargestCluster,
    "isolated_vote": IsolatedVote,
    **{name: functools.partial(LearnedDecision, name) for name in CONTROLLERS},
}
"""See CONTRIBUTING.md for how to add one."""
