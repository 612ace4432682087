"""Settings for all tests, and the fixtures that several files share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from mdl_torch.encoder import SentenceEncoder
from mdl_torch.gate import MemoryGate

ROOT = Path(__file__).resolve().parent.parent

os.environ.pop("COLUMNS", None)  # a process of pytest-xdist has it; what is printed must not hang on it

settings.register_profile("mdl", deadline=None)  # the first call of a layer may compute its exact range
settings.load_profile("mdl")

torch.set_num_threads(1)  # thousands of tiny tensors: threads that wait for each other cost more than they give


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def encoder() -> SentenceEncoder:
    """The real default encoder, loaded once. Tests that count what it computes make their own."""
    return SentenceEncoder.from_pretrained()


@pytest.fixture(scope="session")
def gate(encoder: SentenceEncoder) -> MemoryGate:
    """The gate as users get it."""
    return MemoryGate.from_pretrained(encoder)


@pytest.fixture(scope="session")
def lenient(encoder: SentenceEncoder) -> MemoryGate:
    """The same, but bad values make a row Opt-Out instead of raising."""
    return MemoryGate.from_pretrained(encoder, validate_args=False)


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """``shared_data("TruthfulQA.csv")``: a development file, or a skip that says where it was looked for."""

    def find(name: str) -> Path:
        folder = Path(os.environ.get("MDL_DATA") or ROOT.parent / "shared" / "data")
        if not (folder / name).is_file():
            pytest.skip(f"{name} is not in {folder} (MDL_DATA names another folder)")
        return folder / name

    return find
