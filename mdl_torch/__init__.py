"""The decision stage between retrieval and generation.

A retriever says which memory is most similar; this package says whether the memories deserve trust, and shows why.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdl_torch.calibration import Calibration
    from mdl_torch.certificate import Certificate
    from mdl_torch.config import MDLConfig
    from mdl_torch.gate import MemoryGate
    from mdl_torch.layer import MemoryDecisionLayer
    from mdl_torch.outputs import Action, Decision, Signals, Status

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Calibration",
    "Certificate",
    "Decision",
    "MDLConfig",
    "MemoryDecisionLayer",
    "MemoryGate",
    "Signals",
    "Status",
]


_HOMES = {
    "Action": "outputs",
    "Calibration": "calibration",
    "Certificate": "certificate",
    "Decision": "outputs",
    "MDLConfig": "config",
    "MemoryDecisionLayer": "layer",
    "MemoryGate": "gate",
    "Signals": "outputs",
    "Status": "outputs",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that ``mdl --help`` need not wait for torch."""
    if name in _HOMES:
        value = getattr(import_module(f"mdl_torch.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
