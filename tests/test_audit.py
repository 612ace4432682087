"""The account of a decision against direct computation, and its smallest changes against a plain scan."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import oracle
import pytest
import torch
from cases import CONFIGURATIONS, VARIANTS, configs, fields, grid, oracle_of, tensors, unit
from hypothesis import given, settings

from mdl_torch import Action, Calibration, MDLConfig, MemoryDecisionLayer
from mdl_torch.audit import ROWS_AT_ONCE, audit

LAYER, ENSEMBLE = MemoryDecisionLayer(), MemoryDecisionLayer(CONFIGURATIONS["ensemble of 3"])
CORNERS = grid(2)
STEP = 1e-4
"""Of the plain scan, which has 10,001 points."""


def random_points(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# --- energy and contributions ----------------------------------------------------------------------------------------


def assert_accounts(config: MDLConfig, points: torch.Tensor) -> None:
    """Energies and contributions as the oracle has them, with their sums: of several bases the means."""
    signals = points.numpy().T
    a = audit(MemoryDecisionLayer(config), *points.unbind(-1))
    accounts = [account(one, signals) for one in oracle_of(config).members()]
    energy, square, share, bias, clear = (np.stack(column) for column in zip(*accounts, strict=True))
    np.testing.assert_allclose(a.energy, energy.mean(0), rtol=0, atol=1e-10)
    np.testing.assert_allclose(a.energy.sum(-1), square.mean(0), rtol=0, atol=1e-10)
    clear = clear.all(0)
    np.testing.assert_allclose(a.contribution[clear], share.mean(0)[clear], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(a.contribution.sum(-1)[clear], 1 - bias.mean(0)[clear], rtol=1e-9, atol=1e-9)


def account(plain: oracle.Oracle, signals: np.ndarray) -> tuple[np.ndarray, ...]:
    """Energies, ‖v_meta‖², shares of the channels and of the bias, and where z is long enough for shares."""
    _, meta, gain = plain.fuse(*signals)
    energy = np.stack([((meta @ p) ** 2).sum(-1) for p in oracle.projectors(plain.q(), plain.dims)], axis=-1)
    v_wm, v_a, _ = plain.channels(signals[0], signals[2])
    vectors = (gain[..., None] * v_wm, plain.encode(signals[1]), v_a)
    z = np.stack([v @ w.T for v, w in zip(vectors, plain.weights(), strict=True)], axis=-2)
    whole = z.sum(-2) + plain.bias
    square = (whole**2).sum(-1)
    length = np.maximum(square, 1e-300)
    share = np.einsum("nkd,nd->nk", z, whole) / length[:, None]
    return energy, (meta**2).sum(-1), share, plain.bias * whole.sum(-1) / length, square > 1e-12


@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=list(CONFIGURATIONS))
def test_energy_and_contributions(config):
    assert_accounts(config, torch.stack(grid(5), dim=-1))


@settings(max_examples=40)
@given(config=configs(), m=unit(), r=unit(), a=unit())
def test_energy_and_contributions_of_any_configuration(config, m, r, a):
    """Any dimensions of the subspaces, bias, gains and switches."""
    config = dataclasses.replace(config, norm_range=(0.0, 1.0))  # the exact range may not exist, and is no part of it
    assert_accounts(config, torch.tensor([[m, r, a]], dtype=torch.float64))


def test_a_fused_signal_of_nothing_has_no_shares():
    """Without peaks, inversion and modulation (0, 0, 0) gives z = 0: shares are 0, not NaN."""
    config = MDLConfig(value_encoding=False, risk_inversion=False, risk_modulation=False)
    a = audit(MemoryDecisionLayer(config), *tensors(0.0, 0.0, 0.0))
    assert a.contribution.tolist() == a.energy.tolist() == [0, 0, 0]


# --- the nearest boundary --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=list(CONFIGURATIONS))
def test_boundary_and_distance(config):
    points = torch.stack(grid(6), dim=-1)
    a = audit(MemoryDecisionLayer(config), *points.unbind(-1))
    gated = oracle_of(config).head(*points.numpy().T)[2]
    gaps = gated[:, None] - np.array(config.thresholds)
    np.testing.assert_allclose(a.distance.abs(), np.abs(gaps).min(-1), rtol=0, atol=1e-12)
    chosen = gaps[np.arange(len(gaps)), a.boundary]
    np.testing.assert_allclose(a.distance, chosen, rtol=0, atol=1e-12)


def test_boundary_borders_on_the_action():
    """The nearest threshold is the upper or the lower edge of the action's own interval."""
    points = random_points(500)
    action, a = LAYER(*points.unbind(-1)).action, audit(LAYER, *points.unbind(-1))
    assert torch.equal(torch.where(a.distance >= 0, a.boundary, a.boundary + 1), action.long())
    assert set(action.tolist()) >= {Action.ACTIVE, Action.SUPP, Action.SILENT}


@pytest.mark.parametrize("index", [0, 1, 2])
def test_exactly_at_a_threshold(index):
    """The side above: distance 0, and every change leads down."""
    signals = tensors(0.5, 0.5, 0.5)
    at = LAYER(*signals).gated_confidence.item()
    thresholds = (*(0.99, 0.98)[:index], at, *(0.02, 0.01)[: 2 - index])
    layer = MemoryDecisionLayer(MDLConfig(thresholds=thresholds))
    a = audit(layer, *signals)
    assert (a.distance.item(), a.boundary.item()) == (0, index)
    for k, change in enumerate(a.change.tolist()):
        assert abs(change) < 2e-8, "C_final has a slope here: the other side begins at once"
        moved = [s + (change if j == k else 0) for j, s in enumerate(signals)]
        assert layer(*moved).gated_confidence.item() < at


# --- the smallest change ---------------------------------------------------------------------------------------------


def assert_crosses_there_and_not_before(layer: MemoryDecisionLayer, points: torch.Tensor) -> int:
    """Applied, each change crosses; a millionth less, or any part of it, does not. Returns how many there are."""
    a = audit(layer, *points.unbind(-1))
    threshold = layer.policy.thresholds[a.boundary]

    def across(k: int, change: torch.Tensor) -> torch.Tensor:
        moved = points.clone()
        moved[:, k] += change
        return (layer(*moved.unbind(-1)).gated_confidence >= threshold) != (a.distance >= 0)

    count = 0
    for k in range(3):
        change = a.change[:, k]
        there = change.isfinite()
        target = points[:, k] + change
        assert ((target >= -1e-12) & (target <= 1 + 1e-12))[there].all()
        assert across(k, change)[there].all()
        wide = there & (change.abs() > 1e-7)  # where C_final jumps at the point itself, the change is the resolution
        for part in (0.999, 0.97, 0.75, 0.5, 0.25):
            assert not across(k, part * change)[wide].any()
        far = there & (change.abs() > 1e-6)
        assert not across(k, change - change.sign() * 1e-6)[far].any()
        count += int(there.sum())
    return count


@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=list(CONFIGURATIONS))
def test_changes_cross_there_and_not_before(config):
    assert assert_crosses_there_and_not_before(MemoryDecisionLayer(config), random_points(300)) > 100


def test_changes_under_the_reference_calibration():
    layer = MemoryDecisionLayer().calibrated(Calibration.reference())
    assert assert_crosses_there_and_not_before(layer, random_points(300)) > 100


def against_the_scan(config: MDLConfig, points: torch.Tensor) -> tuple[int, int]:
    """Changes that are longer than the plain scan's, or missing; and how many were compared."""
    a = audit(MemoryDecisionLayer(config), *points.unbind(-1))
    plain, thresholds = oracle_of(config), np.array(config.thresholds)[a.boundary]
    scanned = [oracle.smallest_change(plain, p, t) for p, t in zip(points.numpy(), thresholds, strict=True)]
    expected, got = np.array(scanned), a.change.numpy()
    missed = ~np.isnan(expected) & ~(np.abs(got) <= np.abs(expected) + 1e-8)
    shorter = (np.abs(expected) - np.abs(got))[~np.isnan(expected - got)]
    assert (shorter < STEP).all(), "a change that is shorter than the scan's by its step was there for the scan to find"
    assert np.isnan(got[np.isnan(expected)]).all(), "so was one where the scan finds none"
    return int(missed.sum()), missed.size


@pytest.mark.parametrize("config", [MDLConfig(), CONFIGURATIONS["ensemble of 3"]], ids=["paper", "ensemble of 3"])
def test_changes_are_never_longer_than_the_scans(config):
    assert against_the_scan(config, random_points(60)) == (0, 180)


@pytest.mark.slow
def test_changes_are_never_longer_than_the_scans_for_any_variant():
    """In 10,800 comparisons one was missed: two crossings within one step of the search."""
    counts = [against_the_scan(config, random_points(100, seed=1)) for config in VARIANTS.values()]
    assert sum(missed for missed, _ in counts) <= 1
    assert sum(compared for _, compared in counts) == 300 * len(VARIANTS)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=list(VARIANTS))
def test_changes_at_the_corners(config):
    corners = torch.stack(CORNERS, dim=-1)
    assert against_the_scan(config, corners)[0] == 0
    assert_crosses_there_and_not_before(MemoryDecisionLayer(config), corners)


def test_a_signal_without_effect_has_no_change():
    """All gains of the reliability channel as good as 0, and no leakage."""
    layer = MemoryDecisionLayer(MDLConfig(subspace_gains=(1.0, 1e-12, 1.0), cross_leakage=0.0))
    change = audit(layer, *random_points(50).unbind(-1)).change
    assert change[:, 1].isnan().all()
    assert change[:, 0].isfinite().any()


def test_the_nearer_of_two_crossings_is_taken():
    """Narrow peaks make C_final wavy along each signal: where both directions cross, the shorter way counts."""
    config, points = MDLConfig(sigma=0.03), random_points(60)
    a = audit(MemoryDecisionLayer(config), *points.unbind(-1))
    plain, both = oracle_of(config), 0
    values = np.linspace(0, 1, 2001)
    thresholds = np.array(config.thresholds)[a.boundary]
    for point, threshold, change in zip(points.numpy(), thresholds, a.change.numpy(), strict=True):
        above = plain.head(*point)[2] >= threshold
        for k in range(3):
            signals = [*point]
            signals[k] = values
            across = values[(plain.head(*signals)[2] >= threshold) != above] - point[k]
            if (across > 0).any() and (across < 0).any():
                both += 1
                assert abs(change[k]) <= np.abs(across).min() + 1e-8
                assert change[k] * across[np.abs(across).argmin()] > 0
    assert both >= 3


# --- shapes, dtypes, faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (2, 0), (ROWS_AT_ONCE + 1,)])
@pytest.mark.parametrize("layer", [LAYER, ENSEMBLE], ids=["paper", "ensemble of 3"])
def test_leading_shapes(layer, shape):
    signals = random_points(math.prod(shape)).reshape(*shape, 3).unbind(-1)
    a = audit(layer, *signals)
    shapes = {"energy": (*shape, 3), "contribution": (*shape, 3), "change": (*shape, 3)}
    for name, tensor in fields(a).items():
        assert tuple(tensor.shape) == shapes.get(name, shape), name
        assert tensor.dtype == (torch.int64 if name == "boundary" else torch.float64), name
    flat = audit(layer, *(s.reshape(-1) for s in signals))
    for name, tensor in fields(a).items():
        trailing = tensor.shape[len(shape) :]
        other = getattr(flat, name).reshape((*shape, *trailing))
        torch.testing.assert_close(tensor, other, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_any_dtype_is_accounted_for_in_float64(dtype):
    signals = [s.to(dtype) for s in random_points(20).unbind(-1)]
    got, expected = audit(LAYER, *signals), audit(LAYER, *(s.double() for s in signals))
    for name, tensor in fields(expected).items():
        torch.testing.assert_close(getattr(got, name), tensor, rtol=0, atol=0, equal_nan=True)


def test_rows_that_opted_out_for_a_fault():
    """Their scalars are (0, 0, 1): an account of these, finite but for changes that do not exist."""
    faulty = LAYER(*tensors([math.nan, 0.5, 0.9], [0.5, 2.0, 0.9], [0.5, 0.5, 0.1]))
    a = audit(LAYER, faulty.relevance, faulty.reliability, faulty.risk)
    for name in ("energy", "contribution", "distance"):
        assert getattr(a, name).isfinite().all(), name
    alone = audit(LAYER, *tensors(0.0, 0.0, 1.0))
    torch.testing.assert_close(a.change[0], alone.change, rtol=0, atol=1e-12, equal_nan=True)
    assert a.change[2].isfinite().any()


def test_nothing_is_learned_through_the_audit():
    signals = [s.requires_grad_() for s in tensors(0.5, 0.5, 0.5)]
    assert not any(t.requires_grad for t in fields(audit(LAYER, *signals)).values())
