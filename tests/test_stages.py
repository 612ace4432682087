"""Each stage by itself: its equation on small numbers, its shapes, its buffers."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from cases import DATA, configs, oracle_of, tensors, unit
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import projectors as plain_projectors
from oracle import qr_basis

from mdl_torch import Action, MDLConfig, MemoryDecisionLayer, Status
from mdl_torch.config import NAMED_BASES, PRESETS
from mdl_torch.encoding import ValueEncoder, value_vectors
from mdl_torch.fusion import MetaFusion, risk_gain
from mdl_torch.head import ConfidenceHead, confidence, consistency
from mdl_torch.outputs import INVALID
from mdl_torch.policy import ActionPolicy, guard
from mdl_torch.risk import tier
from mdl_torch.stage import Stage, check_tensors, compute_dtype, no_autocast
from mdl_torch.subspace import (
    SHIPPED_BASES,
    SubspaceProjection,
    configured_basis,
    projectors,
    seeded_basis,
    subspace_weights,
)

EXACT = {"rtol": 0, "atol": 1e-12}

# --- encoding --------------------------------------------------------------------------------------------------------


def test_value_vector_by_hand():
    """s + exp(-(s - c)²/2σ²), three centres."""
    got = value_vectors(
        torch.tensor(0.5, dtype=torch.float64), torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), 0.25
    )
    assert got.tolist() == pytest.approx([0.5 + math.exp(-2), 1.5, 0.5 + math.exp(-2)], abs=1e-15)


@settings(max_examples=50)
@given(config=configs(), scalars=st.lists(unit(), min_size=1, max_size=6))
def test_encoder_is_the_equation(config, scalars):
    np.testing.assert_allclose(
        ValueEncoder(config)(*tensors(scalars)), oracle_of(config).encode(scalars), rtol=0, atol=1e-14
    )


def test_centres_are_evenly_spaced_and_the_peak_is_at_the_nearest():
    encoder = ValueEncoder()
    np.testing.assert_allclose(encoder.centres, np.linspace(0, 1, 16), rtol=0, atol=1e-15)
    assert encoder(encoder.centres).argmax(-1).tolist() == list(range(16))


def test_without_value_encoding_only_the_linear_part_is_left():
    got = ValueEncoder(MDLConfig(value_encoding=False))(torch.tensor([0.25, 1.0]))
    assert torch.equal(got, torch.tensor([[0.25] * 16, [1.0] * 16]))


# --- subspaces -------------------------------------------------------------------------------------------------------


def test_shipped_basis_is_todays_qr():
    """Q up to the signs a QR may choose, so Π; 1e-12 leaves room for another BLAS."""
    for ours, numpys in zip(
        projectors(seeded_basis(42, 16), (5, 5, 6)), plain_projectors(qr_basis(42), (5, 5, 6)), strict=True
    ):
        np.testing.assert_allclose(ours, numpys, **EXACT)


def test_the_ensemble_ships_and_is_todays_qr():
    """Every seed of the preset, whatever their number is; the first is the paper's, to the bit."""
    ensemble = PRESETS["ensemble"]
    seeds = range(ensemble.seed, ensemble.seed + ensemble.bases)
    stacked = configured_basis(ensemble)
    assert stacked.shape == (ensemble.bases, 16, 16)
    assert np.load(DATA / "basis-ensemble-dim16.npy").shape == tuple(stacked.shape)
    assert torch.equal(stacked[0], seeded_basis(42, 16))
    for seed, ours in zip(seeds, stacked, strict=True):
        assert (seed, 16) in SHIPPED_BASES
        expected = np.stack(plain_projectors(qr_basis(seed), (5, 5, 6)))
        np.testing.assert_allclose(projectors(ours, (5, 5, 6)), expected, **EXACT)
    assert set(SHIPPED_BASES) == {(seed, 16) for seed in seeds}


@pytest.mark.parametrize("name", NAMED_BASES)
def test_a_named_basis_is_the_file_and_orthogonal(name):
    q = configured_basis(MDLConfig(basis=name))
    assert (q.shape, q.dtype) == ((16, 16), torch.float64)
    np.testing.assert_array_equal(q, np.load(DATA / NAMED_BASES[name]))
    torch.testing.assert_close(q.mT @ q, torch.eye(16, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("config", PRESETS.values(), ids=list(PRESETS))
def test_a_basis_that_was_changed_in_place_changes_no_other(config):
    SubspaceProjection(config).basis.zero_()
    assert configured_basis(config).abs().amax(dim=(-1, -2)).min() > 0.1


def test_basis_of_another_seed_or_dimension_is_computed():
    np.testing.assert_array_equal(seeded_basis(7, 16), qr_basis(7))
    np.testing.assert_array_equal(seeded_basis(42, 12), qr_basis(42, 12))
    np.testing.assert_array_equal(
        configured_basis(MDLConfig(dim=12, subspace_dims=(4, 4, 4), seed=41, bases=3)),
        np.stack([qr_basis(seed, 12) for seed in (41, 42, 43)]),
    )


def test_projectors_do_not_depend_on_the_signs_of_the_basis():
    q = seeded_basis(1, 16)
    flipped = q * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(8)
    torch.testing.assert_close(projectors(q, (5, 5, 6)), projectors(flipped, (5, 5, 6)), **EXACT)


def test_fingerprint_names_the_projectors():
    plain, flipped, other = SubspaceProjection(), SubspaceProjection(), SubspaceProjection(MDLConfig(seed=43))
    flipped.basis.mul_(-1)
    assert plain.fingerprint() == flipped.fingerprint() != other.fingerprint()
    assert SubspaceProjection(MDLConfig(subspace_dims=(6, 5, 5))).fingerprint() != plain.fingerprint()
    assert len(plain.fingerprint()) == 8


def test_fingerprint_covers_every_basis():
    plain, last, order = (SubspaceProjection(MDLConfig(bases=3)) for _ in range(3))
    last.basis[-1] = seeded_basis(7, 16)
    order.basis.copy_(plain.basis.flip(0))
    others = {SubspaceProjection(MDLConfig(bases=n)).fingerprint() for n in (1, 2)}
    assert len({plain.fingerprint(), last.fingerprint(), order.fingerprint(), *others}) == 5


def test_weights_by_hand():
    """Eq. 1 on the coordinate axes: each axis keeps its own gain, the others leak."""
    weights = subspace_weights(torch.eye(3, dtype=torch.float64), (1, 1, 1), torch.tensor([1.0, 0.7, 0.5]), 0.1)
    expected = [[1.0, 0.1, 0.1], [0.1, 0.7, 0.1], [0.1, 0.1, 0.5]]
    for got, want in zip(weights, expected, strict=True):
        torch.testing.assert_close(got, torch.diag(torch.tensor(want, dtype=torch.float64)), rtol=0, atol=1e-7)


@settings(max_examples=50)
@given(config=configs(), seed=st.integers(0, 2**32))
def test_projection_is_the_equation(config, seed):
    v = np.random.default_rng(seed).standard_normal((2, 3, config.dim))
    members = [one.weights() for one in oracle_of(config).members()]
    expected = np.stack([[v[:, k] @ w.T for k, w in enumerate(weights)] for weights in members]).transpose(2, 0, 1, 3)
    got = SubspaceProjection(config)(torch.from_numpy(v if config.bases == 1 else v[:, None]))
    np.testing.assert_allclose(got, expected[:, 0] if config.bases == 1 else expected, **EXACT)


def test_projection_keeps_channels_apart():
    """Only channel k in, only channel k out."""
    for k in range(3):
        v = torch.zeros(3, 16)
        v[k] = 1.0
        out = SubspaceProjection()(v)
        assert [bool(out[j].any()) for j in range(3)] == [j == k for j in range(3)]


@pytest.mark.parametrize("bases", [1, 3])
def test_loading_a_basis_rebuilds_the_weights(bases):
    ours, other = SubspaceProjection(MDLConfig(bases=bases)), SubspaceProjection(MDLConfig(seed=7, bases=bases))
    ours.load_state_dict(other.state_dict())
    assert torch.equal(ours.weights, other.weights)


def test_rebuild_after_a_change_in_place():
    ours = SubspaceProjection()
    ours.leakage.fill_(0.2)
    ours.rebuild()
    torch.testing.assert_close(ours.weights, SubspaceProjection(MDLConfig(cross_leakage=0.2)).weights, **EXACT)


# --- fusion ----------------------------------------------------------------------------------------------------------


def test_gain_is_taken_from_the_mean():
    v = torch.arange(4, dtype=torch.float64)
    assert risk_gain(v, torch.tensor([0.25, 2.0], dtype=torch.float64)).item() == 0.25 + 2 * 1.5


def test_the_gain_modulates_relevance_only():
    projected = torch.arange(48, dtype=torch.float64).reshape(3, 16)
    channels, gain = MetaFusion().modulate(torch.full((16,), 0.4, dtype=torch.float64), projected)
    assert gain.item() == pytest.approx(0.7, abs=1e-15)
    torch.testing.assert_close(channels, projected * torch.tensor([[0.7], [1.0], [1.0]], dtype=torch.float64), **EXACT)


def test_fusion_adds_the_bias_before_tanh():
    fusion = MetaFusion(MDLConfig(bias=-0.25))
    got = fusion(torch.full((3, 16), 0.25, dtype=torch.float64))
    torch.testing.assert_close(got, torch.full((16,), math.tanh(0.5), dtype=torch.float64), **EXACT)


def test_without_risk_modulation_the_gain_is_one():
    assert MetaFusion(MDLConfig(risk_modulation=False)).gain(torch.zeros(5, 16)).tolist() == [1.0] * 5


# --- head ------------------------------------------------------------------------------------------------------------


def test_confidence_is_scaled_and_clipped():
    got = confidence(torch.tensor([0.0, 1.0, 1.5, 3.0, 9.0], dtype=torch.float64), 1.0, 3.0)
    assert got.tolist() == [0.0, 0.0, 0.25, 1.0, 1.0]


def test_consistency_by_hand():
    a, b = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64), torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64)
    assert consistency(a, b).item() == pytest.approx(4 / 9, abs=1e-15)


@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float32, 1e-30), (torch.float32, 1e-38), (torch.float64, 1e-300)])
def test_consistency_is_a_direction_whatever_the_length(dtype, tiny):
    """Without value encoding v_wm = M·1: a tiny M keeps the direction, though its square underflows."""
    a, b = torch.full((4,), tiny, dtype=dtype), torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=dtype)
    assert consistency(a, b).item() == pytest.approx(math.sqrt(0.5), abs=1e-6)


def test_gate_by_hand():
    """C = 0.5, α = cos 60° = 0.5: 0.5·(0.3 + 0.7·0.5) = 0.325."""
    head = ConfidenceHead(norm_range=(0.0, 2.0))
    meta = torch.tensor([0.5, math.sqrt(0.75)], dtype=torch.float64)
    trust = head(torch.tensor([3.0, 0.0], dtype=torch.float64), meta)
    got = [t.item() for t in trust]
    assert got == pytest.approx([1.0, 0.5, 0.5, 0.325], abs=1e-14)
    ablated = ConfidenceHead(MDLConfig(alpha_gate=False), norm_range=(0.0, 2.0))
    assert ablated(torch.tensor([3.0, 0.0], dtype=torch.float64), meta).gated_confidence.item() == pytest.approx(0.5)


def test_each_basis_has_its_own_range():
    """Lengths 1 and 2, scaled by ranges of their own: C = 0.5 and 0.25."""
    head = ConfidenceHead(norm_range=((0.0, 2.0), (1.0, 5.0)))
    v_wm = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    trust = head(v_wm, torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64))
    expected = [[1.0, 2.0], [0.5, 0.25], [1.0, 0.0], [0.5, 0.25 * 0.3]]
    np.testing.assert_allclose(torch.stack(trust), expected, **EXACT)


# --- policy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thresholds", [(0.6, 0.4, 0.2), (0.7, 0.45, 0.05)])  # float32 rounds 0.7 down, 0.6 up
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_actions_at_and_around_the_thresholds(dtype, thresholds):
    at = torch.tensor(thresholds, dtype=dtype)
    policy = ActionPolicy(MDLConfig(thresholds=thresholds))
    assert policy(at).tolist() == [0, 1, 2]
    assert policy(at.nextafter(torch.ones_like(at))).tolist() == [0, 1, 2]
    assert policy(at.nextafter(torch.zeros_like(at))).tolist() == [1, 2, 3]
    ends = torch.tensor([1.0, 0.0, -0.5, math.nan, math.inf, -math.inf], dtype=dtype)
    assert policy(ends).tolist() == [0, 3, 3, 3, 0, 3]
    assert policy(at).dtype == torch.int8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_in_float32(dtype):
    """The half next to 0.2 lies below it (0.19995), that next to 0.6 above or below: each as in float32."""
    values = torch.tensor([0.6, 0.4, 0.2], dtype=dtype)
    values = torch.cat([values, values.nextafter(torch.ones_like(values)), values.nextafter(torch.zeros_like(values))])
    assert torch.equal(ActionPolicy()(values), ActionPolicy()(values.float()))
    if dtype == torch.float16:
        assert ActionPolicy()(values)[2] == Action.OPT_OUT


@settings(max_examples=50)
@given(config=configs(), value=st.floats(-1, 1.2))
def test_policy_is_the_oracles(config, value):
    assert ActionPolicy(config)(*tensors(value)).item() == oracle_of(config).action(value)


def decisions(risk):
    """One decision of each action the equations can give, at one risk."""
    d = MemoryDecisionLayer()(*tensors([0.5] * 4, [0.5] * 4, [risk] * 4))
    return type(d)(**{**vars(d), "action": torch.tensor([0, 1, 2, 3], dtype=torch.int8)})


EMPTY, IRRELEVANT = Status.NO_MEMORY | Status.NO_RELEVANT_MEMORY, Status.NO_RELEVANT_MEMORY


@pytest.mark.parametrize(
    ("status", "require", "risk", "expected"),
    [
        (0, True, 0.85, [0, 1, 2, 3]),
        (Status.ZERO_VECTOR, True, 0.85, [0, 1, 2, 3]),
        (EMPTY, False, 0.2, [2, 2, 2, 3]),
        (EMPTY, False, 0.85, [2, 2, 2, 3]),
        (Status.NO_MEMORY, True, 0.2, [2, 2, 2, 3]),
        (EMPTY, True, 0.85, [3, 3, 3, 3]),
        (IRRELEVANT, False, 0.85, [0, 1, 2, 3]),
        (IRRELEVANT, True, 0.2, [2, 2, 2, 3]),
        (IRRELEVANT, True, 0.69, [2, 2, 2, 3]),
        (IRRELEVANT, True, 0.70, [3, 3, 3, 3]),
        (Status.NOT_FINITE, True, 0.2, [3, 3, 3, 3]),
        (Status.OUT_OF_RANGE, False, 0.2, [3, 3, 3, 3]),
    ],
)
def test_guard(status, require, risk, expected):
    got = guard(decisions(risk), torch.full((4,), int(status), dtype=torch.int32), require_relevant=require)
    assert got.action.tolist() == expected
    assert got.action.dtype == torch.int8
    assert got.status.tolist() == [int(status)] * 4
    assert got.status.dtype == torch.int32


@settings(max_examples=30)
@given(bits=st.integers(0, 31), risk=unit(), require=st.booleans())
def test_guard_never_raises_trust(bits, risk, require):
    before = decisions(risk)
    after = guard(before, torch.full((4,), bits, dtype=torch.int32), require_relevant=require)
    assert (after.action >= before.action).all()
    if bits & int(INVALID):
        assert (after.action == Action.OPT_OUT).all()


def test_guard_at_the_tier_in_float32():
    """0.70 is in the top tier also where it was rounded to float32."""
    d = decisions(0.7)
    status = torch.full((4,), int(IRRELEVANT), dtype=torch.int32)
    for risk in (d.risk.float(), d.risk - 1e-7):
        near = type(d)(**{**vars(d), "risk": risk})
        assert tier(risk[0].item()) == "high"
        assert guard(near, status, require_relevant=True).action.tolist() == [3] * 4


def test_guard_keeps_the_bits_of_the_decision():
    d = MemoryDecisionLayer()(*tensors(math.nan, 0.5, 0.5))
    got = guard(d, torch.tensor(int(EMPTY), dtype=torch.int32), require_relevant=False)
    assert got.status.item() == EMPTY | Status.NOT_FINITE
    assert got.action.item() == Action.OPT_OUT


# --- the base class --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cast", [lambda s: s.half(), lambda s: s.to(torch.bfloat16), lambda s: s.float()])
def test_buffers_keep_float64_through_casts(cast):
    stage = Stage()
    stage.fixed("width", [0.2])
    kept = cast(stage).width
    assert (kept.dtype, kept.item()) == (torch.float64, 0.2)


def test_a_cast_still_moves():
    stage = Stage()
    stage.fixed("width", [0.2])
    moved = stage.to(device="meta", dtype=torch.float16).width
    assert (moved.device.type, moved.dtype) == ("meta", torch.float64)


def test_buffers_lie_on_the_default_device():
    with torch.device("meta"):
        assert {b.device.type for b in SubspaceProjection().buffers()} == {"meta"}


def test_a_layer_survives_pickle_to_a_worker():
    """Data loaders and batch runners send modules to processes."""
    layer = MemoryDecisionLayer()
    signals = tensors(0.7, 0.3, 0.5)
    code = "import pickle, sys; l, s = pickle.load(sys.stdin.buffer); print(l(*s).gated_confidence.item().hex())"
    out = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps((layer, signals)), capture_output=True, check=True
    )
    assert out.stdout.decode().strip() == layer(*signals).gated_confidence.item().hex()


def test_a_deep_copy_is_independent():
    layer = MemoryDecisionLayer()
    twin = copy.deepcopy(layer)
    twin.policy.thresholds.fill_(0.9)
    assert layer.policy.thresholds.tolist() == [0.6, 0.4, 0.2]
    twin.load_state_dict(MemoryDecisionLayer(MDLConfig(seed=3)).state_dict())
    assert torch.equal(layer.projection.weights, SubspaceProjection().weights)


def test_compute_dtype():
    half, single, double = (torch.zeros(1, dtype=d) for d in (torch.float16, torch.float32, torch.float64))
    assert compute_dtype(half, half) == compute_dtype(half, single) == torch.float32
    assert compute_dtype(half, double) == torch.float64


def test_check_tensors_names_the_argument_and_the_device():
    with pytest.raises(ValueError, match=r"b must be on the device of a \(cpu\), got meta"):
        check_tensors(a=torch.ones(1), b=torch.ones(1, device="meta"))
    with pytest.raises(ValueError, match=r"a must be on the device of the module \(meta\), got cpu"):
        check_tensors(torch.ones(1, device="meta"), a=torch.ones(1))


def test_no_autocast_on_a_device_without_autocast():
    with no_autocast(torch.ones(1, device="meta")):
        pass


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_actions_and_bits_are_pinned():
    """They are written to files and compared in graphs."""
    assert {a.name: int(a) for a in Action} == {"ACTIVE": 0, "SUPP": 1, "SILENT": 2, "OPT_OUT": 3}
    assert [a.label for a in Action] == ["active", "supp", "silent", "opt_out"]
    assert {s.name: int(s) for s in Status} == {
        "NOT_FINITE": 1,
        "OUT_OF_RANGE": 2,
        "NO_MEMORY": 4,
        "NO_RELEVANT_MEMORY": 8,
        "ZERO_VECTOR": 16,
    }
    assert int(INVALID) == 3


def test_package_data_is_opened_in_one_place(project_root):
    package = project_root / "mdl_torch"
    sources = {path.relative_to(project_root).as_posix(): path.read_text("utf-8") for path in package.rglob("*.py")}
    assert [name for name, text in sources.items() if "importlib.resources" in text] == ["mdl_torch/data/__init__.py"]
