"""The decision stage between retrieval and generation.

A retriever says which memory is most similar; this package says whether the memories deserve trust, and shows why.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mdl_torch.calibration import Calibration
from mdl_torch.config import MDLConfig
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Action, Decision, Signals, Status

__version__ = "0.1.0"
