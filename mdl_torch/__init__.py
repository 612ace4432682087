"""The decision stage between retrieval and generation.

A retriever says which memory is most similar; this package says whether the memories deserve trust, and shows why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mdl_torch.calibration import Calibration
from mdl_torch.config import MDLConfig
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Action, Decision, Signals, Status

if TYPE_CHECKING:
    from mdl_torch.gate import MemoryGate as MemoryGate

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Calibration",
    "Decision",
    "MDLConfig",
    "MemoryDecisionLayer",
    "MemoryGate",
    "Signals",
    "Status",
]


def __getattr__(name: str) -> Any:
    """Import the text side of the package only when it is asked for: the controller needs torch and numpy alone."""
    if name == "MemoryGate":
        from mdl_torch.gate import MemoryGate

        return MemoryGate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
