"""The Memory Decision Layer against the equations, as the oracle writes them, and its behaviour on bad input."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import (
    CONFIGURATIONS,
    VARIANTS,
    assert_agrees,
    assert_identical,
    calibration_of,
    configs,
    fields,
    grid,
    oracle_of,
    signal_batches,
    tensors,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mdl_torch import Action, Calibration, MDLConfig, MemoryDecisionLayer, Status
from mdl_torch.calibration import fit_norm_range
from mdl_torch.config import PRESETS
from mdl_torch.layer import exact_norm_range, refit_norm_range

GOLDEN = json.loads((Path(__file__).parent / "golden" / "decisions.json").read_text("utf-8"))
DTYPES = (torch.float64, torch.float32)


@pytest.fixture(scope="module")
def layer(request):
    """That of the paper, unless a test names other presets."""
    return MemoryDecisionLayer.from_preset(getattr(request, "param", "paper"))


# --- the equations ---------------------------------------------------------------------------------------------------


def test_golden_values_of_the_design(layer):
    """Written out, so that oracle and layer cannot drift together."""
    d = layer(*tensors(0.7, 0.3, 0.5))
    assert d.norm.item() == pytest.approx(2.775632780417214, abs=1e-12)
    assert d.confidence.item() == pytest.approx(0.751050, abs=5e-7)
    assert d.consistency.item() == pytest.approx(0.9567258748125387, abs=1e-12)
    assert d.gated_confidence.item() == pytest.approx(0.728299, abs=5e-7)
    assert d.action.item() == Action.ACTIVE
    assert layer.head.norm_range.tolist() == pytest.approx([1.2523, 3.2806], abs=5e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_file(variant):
    """Every number of the file, from the layer and from the oracle; scripts/make_golden.py writes it."""
    golden, config = GOLDEN["variants"][variant], VARIANTS[variant]
    signals = np.array(GOLDEN["signals"]).T
    oracle = oracle_of(config)
    np.testing.assert_allclose(golden["norm_range"], oracle.exact_range(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(golden["norm_range"], exact_norm_range(config), rtol=0, atol=1e-12)
    d = MemoryDecisionLayer(config)(*tensors(*signals))
    expected = dict(
        zip(("confidence", "consistency", "gated_confidence", "action"), oracle.decide(*signals), strict=True)
    )
    expected["norm"] = oracle.norm(*signals)
    expected["gain"] = oracle.channels(signals[0], signals[2])[2]
    for name, values in expected.items():
        np.testing.assert_allclose(golden[name], values, rtol=0, atol=1e-12, err_msg=f"oracle {name}")
        np.testing.assert_allclose(golden[name], getattr(d, name), rtol=0, atol=1e-12, err_msg=f"layer {name}")


def test_golden_file_tells_the_variants_apart():
    rows = [tuple(v["gated_confidence"]) for v in GOLDEN["variants"].values()]
    assert set(GOLDEN["variants"]) == set(VARIANTS)
    assert len(set(rows)) == len(rows)
    assert {a for v in GOLDEN["variants"].values() for a in v["action"]} == {0, 1, 2, 3}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_agrees_with_the_oracle_over_the_cube(name, dtype):
    assert_agrees(MemoryDecisionLayer(CONFIGURATIONS[name]), grid(13, dtype))


@given(signals=signal_batches(torch.float64))
def test_agrees_with_the_oracle_in_float64(layer, signals):
    assert_agrees(layer, signals)


@given(signals=signal_batches(torch.float32))
def test_agrees_with_the_oracle_in_float32(layer, signals):
    assert_agrees(layer, signals)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(config=configs(), data=st.data())
def test_agrees_with_the_oracle_for_any_configuration(dtype, config, data):
    if config.norm_range is None:
        expected = [one.exact_range() for one in oracle_of(config).members()]
        assume(min(high - low for low, high in expected) >= 0.5)
        np.testing.assert_allclose(exact_norm_range(config), np.squeeze(expected), rtol=0, atol=1e-12)
    assert_agrees(MemoryDecisionLayer(config), data.draw(signal_batches(dtype)))


def test_outputs_report_the_signals_that_entered(layer):
    d = layer(*tensors([1.0000001, -0.2, 0.4], [0.1, 0.2, 0.3], [0.7, 0.8, 0.9]))
    assert d.relevance.tolist() == [1.0, 0.0, 0.4]
    assert d.reliability.tolist() == [0.1, 0.2, 0.3]
    assert d.risk.tolist() == [0.7, 0.8, 0.9]
    assert d.status.tolist() == [0, 0, 0]


def test_opt_out_covers_under_one_percent_of_the_cube_with_the_exact_range(layer):
    """Why a calibration is needed at all."""
    share = torch.bincount(layer(*grid(41)).action.int(), minlength=4) / 41**3
    assert share.tolist() == pytest.approx([0.6421, 0.2658, 0.0852, 0.0069], abs=5e-4)


def test_degenerate_range_is_refused():
    with pytest.raises(ValueError, match="bias or gains leave no range: norm_range must"):
        MemoryDecisionLayer(MDLConfig(bias=100.0))


# --- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_computes_in_float32(layer, dtype):
    signals = grid(7, dtype)
    assert_identical(layer(*signals), layer(*(s.float() for s in signals)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_outputs(layer, dtype):
    d = layer(*tensors(0.5, 0.5, 0.5, dtype=dtype))
    expected = dict.fromkeys(fields(d), dtype) | {"action": torch.int8, "status": torch.int32}
    assert {name: t.dtype for name, t in fields(d).items()} == expected


def test_one_float64_signal_makes_float64(layer):
    m, r, a = tensors(0.5, 0.5, 0.5, dtype=torch.float32)
    assert layer(m, r.double(), a).confidence.dtype == torch.float64
    assert layer(m, r, a.half()).confidence.dtype == torch.float32


@pytest.mark.parametrize("cast", ["half", "bfloat16", "float", "double"])
def test_casting_the_module_changes_no_decision(cast):
    cast_layer = getattr(MemoryDecisionLayer(), cast)()
    assert {b.dtype for b in cast_layer.buffers()} == {torch.float64}
    for dtype in DTYPES:
        signals = grid(9, dtype)
        assert_identical(cast_layer(*signals), MemoryDecisionLayer()(*signals))


def test_casting_a_surrounding_model_changes_no_decision():
    model = torch.nn.ModuleDict({"mdl": MemoryDecisionLayer(), "other": torch.nn.Linear(2, 2)}).to(torch.bfloat16)
    assert model["other"].weight.dtype == torch.bfloat16
    assert_identical(model["mdl"](*grid(5)), MemoryDecisionLayer()(*grid(5)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_is_off_inside(layer, dtype):
    signals = grid(9, torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        inside = layer(*signals)
    assert_identical(inside, layer(*signals))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("index", "reached"), [(0, Action.ACTIVE), (1, Action.SUPP), (2, Action.SILENT)])
def test_a_confidence_exactly_at_the_threshold_takes_the_higher_action(dtype, index, reached):
    """The C_final of a signal becomes the threshold; then one representable number more."""
    signals = tensors(0.5, 0.5, 0.5, dtype=dtype)
    at = MemoryDecisionLayer()(*signals).gated_confidence.item()
    above = torch.nextafter(torch.tensor(at, dtype=dtype), torch.tensor(1.0, dtype=dtype)).item()

    exactly = MDLConfig(thresholds=_thresholds(index, at))
    beyond = MDLConfig(thresholds=_thresholds(index, above))
    assert MemoryDecisionLayer(exactly)(*signals).action.item() == reached
    assert MemoryDecisionLayer(beyond)(*signals).action.item() == reached + 1


def _thresholds(index: int, value: float) -> tuple[float, float, float]:
    return (*(0.99, 0.98)[:index], value, *(0.02, 0.01)[: 2 - index])


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (2, 3), (2, 0, 3), (2, 1, 2, 2)])
def test_leading_shapes(layer, shape):
    signals = [torch.rand(shape, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    d = layer(*signals)
    assert {tuple(t.shape) for t in fields(d).values()} == {shape}
    flat = layer(*(s.reshape(-1) for s in signals))
    for name, tensor in fields(d).items():
        torch.testing.assert_close(tensor.reshape(-1), getattr(flat, name), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [(((), (3,), ()), (3,)), (((2, 1), (3,), (1,)), (2, 3)), (((1,), (0,), ()), (0,)), (((4, 1), (1, 5), ()), (4, 5))],
)
def test_broadcasting(layer, shapes, expected):
    signals = [torch.rand(s, dtype=torch.float64) for s in shapes]
    wide = [s.clone() for s in torch.broadcast_tensors(*signals)]
    got = layer(*signals)
    assert got.action.shape == expected
    assert_identical(got, layer(*wide))


@pytest.mark.parametrize("layer", PRESETS, indirect=True)
@settings(deadline=None, max_examples=40)
@given(signals=signal_batches())
def test_batch_equals_loop_equals_vmap(layer, signals):
    batch = fields(layer(*signals))
    loop = [fields(layer(*row)) for row in zip(*signals, strict=True)]
    mapped = fields(torch.func.vmap(layer)(*signals))
    for name, tensor in batch.items():
        looped = torch.stack([row[name] for row in loop])
        for other in (looped, mapped[name]):
            torch.testing.assert_close(other, tensor, rtol=0, atol=1e-14 if tensor.is_floating_point() else 0)


def test_nested_vmap(layer):
    m, r, a = torch.rand(3, dtype=torch.float64), torch.rand(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    mapped = torch.func.vmap(torch.func.vmap(layer, in_dims=(0, None, None)), in_dims=(None, 0, 0))(m, r, a)
    plain = layer(m, r[:, None], a[:, None])
    for name, tensor in fields(plain).items():
        torch.testing.assert_close(
            fields(mapped)[name], tensor, rtol=0, atol=1e-14 if tensor.is_floating_point() else 0
        )


# --- several bases ----------------------------------------------------------------------------------------------------


def singles(bases: int, **changes) -> list[MemoryDecisionLayer]:
    """The layers of the seeds that an ensemble averages."""
    return [MemoryDecisionLayer(MDLConfig(seed=MDLConfig.seed + i, **changes)) for i in range(bases)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("changes", [{}, {"norm_range": (1.5, 3.0)}, {"alpha_gate": False}])
def test_an_ensemble_is_the_mean_of_its_layers(dtype, changes):
    """Each with its own exact range, unless one is given for all; M, R, A and g_A are everyone's."""
    signals = grid(9, dtype)
    got = fields(MemoryDecisionLayer(MDLConfig(bases=4, **changes))(*signals))
    each = [fields(layer(*signals)) for layer in singles(4, **changes)]
    for name in ("norm", "confidence", "consistency", "gated_confidence"):
        mean = torch.stack([one[name] for one in each]).mean(0)
        torch.testing.assert_close(got[name], mean, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)
        assert (each[0][name] - each[1][name]).abs().max() > 1e-3 or changes
    for name in ("relevance", "reliability", "risk", "gain", "status"):
        assert torch.equal(got[name], each[0][name]), name
    theta = torch.tensor(MDLConfig.thresholds, dtype=dtype)
    assert torch.equal(got["action"].int(), (got["gated_confidence"][:, None] < theta).sum(-1).int())


def test_an_ensemble_of_one_is_the_plain_layer(layer):
    assert_identical(MemoryDecisionLayer(MDLConfig(bases=1))(*grid(7)), layer(*grid(7)))


def test_trust_is_that_of_every_basis():
    """In the order of the seeds; the decision is their mean, and that of a single basis is the decision."""
    signals = tuple(s.reshape(5, 25) for s in grid(5))
    ensemble, each = MemoryDecisionLayer(MDLConfig(bases=3)), singles(3)
    trust = ensemble.trust(*signals)
    for name, values in trust._asdict().items():
        assert values.shape == (5, 25, 3)
        for i, one in enumerate(each):
            torch.testing.assert_close(values[..., i], getattr(one(*signals), name), rtol=0, atol=1e-14)
            assert torch.equal(getattr(one.trust(*signals), name), getattr(one(*signals), name))
        assert torch.equal(getattr(ensemble(*signals), name), values.mean(-1))


def test_what_an_ensemble_represents():
    signals = grid(3)
    relevance_vector, channels, meta, gain = MemoryDecisionLayer(MDLConfig(bases=3)).represent(*signals)
    assert (relevance_vector.shape, channels.shape) == ((27, 1, 16), (27, 3, 3, 16))
    assert (meta.shape, gain.shape) == ((27, 3, 16), (27,))
    for i, one in enumerate(singles(3)):
        alone = one.represent(*signals)
        torch.testing.assert_close(channels[:, i], alone.channels, rtol=0, atol=1e-14)
        torch.testing.assert_close(meta[:, i], alone.meta, rtol=0, atol=1e-14)
        assert torch.equal(relevance_vector[:, 0], alone.relevance_vector)
        assert torch.equal(gain, alone.gain)


@pytest.mark.parametrize("bases", [2, 5])
def test_the_exact_ranges_are_those_of_the_seeds(bases):
    expected = [exact_norm_range(MDLConfig(seed=MDLConfig.seed + i)) for i in range(bases)]
    np.testing.assert_allclose(exact_norm_range(MDLConfig(bases=bases)), expected, rtol=0, atol=1e-12)
    held = MemoryDecisionLayer(MDLConfig(bases=bases)).head.norm_range
    np.testing.assert_allclose(held, expected, rtol=0, atol=1e-12)
    assert MemoryDecisionLayer(MDLConfig(bases=2, norm_range=(1.0, 2.0))).head.norm_range.tolist() == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("preset", PRESETS)
def test_calibrating_thresholds_only_keeps_the_exact_range(preset):
    bare = MemoryDecisionLayer.from_preset(preset)
    calibration = calibration_of(bare, norm_range=None, range_method="exact", thresholds=(0.7, 0.5, 0.3))
    by_hand = MemoryDecisionLayer(dataclasses.replace(bare.config, norm_range=(1.0, 2.0)))
    for start in (bare, by_hand):
        fitted = start.calibrated(calibration)
        assert (fitted.calibration_label, fitted.hand_set, fitted.preset) == (calibration.label, False, preset)
        assert fitted.config == dataclasses.replace(bare.config, thresholds=(0.7, 0.5, 0.3))
        assert torch.equal(fitted.head.norm_range, bare.head.norm_range)
        back = fitted.uncalibrated()
        assert (back.config, back.calibration_label) == (bare.config, "exact-range")
        assert_identical(back(*grid(3)), bare(*grid(3)))
    fitted.head.norm_range[..., 1] += 0.1
    assert fitted.hand_set
    assert fitted.calibration_label.startswith("manual:")


def test_calibrating_an_ensemble_with_one_range():
    bare = MemoryDecisionLayer(MDLConfig(bases=3))
    fitted = bare.calibrated(calibration_of(bare))
    assert fitted.head.norm_range.tolist() == [[1.5, 3.0]] * 3
    assert not fitted.hand_set
    assert_agrees(fitted, grid(5))
    fitted.head.norm_range[1, 0] = 1.4
    assert fitted.hand_set


def test_an_ensemble_with_one_replaced_basis_is_custom_and_has_its_own_range():
    ensemble, other = MemoryDecisionLayer(MDLConfig(bases=3)), MemoryDecisionLayer(MDLConfig(seed=7))
    basis = ensemble.projection.basis.clone()
    basis[1] = other.projection.basis
    ensemble.load_state_dict({**ensemble.state_dict(), "projection.basis": basis})
    assert (ensemble.preset, ensemble.hand_set) == ("custom", True)
    expected = [exact_norm_range(MDLConfig(seed=seed)) for seed in (42, 7, 44)]
    np.testing.assert_allclose(ensemble.uncalibrated().head.norm_range, expected, rtol=0, atol=1e-12)


# --- a range refitted for another basis ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["minmax", "quantile(0.1)"])
def test_refitting_the_range_is_fitting_it_on_the_same_retrievals(layer, method):
    rows = tuple((m / 10, r / 10, 0.2) for m in range(4, 11) for r in range(3, 9))
    calibration = calibration_of(layer, range_method=method, signals=rows, samples=len(rows))
    norms = [fit_norm_range(oracle_of(MDLConfig(seed=s)).norm(*np.array(rows).T), method) for s in (42, 43, 44)]
    assert refit_norm_range(calibration, layer) == pytest.approx(norms[0], abs=1e-12)
    assert refit_norm_range(calibration, layer.calibrated(calibration)) == refit_norm_range(calibration, layer)
    assert refit_norm_range(calibration, singles(2)[1]) == pytest.approx(norms[1], abs=1e-12)
    np.testing.assert_allclose(
        refit_norm_range(calibration, MemoryDecisionLayer(MDLConfig(bases=3))), norms, rtol=0, atol=1e-12
    )


def test_refitting_the_reference_gives_its_own_range(layer):
    reference = Calibration.reference()
    assert refit_norm_range(reference, layer) == pytest.approx(reference.norm_range, abs=2e-7)


def test_refitting_an_exact_range_is_the_exact_range():
    for config in (MDLConfig(seed=43), MDLConfig(bases=2)):
        other = MemoryDecisionLayer(config)
        calibration = calibration_of(other, norm_range=None, range_method="exact")
        assert refit_norm_range(calibration, other) == exact_norm_range(config)


def test_refitting_needs_the_signals(layer):
    with pytest.raises(ValueError, match="calibration 'test' must hold the signals it was fitted on"):
        refit_norm_range(calibration_of(layer), layer)


# --- bad values: no exception in a graph, but never trust ------------------------------------------------------------

BAD = {
    "nan": (math.nan, Status.NOT_FINITE),
    "inf": (math.inf, Status.NOT_FINITE),
    "-inf": (-math.inf, Status.NOT_FINITE),
    "far above": (1.5, Status.OUT_OF_RANGE),
    "far below": (-1.5, Status.OUT_OF_RANGE),
    "huge": (1e30, Status.OUT_OF_RANGE),
}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("argument", [0, 1, 2])
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_value_opts_out_and_touches_no_other_row(layer, bad, argument, dtype):
    value, bit = BAD[bad]
    if dtype == torch.float16 and abs(value) > 65504:
        bit = Status.NOT_FINITE  # half has no 1e30
    good = [torch.tensor([0.9, 0.8, 0.7], dtype=dtype) for _ in range(3)]
    good[2] = 1 - good[2]
    rows = [g.clone() for g in good]
    rows[argument][1] = value
    clean, d = layer(*good), layer(*rows)
    assert clean.action[1] != Action.OPT_OUT
    assert d.action[1] == Action.OPT_OUT
    assert d.status.tolist() == [0, int(bit), 0]
    for name, tensor in fields(d).items():
        assert torch.isfinite(tensor).all(), name
        assert torch.equal(tensor[[0, 2]], getattr(clean, name)[[0, 2]]), name
    assert (d.risk[1], d.gated_confidence[1], d.confidence[1], d.norm[1]) == (1, 0, 0, 0)


def test_a_bad_value_opts_out_where_the_equations_never_would():
    """With θ2 = 0 they have no Opt-Out at all."""
    never = MemoryDecisionLayer(MDLConfig(thresholds=(0.5, 0.3, 0.0)))
    d = never(*tensors([0.0, math.nan, 0.0], 0.0, [1.0, 1.0, 2.0]))
    assert d.action.tolist() == [Action.SILENT, Action.OPT_OUT, Action.OPT_OUT]


@pytest.mark.parametrize("argument", [1, 2])
@pytest.mark.parametrize("value", [-1e-6, 1.000001])
def test_reliability_and_risk_just_out_of_range(layer, argument, value):
    signals = [torch.tensor(0.5, dtype=torch.float64) for _ in range(3)]
    signals[argument] = torch.tensor(value, dtype=torch.float64)
    d = layer(*signals)
    assert (d.action.item(), d.status.item()) == (Action.OPT_OUT, Status.OUT_OF_RANGE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("value", "clipped"), [(1.0000001, 1.0), (1.0078125, 1.0), (-0.01, 0.0), (-1.0, 0.0), (-1.0000001, 0.0)]
)
def test_relevance_is_clipped_never_rejected_for_rounding(layer, value, clipped, dtype):
    r, a = tensors(0.4, 0.3, dtype=dtype)
    got = layer(torch.tensor(value, dtype=dtype), r, a)
    assert got.status.item() == 0
    assert_identical(got, layer(torch.tensor(clipped, dtype=dtype), r, a))


@pytest.mark.parametrize("relevance", [1.02, -1.02, 2.0])
def test_relevance_that_is_no_cosine_opts_out(layer, relevance):
    d = layer(*tensors(relevance, 0.5, 0.5))
    assert (d.action.item(), d.status.item()) == (Action.OPT_OUT, Status.OUT_OF_RANGE)


def test_the_ends_of_the_range_are_valid(layer):
    ends = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 3).unbind(-1)
    assert layer(*ends).status.tolist() == [0] * 8


def test_never_a_nan_for_any_valid_configuration():
    """Values at the edge of what a configuration may hold."""
    edges = [
        MDLConfig(sigma=1e-6),
        MDLConfig(sigma=1e6),
        MDLConfig(norm_range=(1.0, 1.0001)),
        MDLConfig(
            norm_range=(0.0, 1e6), subspace_gains=(1e6, 1e6, 1e6), risk_gain=(1e6, 1e6), bias=-1e6, gate=(1e6, 1e6)
        ),
        MDLConfig(value_encoding=False),
        MDLConfig(dim=3, subspace_dims=(1, 1, 1)),
    ]
    for config in edges:
        for dtype in DTYPES:
            for name, tensor in fields(MemoryDecisionLayer(config)(*grid(9, dtype))).items():
                assert torch.isfinite(tensor).all(), (config, name)


# --- errors that name the argument -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("index", "name"), list(enumerate(("relevance", "reliability", "risk"))))
def test_wrong_kinds_name_the_argument(layer, index, name):
    def call(value):
        signals = [torch.tensor([0.5, 0.5]) for _ in range(3)]
        signals[index] = value
        layer(*signals)

    with pytest.raises(TypeError, match=rf"{name} must be a torch.Tensor, got float"):
        call(0.5)
    with pytest.raises(TypeError, match=rf"{name} must be a torch.Tensor, got ndarray"):
        call(np.array([0.5, 0.5]))
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=rf"{name} must be a floating-point tensor, got {dtype}"):
            call(torch.ones(2, dtype=dtype))
    with pytest.raises(ValueError, match=rf"must broadcast to one shape, got .*{name} \(3,\)"):
        call(torch.ones(3))
    with pytest.raises(ValueError, match=rf"{name} must be on the device of the module \(cpu\), got meta"):
        call(torch.ones(2, device="meta"))


def test_shape_error_names_all_shapes(layer):
    with pytest.raises(ValueError, match=r"relevance \(2, 3\), reliability \(\), risk \(2,\)"):
        layer(torch.rand(2, 3), torch.rand(()), torch.rand(2))


# --- the module itself -----------------------------------------------------------------------------------------------


def test_layer_built_on_another_device():
    """Also where the exact range is not cached yet."""
    exact_norm_range.cache_clear()
    with torch.device("meta"):
        built = MemoryDecisionLayer(MDLConfig(sigma=0.31))
    assert {b.device.type for b in built.buffers()} == {"meta"}
    assert built(*(torch.rand(3, device="meta") for _ in range(3))).action.shape == (3,)


def test_presets_and_labels(layer):
    assert [MemoryDecisionLayer.from_preset(name).preset for name in PRESETS] == list(PRESETS)
    assert layer.preset == "paper"
    assert MemoryDecisionLayer(MDLConfig(sigma=0.3)).preset == "custom"
    assert MemoryDecisionLayer(MDLConfig().ablate("alpha_gate")).preset == "paper-without-alpha_gate"
    assert (layer.calibration_label, layer.hand_set) == ("exact-range", False)
    with pytest.raises(ValueError, match=r"unknown preset 'papre'; did you mean 'paper'"):
        MemoryDecisionLayer.from_preset("papre")


def test_a_replaced_basis_makes_the_preset_custom(layer):
    other = copy.deepcopy(layer)
    other.load_state_dict({**other.state_dict(), "projection.basis": torch.eye(16, dtype=torch.float64)})
    assert other.preset == "custom"
    assert other.basis != layer.basis


def replaced_basis(config: MDLConfig | None = None) -> MemoryDecisionLayer:
    """A layer with the basis of another seed, as a certified preset would have."""
    layer = MemoryDecisionLayer(config)
    other = MemoryDecisionLayer(MDLConfig(seed=7)).projection.basis
    layer.load_state_dict({**layer.state_dict(), "projection.basis": other})
    return layer


def test_calibrating_and_back_keeps_a_replaced_basis():
    """And everything else; the exact range is then that of this basis."""
    layer = replaced_basis()
    fitted = layer.calibrated(calibration_of(layer))
    assert (fitted.basis, fitted.preset) == (layer.basis, "custom")
    assert torch.equal(fitted.projection.weights, layer.projection.weights)
    assert (fitted.head.norm_range.tolist(), fitted.policy.thresholds.tolist()) == ([1.5, 3.0], [0.6, 0.4, 0.2])
    assert layer.calibration is None
    back = fitted.uncalibrated()
    assert (back.basis, back.calibration, back.calibration_label) == (layer.basis, None, "exact-range")
    np.testing.assert_allclose(back.head.norm_range, exact_norm_range(MDLConfig(seed=7)), rtol=0, atol=1e-12)
    assert back.head.norm_range.tolist() != pytest.approx(exact_norm_range(MDLConfig()), abs=1e-3)


def test_calibrating_keeps_the_device():
    layer = MemoryDecisionLayer()
    calibration = calibration_of(layer)
    with torch.device("meta"):  # where new tensors would go
        fitted = layer.calibrated(calibration)
    assert {b.device.type for b in (*fitted.buffers(), *fitted.uncalibrated().buffers())} == {"cpu"}


def test_uncalibrated_is_a_new_layer():
    bare = MemoryDecisionLayer()
    for layer in (
        bare.calibrated(Calibration.reference()),
        MemoryDecisionLayer(MDLConfig(norm_range=(1.0, 2.0), thresholds=(0.5, 0.3, 0.1))),
    ):
        back = layer.uncalibrated()
        assert back.config == bare.config
        assert_identical(back(*grid(5)), bare(*grid(5)))
        assert layer.calibration_label != back.calibration_label == "exact-range"


@pytest.mark.parametrize("change", [{"norm_range": (1.0, 2.0)}, {"thresholds": (0.5, 0.3, 0.1)}])
def test_values_set_by_hand_are_named_so(layer, change):
    """In the configuration, in a loaded state and in place: all the same, and each value has its own digest."""
    configured = MemoryDecisionLayer(MDLConfig(**change))
    loaded, changed = MemoryDecisionLayer(), MemoryDecisionLayer()
    loaded.load_state_dict(configured.state_dict())
    changed.head.norm_range.copy_(configured.head.norm_range)
    changed.policy.thresholds.copy_(configured.policy.thresholds)
    labels = {one.calibration_label for one in (configured, loaded, changed)}
    assert all(one.hand_set for one in (configured, loaded, changed))
    assert len(labels) == 1
    assert labels.pop().startswith("manual:")
    other = MemoryDecisionLayer(MDLConfig(norm_range=(1.0, 2.5)))
    assert other.calibration_label not in (configured.calibration_label, layer.calibration_label)


def test_the_default_range_with_another_basis_is_not_exact():
    layer = replaced_basis()
    assert layer.hand_set
    assert layer.calibration_label.startswith("manual:")


def test_a_calibrated_layer_that_was_changed_is_no_longer_calibrated(layer):
    fitted = layer.calibrated(calibration_of(layer))
    assert not fitted.hand_set
    fitted.policy.thresholds[2] = 0.1
    assert fitted.hand_set
    assert fitted.calibration_label.startswith("manual:")


def test_printing_names_preset_basis_and_calibration(layer):
    assert f"preset=paper, basis={layer.basis}, calibration=exact-range" in repr(layer)


def test_an_exported_layer_survives_its_file(layer, tmp_path):
    """The program carries its own buffers, and returns the same dataclass where the package is at hand."""
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(layer, grid(2), dynamic_shapes=({0: batch}, {0: batch}, {0: batch}))
    torch.export.save(program, tmp_path / "layer.pt2")
    back = torch.export.load(tmp_path / "layer.pt2").module()
    assert_identical(back(*grid(5)), layer(*grid(5)))
