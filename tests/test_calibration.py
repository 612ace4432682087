"""Calibration: the fits against plain brute force, the record and its file, and what it refuses to be applied to."""

from __future__ import annotations

import importlib.util
import json
import math

import numpy as np
import pytest
import torch
from cases import assert_agrees, calibration_of, grid, signal_batches, tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl_torch import Calibration, MDLConfig, MemoryDecisionLayer
from mdl_torch.calibration import (
    UNFITTED,
    bootstrap_action_mix,
    config_digest,
    digest,
    fit_norm_range,
    fit_thresholds,
    lower_thresholds,
    split_action_mix,
)
from mdl_torch.errors import CalibrationMismatchError

SCORES = st.lists(st.floats(0, 1).map(lambda x: round(x, 3)), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def layer():
    return MemoryDecisionLayer()


# --- the range -------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 4).map(lambda x: round(x, 3)), min_size=2, max_size=50))
def test_minmax_is_the_smallest_and_the_largest(norms):
    if max(norms) == min(norms):
        with pytest.raises(ValueError, match="norms must spread"):
            fit_norm_range(norms)
    else:
        assert fit_norm_range(norms) == (min(norms), max(norms))


def test_quantiles_by_hand():
    """Of 0, 1, ..., 10: a tenth of the way is 1, and halves are interpolated."""
    assert fit_norm_range(range(11), "quantile(0.1)") == (1.0, 9.0)
    assert fit_norm_range(range(11), "quantile( .25 )") == (2.5, 7.5)
    assert fit_norm_range(torch.arange(11.0).numpy()) == (0.0, 10.0)


@pytest.mark.parametrize(
    "norms", [[], [1.0], [1.0, math.nan], [1.0, math.inf], [2.0, 2.0], [2.0, 2.00001], [-1.0, 1.0]]
)
def test_norms_that_give_no_range(norms):
    with pytest.raises(ValueError, match="norms must"):
        fit_norm_range(norms)


@pytest.mark.parametrize(
    "method", ["mean", "quantile", "quantile(0.5)", "quantile(0)", "quantile(1)", "quantile(-0.1)", ""]
)
def test_unknown_methods_are_named(method):
    with pytest.raises(ValueError, match="method"):
        fit_norm_range([1.0, 2.0], method)


# --- the thresholds --------------------------------------------------------------------------------------------------


def brute_force(scores, adopt):
    """All grid points in turn, agreements counted one by one; the middle of the longest run of best ones."""
    candidates = [round(0.05 + k / 100, 2) for k in range(91)]
    hits = [sum((s >= t) == bool(a) for s, a in zip(scores, adopt, strict=True)) for t in candidates]
    runs, run = [], []
    for t, h in zip(candidates, hits, strict=True):
        if h == max(hits):
            run.append(t)
        elif run:
            runs, run = [*runs, run], []
    longest = max([*runs, run] if run else runs, key=len)
    return longest[(len(longest) - 1) // 2], max(hits)


@settings(max_examples=200)
@given(scores=SCORES, data=st.data())
def test_grid_search_is_brute_force(scores, data):
    adopt = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    theta, best = brute_force(scores, adopt)
    fitted = fit_thresholds(scores, adopt)
    assert fitted[0] == theta
    assert fitted == lower_thresholds(theta)
    assert sum((s >= fitted[0]) == a for s, a in zip(scores, adopt, strict=True)) == best
    MDLConfig(thresholds=fitted)  # whatever was fitted is valid


def test_a_score_at_the_threshold_counts_as_active():
    """0.30 adopted, 0.29 not: only θ0 = 0.30 agrees with both."""
    assert fit_thresholds([0.29, 0.30], [False, True])[0] == 0.30


@pytest.mark.parametrize(
    ("first", "expected"), [(0.9, (0.9, 0.7, 0.5)), (0.6, (0.6, 0.4, 0.2)), (0.3, (0.3, 0.2, 0.1))]
)
def test_lower_thresholds(first, expected):
    """δ = min(0.2, θ0/3): a fixed step from 0.6 on, thirds below."""
    assert lower_thresholds(first) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "adopt"), [([], []), ([0.5], [True, False]), ([[0.5]], [[True]]), ([math.nan], [True])]
)
def test_thresholds_refuse(scores, adopt):
    with pytest.raises(ValueError, match="gated_confidence"):
        fit_thresholds(scores, adopt)


# --- the bootstrap ---------------------------------------------------------------------------------------------------


def plain_mix(norms, factors, low, high, thresholds):
    """Share of each action, one retrieval at a time."""
    counts = [0, 0, 0, 0]
    for n, f in zip(norms, factors, strict=True):
        gated = min(max((n - low) / (high - low), 0), 1) * f
        counts[next((k for k, t in enumerate(thresholds) if gated >= t), 3)] += 1
    return [c / len(norms) for c in counts]


def test_bootstrap_against_a_plain_loop():
    rng = np.random.default_rng(5)
    norms, factors, thresholds = rng.uniform(1, 3, 30), rng.uniform(0.7, 1, 30), (0.6, 0.4, 0.2)
    mix = bootstrap_action_mix(norms, factors, thresholds, resamples=200, seed=9)
    draws = np.random.default_rng(9)
    resamples = [norms[draws.integers(0, 30, 30)] for _ in range(200)]
    mixes = np.array([plain_mix(norms, factors, d.min(), d.max(), thresholds) for d in resamples])
    low, high = np.quantile(mixes, 0.025, axis=0), np.quantile(mixes, 0.975, axis=0)
    share = plain_mix(norms, factors, norms.min(), norms.max(), thresholds)
    for k, label in enumerate(("active", "supp", "silent", "opt_out")):
        assert mix[label] == pytest.approx((share[k], low[k], high[k]), abs=1e-12)
    assert sum(m[0] for m in mix.values()) == pytest.approx(1)
    assert any(m[1] < m[2] for m in mix.values())
    assert mix == bootstrap_action_mix(norms, factors, thresholds, resamples=200, seed=9)
    seeds = [bootstrap_action_mix(norms, factors, thresholds, resamples=2, seed=seed) for seed in range(4)]
    assert any(other != seeds[0] for other in seeds)


def test_bootstrap_agrees_with_the_layer(layer):
    """The mix that it reports is the mix of a layer calibrated so."""
    signals = grid(5)
    d = layer(*signals)
    fitted = fit_norm_range(d.norm)
    mix = bootstrap_action_mix(d.norm, 0.3 + 0.7 * d.consistency, (0.6, 0.4, 0.2), resamples=10)
    actions = MemoryDecisionLayer(MDLConfig(norm_range=fitted))(*signals).action
    shares = torch.bincount(actions.int(), minlength=4) / len(actions)
    assert [m[0] for m in mix.values()] == pytest.approx(shares.tolist(), abs=1e-6)


def test_bootstrap_passes_over_resamples_without_spread():
    mix = bootstrap_action_mix([1.0, 2.0], [1.0, 1.0], (0.6, 0.4, 0.2), resamples=50)
    assert mix["active"] == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("norms", "factors"), [([1.0, 2.0], [1.0]), ([[1.0, 2.0]], [[1.0, 1.0]]), ([1.0, 1.0], [1.0, 1.0])]
)
def test_bootstrap_refuses(norms, factors):
    with pytest.raises(ValueError, match="norms"):
        bootstrap_action_mix(norms, factors, (0.6, 0.4, 0.2))


def test_bootstrap_of_some_is_one_sided():
    """Fitted on all and counted on some; no resample has a wider range, so C of the lowest is 0 in all of them."""
    rng = np.random.default_rng(3)
    norms, factors, thresholds = rng.uniform(1, 3, 40), rng.uniform(0.7, 1, 40), (0.6, 0.4, 0.2)
    within = norms > 2
    mix = bootstrap_action_mix(norms, factors, thresholds, within=within, resamples=50)
    share = plain_mix(norms[within], factors[within], norms.min(), norms.max(), thresholds)
    assert [m[0] for m in mix.values()] == pytest.approx(share, abs=1e-12)
    assert share != pytest.approx(plain_mix(norms, factors, norms.min(), norms.max(), thresholds), abs=0.05)
    lowest = bootstrap_action_mix(norms, factors, thresholds, within=norms == norms.min(), resamples=50)
    assert lowest["opt_out"] == (1, 1, 1)


def test_splits_against_a_plain_loop():
    """The range of those drawn, the actions of the others, counted one at a time."""
    rng = np.random.default_rng(7)
    norms, factors, thresholds = rng.uniform(1, 3, 60), rng.uniform(0.7, 1, 60), (0.6, 0.4, 0.2)
    top = rng.random(60) < 0.3
    draws = np.random.default_rng(4)
    drawn = [set(draws.choice(60, 20, replace=False).tolist()) for _ in range(50)]
    for within in (None, top):
        counted = range(60) if within is None else np.flatnonzero(top)
        mixes = []
        for split in drawn:
            fitted = [norms[i] for i in split]
            others = [i for i in counted if i not in split]
            mixes.append(plain_mix(norms[others], factors[others], min(fitted), max(fitted), thresholds))
        expected = np.quantile(mixes, (0.025, 0.5, 0.975), axis=0)
        mix = split_action_mix(norms, factors, thresholds, samples=20, within=within, splits=50, seed=4)
        for k, label in enumerate(("active", "supp", "silent", "opt_out")):
            assert mix[label] == pytest.approx(expected[:, k], abs=1e-12)
        assert any(low < high for low, _, high in mix.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 4}, "samples must be at least 2 and less than the 4 norms"),
        ({"samples": 1}, "samples must"),
        ({"within": [True]}, r"within must be a truth value for each of \(4,\) norms"),
        ({"within": [False] * 4}, "within must"),
        ({"within": [True, False, False, False], "splits": 0}, "within must leave something to count"),
        ({"factors": [1.0]}, "norms and factors must"),
        ({"method": "mean"}, "method must"),
    ],
)
def test_splits_refuse(change, message):
    arguments = {"norms": [1.0, 2.0, 3.0, 4.0], "factors": [1.0] * 4, "thresholds": (0.6, 0.4, 0.2), "samples": 2}
    with pytest.raises(ValueError, match=message):
        split_action_mix(**{**arguments, **change})


# --- applying it -----------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(signals=signal_batches())
def test_a_calibrated_layer_is_the_oracle_with_that_range(signals):
    calibration = calibration_of(MemoryDecisionLayer(), norm_range=(1.7, 2.9), thresholds=(0.55, 0.37, 0.19))
    layer = MemoryDecisionLayer().calibrated(calibration)
    assert layer.config == MDLConfig(norm_range=(1.7, 2.9), thresholds=(0.55, 0.37, 0.19))
    assert_agrees(layer, signals)


def test_calibrating_leaves_the_layer_alone_and_is_named(layer):
    calibration = calibration_of(layer)
    fitted = layer.calibrated(calibration)
    assert layer.calibration_label == UNFITTED == "exact-range"
    assert fitted.calibration_label == calibration.label
    assert fitted.head.norm_range.tolist() == [1.5, 3.0]
    assert (fitted.preset, fitted.basis) == ("paper", layer.basis)
    assert layer.head.norm_range.tolist() != [1.5, 3.0]


def test_a_calibrated_layer_can_be_calibrated_again(layer):
    first = layer.calibrated(calibration_of(layer))
    second = first.calibrated(calibration_of(layer, norm_range=(1.6, 3.1)))
    assert second.head.norm_range.tolist() == [1.6, 3.1]


@pytest.mark.parametrize(
    "change", [{"sigma": 0.25}, {"alpha_gate": False}, {"cross_leakage": 0.2}, {"gate": (0.4, 0.6)}]
)
def test_another_configuration_is_refused(layer, change):
    with pytest.raises(CalibrationMismatchError, match="'test' was fitted for configuration"):
        MemoryDecisionLayer(MDLConfig(**change)).calibrated(calibration_of(layer))


def test_another_basis_is_refused(layer):
    other = MemoryDecisionLayer()
    other.load_state_dict({**other.state_dict(), "projection.basis": torch.eye(16, dtype=torch.float64)})
    with pytest.raises(CalibrationMismatchError, match=f"basis {layer.basis}, got a layer with basis {other.basis}"):
        other.calibrated(calibration_of(layer))


def test_another_encoder_or_detector_is_refused(layer):
    calibration = calibration_of(layer)
    calibration.check_encoder("encoder-a", "lexical")
    with pytest.raises(CalibrationMismatchError, match="encoder encoder-a, got encoder encoder-b"):
        calibration.check_encoder("encoder-b", "lexical")
    with pytest.raises(CalibrationMismatchError, match="detector lexical, got detector literal"):
        calibration.check_encoder("encoder-a", "literal")
    calibration_of(layer, encoder=None).check_encoder("any", "lexical")


def test_another_lexicon_of_the_detector_is_refused(layer):
    calibration = calibration_of(layer, detector="lexical@0123abcd")
    calibration.check_encoder("encoder-a", "lexical@0123abcd")
    with pytest.raises(CalibrationMismatchError, match="detector lexical@0123abcd, got detector lexical@0123abce"):
        calibration.check_encoder("encoder-a", "lexical@0123abce")


# --- the record and its file -----------------------------------------------------------------------------------------


def test_file_round_trip(layer, tmp_path):
    rows = ((0.5, 0.25, 0.0), (1, 0, 0.85))
    calibration = calibration_of(
        layer, name="é–漢", provenance={"questions": [1, 2], "command": "x"}, signals=rows, samples=2
    )
    calibration.save(tmp_path / "c.json")
    back = Calibration.load(tmp_path / "c.json")
    assert back == calibration
    assert back.label == calibration.label
    assert isinstance(back.norm_range, tuple)
    assert isinstance(back.action_mix["active"], tuple)
    assert back.signals == rows
    assert back.to_dict() == json.loads((tmp_path / "c.json").read_text("utf-8"))


def test_the_label_tells_two_fits_of_one_name_apart(layer):
    base = calibration_of(layer)
    changes = [
        {"norm_range": (1.5, 3.1)},
        {"norm_range": None, "range_method": "exact"},
        {"thresholds": (0.6, 0.4, 0.1)},
        {"encoder": "b"},
        {"detector": "literal"},
        {"basis": "0"},
        {"config": "0"},
    ]
    assert calibration_of(layer, signals=((0.5, 0.5, 0.5),) * 80).label == base.label
    labels = {calibration_of(layer, **change).label for change in changes} | {base.label}
    assert len(labels) == len(changes) + 1
    assert all(label.startswith("test:") for label in labels)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"norm_range": (3.0, 1.0)}, ValueError, "norm_range must"),
        ({"norm_range": None}, ValueError, "range_method must be 'exact' without a norm_range, got 'minmax'"),
        ({"range_method": "exact"}, ValueError, "range_method must be how norm_range was fitted, got 'exact'"),
        ({"signals": 3}, TypeError, "signals must"),
        ({"signals": [0.5, 0.5, 0.5]}, TypeError, "signals must"),
        ({"signals": None}, TypeError, "signals must"),
        ({"signals": [[0.5, 0.5, 0.5]]}, ValueError, "signals must be empty or those of all 80 samples, got 1"),
        *[
            ({"signals": [row], "samples": 1}, ValueError, "signals must each be three numbers in")
            for row in ([0.5, 0.5], [0.5, 0.5, 1.5], [-0.1, 0.5, 0.5], [0.5, "0.5", 0.5], [0.5, True, 0.5])
        ],
        ({"signals": [[0.5, math.nan, 0.5]], "samples": 1}, ValueError, "signals must each be three numbers in"),
        ({"norm_range": (1.0, math.nan)}, ValueError, "norm_range must"),
        ({"norm_range": ("a", "b")}, TypeError, "norm_range must"),
        ({"thresholds": (0.2, 0.4, 0.6)}, ValueError, "thresholds must"),
        ({"thresholds": 0.6}, TypeError, "thresholds must"),
        ({"samples": 0}, ValueError, "samples must"),
        ({"samples": "80"}, ValueError, "samples must"),
        ({"samples": True}, ValueError, "samples must"),
        ({"name": 3}, TypeError, "name must"),
        ({"basis": None}, TypeError, "basis must"),
        ({"encoder": 3}, TypeError, "encoder must"),
        ({"action_mix": [0.5]}, TypeError, "action_mix must"),
        ({"action_mix": {"actve": (0.5, 0.4, 0.6)}}, ValueError, "unknown action 'actve'; did you mean 'active'"),
        ({"action_mix": {"active": 0.5}}, TypeError, "action_mix"),
        ({"action_mix": {"active": (0.5, 0.4)}}, TypeError, "action_mix"),
        ({"action_mix": {"active": (0.5, 0.4, 1.6)}}, ValueError, "action_mix"),
        ({"action_mix": {"active": ("0.5", 0.4, 0.6)}}, ValueError, "action_mix"),
        ({"action_mix_top_risk": {"active": 0.5}}, TypeError, "action_mix_top_risk"),
        ({"action_mix_top_risk": None}, TypeError, "action_mix_top_risk must"),
        ({"provenance": "none"}, TypeError, "provenance must"),
    ],
)
def test_invalid_values_are_named_and_a_file_of_them_is_refused(layer, tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        calibration_of(layer, **change)
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**calibration_of(layer).to_dict(), **change}), "utf-8")
    with pytest.raises(ValueError, match=rf"c\.json is not a calibration file: .*{message}"):
        Calibration.load(path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "3", "{}", '{"name": "x"}', "<html>not found</html>", "\ufeff{}"],
)
def test_damaged_files_are_refused(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_text(content, "utf-8")
    with pytest.raises(ValueError, match=r"broken\.json is not a calibration file"):
        Calibration.load(path)


def test_a_binary_file_is_refused(tmp_path):
    path = tmp_path / "broken.json"
    path.write_bytes(b"\x80\x02\xff")
    with pytest.raises(ValueError, match=r"broken\.json is not a calibration file"):
        Calibration.load(path)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        Calibration.load(tmp_path / "absent.json")


def test_unknown_and_missing_keys_are_named(layer):
    values = calibration_of(layer).to_dict()
    with pytest.raises(ValueError, match="unknown calibration key 'norm_rnge'; did you mean 'norm_range'"):
        Calibration.from_dict({**values, "norm_rnge": 1})
    del values["basis"], values["samples"]
    with pytest.raises(ValueError, match="calibration lacks basis, samples"):
        Calibration.from_dict(values)


def test_digests():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": [3]})
    assert config_digest(MDLConfig(norm_range=(1.0, 2.0), thresholds=(0.5, 0.3, 0.1))) == config_digest(MDLConfig())
    assert config_digest(MDLConfig(sigma=0.3)) != config_digest(MDLConfig())
    assert len(config_digest(MDLConfig())) == 8


def test_the_digest_of_a_configuration_is_as_before_there_were_several_bases():
    """So that older calibrations still apply; other bases make another digest."""
    assert config_digest(MDLConfig()) == "5d788aab"
    others = [MDLConfig(bases=2), MDLConfig(bases=3), MDLConfig(basis="certified")]
    assert len({config_digest(config) for config in (MDLConfig(), *others)}) == 4


def test_a_calibration_without_signals_is_read_as_before(layer):
    values = calibration_of(layer).to_dict()
    del values["signals"]
    assert Calibration.from_dict(values) == calibration_of(layer)


def test_the_reference_is_for_the_paper_preset(layer):
    """What ships: 80 questions, minimum and maximum, the thresholds of Fig. 4; and its interval is with it."""
    reference = Calibration.reference()
    fitted = MemoryDecisionLayer().calibrated(reference)
    assert fitted.calibration_label == reference.label
    assert len(reference.signals) == 80
    assert reference.label == "reference:3d99362f"
    assert (reference.thresholds, reference.samples, reference.range_method) == ((0.6, 0.4, 0.2), 80, "minmax")
    low, high = layer.head.norm_range.tolist()
    assert low <= reference.norm_range[0] < reference.norm_range[1] <= high
    assert list(reference.action_mix) == ["active", "supp", "silent", "opt_out"]
    assert sum(share for share, *_ in reference.action_mix.values()) == pytest.approx(1)


@pytest.mark.slow
def test_the_reference_is_what_its_script_fits(shared_data, project_root):
    """Whatever changed a signal since it was fitted makes the shipped file stale."""
    path = project_root / "scripts" / "make_reference_calibration.py"
    spec = importlib.util.spec_from_file_location("make_reference_calibration", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    fitted, shipped = script.reference_calibration(shared_data("TruthfulQA.csv")), Calibration.reference()
    assert fitted.norm_range == pytest.approx(shipped.norm_range, abs=1e-6)
    np.testing.assert_allclose(fitted.signals, shipped.signals, rtol=0, atol=1e-6)
    assert fitted.label.split(":")[0] == shipped.name
    for name in ("thresholds", "config", "basis", "encoder", "detector", "dataset", "samples"):
        assert getattr(fitted, name) == getattr(shipped, name), name
    assert set(fitted.action_mix_top_risk) == set(fitted.action_mix)


# --- Section 3.4 from end to end -------------------------------------------------------------------------------------


def test_fitting_as_the_paper_says():
    """Norms of a split → range → C_final → θ; the fitted layer uses its whole range and agrees with the labels."""
    rng = np.random.default_rng(0)
    signals = tensors(*rng.uniform(0.3, 1, (3, 80)))
    bare = MemoryDecisionLayer()
    norm_range = fit_norm_range(bare(*signals).norm)
    ranged = MemoryDecisionLayer(MDLConfig(norm_range=norm_range))
    gated = ranged(*signals).gated_confidence
    adopt = gated >= 0.47
    layer = bare.calibrated(calibration_of(bare, norm_range=norm_range, thresholds=fit_thresholds(gated, adopt)))
    d = layer(*signals)
    assert (d.confidence.min().item(), d.confidence.max().item()) == (0.0, 1.0)
    assert torch.equal(d.action == 0, adopt)
