"""What several tests of the controller share: its oracle, valid configurations and signals to draw, and comparisons."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from oracle import Oracle

import mdl_torch
from mdl_torch import Calibration, MDLConfig, MemoryDecisionLayer, cli
from mdl_torch.calibration import config_digest
from mdl_torch.config import ABLATIONS, NAMED_BASES, PRESETS

DATA = Path(mdl_torch.__file__).parent / "data"

ORACLE_NAMES = {"subspace_dims": "dims", "subspace_gains": "gains", "cross_leakage": "leakage"}
"""The oracle's own names for values of the configuration."""

VALUE_TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}
ACTION_TOLERANCE = {torch.float64: 1e-11, torch.float32: 4e-6}
"""How near to a threshold the action may differ from the oracle's."""

VARIANTS = {"paper": MDLConfig(), **{name: MDLConfig().ablate(name) for name in ABLATIONS}}
"""The paper's configuration and every ablation of it."""

CONFIGURATIONS = {**VARIANTS, **PRESETS, "ensemble of 3": MDLConfig(seed=7, bases=3)}
"""Those, every preset, and a small ensemble of seeds that do not ship."""


@functools.cache
def oracle_of(config: MDLConfig) -> Oracle:
    """The oracle with the values of a configuration."""
    values = {ORACLE_NAMES.get(f.name, f.name): getattr(config, f.name) for f in dataclasses.fields(config)}
    if config.basis is not None:
        values["basis"] = np.load(DATA / NAMED_BASES[config.basis])
    return Oracle(**values)


def tensors(*values, dtype=torch.float64):
    """A tensor of each value."""
    return tuple(torch.as_tensor(v, dtype=dtype) for v in values)


def grid(points: int, dtype=torch.float64):
    """(M, R, A) on an evenly spaced grid of the cube, each (points³,)."""
    axis = torch.linspace(0, 1, points, dtype=dtype)
    return tuple(g.reshape(-1) for g in torch.meshgrid(axis, axis, axis, indexing="ij"))


def fields(decision) -> dict[str, torch.Tensor]:
    """The tensors of an output by name."""
    return {f.name: getattr(decision, f.name) for f in dataclasses.fields(decision)}


def assert_identical(got, expected) -> None:
    """Two outputs agree bit for bit, dtypes and shapes included."""
    for name, tensor in fields(expected).items():
        other = getattr(got, name)
        assert other.dtype == tensor.dtype, name
        torch.testing.assert_close(other, tensor, rtol=0, atol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")


def assert_agrees(layer: MemoryDecisionLayer, signals) -> None:
    """Layer and oracle give the same C, α, C_final and action, within the tolerance of the signals' dtype."""
    dtype, config = signals[0].dtype, layer.config
    decision, oracle = layer(*signals), oracle_of(config)
    plain = [s.double().numpy() for s in signals]
    *scalars, action = oracle.decide(*plain)
    names = ("confidence", "consistency", "gated_confidence")
    for name, expected in zip(names, scalars, strict=True):
        got = getattr(decision, name)
        assert got.dtype == dtype
        np.testing.assert_allclose(got.double(), expected, rtol=0, atol=VALUE_TOLERANCE[dtype], err_msg=name)
    gap = np.abs(np.asarray(scalars[-1])[..., None] - np.asarray(config.thresholds)).min(-1)
    clear = gap > ACTION_TOLERANCE[dtype]
    np.testing.assert_array_equal(decision.action.numpy()[clear], np.asarray(action)[clear])


def calibration_of(layer: MemoryDecisionLayer, **changes) -> Calibration:
    """A calibration fitted for this layer, in form only."""
    values = {
        "name": "test",
        "norm_range": (1.5, 3.0),
        "thresholds": (0.6, 0.4, 0.2),
        "range_method": "minmax",
        "threshold_method": "fixed",
        "config": config_digest(layer.config),
        "basis": layer.basis,
        "encoder": "encoder-a",
        "detector": "lexical",
        "dataset": "none",
        "samples": 80,
        "action_mix": {"active": (0.5, 0.4, 0.6), "supp": (0.5, 0.4, 0.6)},
        "provenance": {"seed": 0},
    }
    return Calibration(**{**values, **changes})


def unit(width: int = 64):
    """Floats of [0, 1], ends included; nothing between 0 and 2^-100, whose squares the oracle itself would lose."""
    return st.just(0.0) | st.floats(2.0**-100, 1, width=width)


@st.composite
def signal_batches(draw, dtype=torch.float64):
    """(M, R, A) of a batch, M a little beyond [0, 1] too."""
    width = 64 if dtype == torch.float64 else 32
    n = draw(st.integers(1, 8))
    relevance = st.one_of(unit(width=width), st.floats(-1, 0, width=width), st.just(1.0000001192092896))
    columns = [draw(st.lists(s, min_size=n, max_size=n)) for s in (relevance, unit(width=width), unit(width=width))]
    return tuple(torch.tensor(c, dtype=dtype) for c in columns)


@st.composite
def configs(draw):
    """Valid configurations: every value of Table 2 and every switch; some with several bases, some with a named one."""
    basis = draw(st.sampled_from([None] * 5 + ["certified"]))
    dims = draw(st.sampled_from([(5, 5, 6), (9, 1, 6)]) if basis else st.tuples(*[st.integers(1, 9)] * 3))
    gains = draw(st.tuples(*[st.floats(0.2, 1.5)] * 3))
    low = draw(st.floats(0, 2))
    spread = draw(st.floats(0.5, 3))
    falling = sorted(draw(st.lists(st.integers(0, 1000), min_size=3, max_size=3, unique=True)), reverse=True)
    return MDLConfig(
        dim=sum(dims),
        subspace_dims=dims,
        sigma=draw(st.floats(0.05, 1)),
        subspace_gains=gains,
        cross_leakage=draw(st.floats(0, 0.99)) * min(gains),
        risk_gain=draw(st.tuples(unit(), unit())),
        gate=draw(st.tuples(unit(), unit())),
        bias=draw(st.just(0.0) | st.floats(-1, -1e-3) | st.floats(1e-3, 1)),
        thresholds=tuple(t / 1000 for t in falling),
        norm_range=draw(st.sampled_from([None, (low, low + spread)])),
        seed=MDLConfig.seed if basis else draw(st.integers(0, 2**32)),
        bases=MDLConfig.bases if basis else draw(st.sampled_from([1, 1, 1, 2, 3])),
        basis=basis,
        **{name: draw(st.sampled_from([True, True, False])) for name in ABLATIONS},
    )


def mdl(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """``mdl`` in this process: exit status, standard output, standard error."""
    try:
        status = cli.main(arguments)
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    return status, *capfd.readouterr()
