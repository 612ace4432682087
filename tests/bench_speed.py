"""Timings, never asserted: ``pytest tests/bench_speed.py``. Read the ratios within one run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracle import Oracle

from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.stance import detector

TEXTS = [f"The returns desk does not accept opened software after day {day} of the month." for day in range(1000)]


@pytest.mark.benchmark(group="one decision from (M, R, A)")
def test_oracle(benchmark):
    oracle = Oracle(norm_range=(1.2523, 3.2806))
    assert benchmark(oracle.decide, 0.7, 0.3, 0.5)[3] == 0


@pytest.mark.benchmark(group="one decision from (M, R, A)")
def test_layer_eager(benchmark):
    layer = MemoryDecisionLayer()
    with torch.inference_mode():
        assert benchmark(layer, *torch.tensor([0.7, 0.3, 0.5])).action == 0


@pytest.mark.benchmark(group="100,000 decisions")
def test_oracle_batched(benchmark):
    signals = np.random.default_rng(0).random((3, 100_000))
    benchmark(Oracle(norm_range=(1.2523, 3.2806)).decide, *signals)


@pytest.mark.benchmark(group="100,000 decisions")
def test_layer_eager_batched(benchmark):
    layer, signals = MemoryDecisionLayer(), torch.rand(3, 100_000)
    with torch.inference_mode():
        benchmark(layer, *signals)


@pytest.mark.benchmark(group="stance features of 1,000 texts of 13 words")
def test_stance_features(benchmark):
    assert benchmark(detector("lexical").features, TEXTS).shape == (1000,)
