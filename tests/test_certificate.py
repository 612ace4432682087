"""Certificates as data, the layers that wear one, and what output lines say of it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import pickle

import numpy as np
import pytest
import torch
from cases import PRESETS, calibration_of
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from mdl_torch import Action, Calibration, MDLConfig, MemoryDecisionLayer, MemoryGate
from mdl_torch.certificate import SHIPPED_CERTIFICATES, Certificate
from mdl_torch.certify import certify
from mdl_torch.config import CHANNELS
from mdl_torch.errors import CertificateMismatchError, CheckpointError
from mdl_torch.layer import RANGE_TOLERANCE, _checksum
from mdl_torch.retrieval import ReadySignals, Retrieval
from mdl_torch.verify import verify

CERTIFIED = sorted(SHIPPED_CERTIFICATES)
BUFFERS = [name for name, _ in MemoryDecisionLayer().named_buffers()]
SWITCHES = ("encoder.peaks", "fusion.modulated", "projection.orthogonal", "head.gated")
THRESHOLDS = (0.7, 0.5, 0.1)


@functools.cache
def shipped(name: str = "certified") -> Certificate:
    found = Certificate.of_preset(name)
    assert found is not None
    return found


def preset(name: str = "certified") -> MemoryDecisionLayer:
    return MemoryDecisionLayer.from_preset(name)


def thresholds_only(layer: MemoryDecisionLayer, thresholds=THRESHOLDS) -> Calibration:
    """A calibration that keeps the exact range."""
    return calibration_of(layer, norm_range=None, range_method="exact", thresholds=thresholds)


def points(count: int) -> torch.Tensor:
    return torch.rand(3, count, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


# --- plain data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CERTIFIED)
def test_round_trip(name: str, tmp_path) -> None:
    certificate = shipped(name)
    assert Certificate.from_dict(certificate.to_dict()) == certificate
    certificate.save(tmp_path / "proof.json")
    assert Certificate.load(tmp_path / "proof.json") == certificate
    assert json.loads((tmp_path / "proof.json").read_text("utf-8")) == certificate.to_dict()
    renewed = preset(name).calibrated(thresholds_only(preset(name))).certificate
    assert Certificate.from_dict(renewed.to_dict()) == renewed


def test_which_presets_have_one() -> None:
    assert [name for name in PRESETS if Certificate.of_preset(name)] == ["certified", "ensemble"]
    assert Certificate.of_preset("nothing") is None
    for name in CERTIFIED:
        found, layer = shipped(name), preset(name)
        assert (found.preset, found.basis, found.calibration) == (name, layer.basis, layer.calibration_label)
        assert found.config == layer.held_config().to_dict()
        assert (found.subject, found.function) == (layer.digest(), layer.digest(thresholds=False))
        assert found.monotone
        assert found.trusted


def edited(path: str, value: object) -> dict:
    """The certificate with a value at a path; an ellipsis takes it out."""
    values = shipped().to_dict()
    *way, last = path.split(".")
    inner = values
    for key in way:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("format", ..., "format None, this version reads 1"),
        ("format", 2, "format 2, this version reads 1"),
        ("format", True, "format True"),
        ("slopes", ..., "lacks slopes"),
        ("slopes.risk", ..., "slopes lacks risk"),
        ("slopes.luck", {}, "unknown field of slopes 'luck'"),
        ("slopes.risk.verdict", "strcit", "unknown slopes.risk.verdict 'strcit'; did you mean 'strict'"),
        ("slopes.risk.verdict", ["strict"], "unknown slopes.risk.verdict"),
        ("slopes.risk.everywhere.largest", float("nan"), "slopes.risk.everywhere.largest must be a finite number"),
        ("smallest_gated", [0.0, float("inf")], r"smallest_gated\[1\] must be a finite number"),
        ("smallest_gated", [0.0], "smallest_gated must have 2 entries, got 1"),
        ("norm_range", 3, "norm_range must be a list"),
        ("actions.risk", "holds", "actions.risk must be an object"),
        ("reachable.flee", {}, "unknown field of reachable 'flee'"),
        ("parts.zero", ..., "parts lacks zero"),
        ("cover.leaves", 0.5, "cover.leaves must be a whole number"),
        ("subject", 7, "subject must be a string"),
        ("config", [], "config must be an object"),
        ("config.sgima", 0.2, "config is not that of a layer: unknown configuration key 'sgima'"),
        ("config.sigma", "wide", "config is not that of a layer: sigma must be a number"),
        ("proof", "trust me", "unknown field of the certificate 'proof'"),
    ],
    ids=str,
)
def test_a_malformed_file_is_named_with_its_fault(path: str, value: object, fault: str, tmp_path) -> None:
    file = tmp_path / "proof.json"
    file.write_text(json.dumps(edited(path, value)), "utf-8")
    with pytest.raises(ValueError, match=rf"proof\.json is not a certificate file: .*{fault}"):
        Certificate.load(file)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[]", "certificate must be an object, got list"),
        (b"null", "certificate must be an object, got NoneType"),
        (b"\xff\xfe", "codec can't decode"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_file_of_something_else_is_named_with_its_fault(content: bytes, fault: str, tmp_path) -> None:
    file = tmp_path / "proof.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"proof\.json is not a certificate file: .*{fault}"):
        Certificate.load(file)


def test_a_missing_file_is_missing(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Certificate.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize("channel", CHANNELS)
def test_what_is_proved_is_proved_along_every_signal(channel: str) -> None:
    certificate = shipped()
    for verdict, proved in (("strict", True), ("weak", True), ("fails", False), ("open", False)):
        slopes = {**certificate.slopes, channel: dataclasses.replace(certificate.slopes[channel], verdict=verdict)}
        assert dataclasses.replace(certificate, slopes=slopes).monotone is proved
    for verdict, proved in (("holds", True), ("fails", False), ("open", False)):
        actions = {**certificate.actions, channel: dataclasses.replace(certificate.actions[channel], verdict=verdict)}
        assert dataclasses.replace(certificate, actions=actions).trusted is proved


# --- other thresholds ------------------------------------------------------------------------------------------------


def under(certificate: Certificate, thresholds, **changes) -> Certificate | None:
    config = MDLConfig(basis="certified", thresholds=thresholds, **changes)
    return certificate.with_thresholds("another", config, "test:1")


def verdicts(certificate: Certificate | None) -> list[str]:
    assert certificate is not None
    return [certificate.reachable[action.label].verdict for action in Action]


@pytest.mark.parametrize(
    ("thresholds", "expected"),
    [
        ((0.8, 0.6, 0.4), ["holds", "holds", "holds", "holds"]),
        ((0.95, 0.6, 0.4), ["fails", "holds", "holds", "holds"]),  # C_final stays below θ0
        ((0.99, 0.95, 0.4), ["fails", "fails", "holds", "holds"]),
        ((0.8, 0.6, 0.1), ["holds", "holds", "holds", "fails"]),  # and above θ2
        ((0.8, 0.2, 0.1), ["holds", "holds", "fails", "fails"]),
        ((0.9, 0.6, 0.3), ["holds", "holds", "holds", "fails"]),  # θ itself is the action above
        ((0.91, 0.6, 0.305), ["open", "holds", "holds", "open"]),  # within the bounds of the largest and smallest
    ],
)
def test_which_actions_are_taken_follows_from_the_range_of_c_final(thresholds, expected: list[str]) -> None:
    """Here its smallest is between 0.30 and 0.31, its largest between 0.90 and 0.92."""
    certificate = dataclasses.replace(shipped(), smallest_gated=(0.30, 0.31), largest_gated=(0.90, 0.92))
    assert verdicts(under(certificate, thresholds)) == expected


@given(
    low=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)).map(sorted),
    high=st.tuples(st.floats(0.5, 1), st.floats(0.5, 1)).map(sorted),
    falling=st.lists(st.integers(0, 1000), min_size=3, max_size=3, unique=True),
)
def test_what_is_said_of_other_thresholds_is_so_wherever_the_ends_lie(low, high, falling) -> None:
    """An action is surely taken if it is for every range within the bounds, surely not if for none."""
    thresholds = tuple(sorted((t / 1000 for t in falling), reverse=True))
    found = verdicts(
        under(dataclasses.replace(shipped(), smallest_gated=tuple(low), largest_gated=tuple(high)), thresholds)
    )
    for action, verdict in zip(Action, found, strict=True):
        taken = set()
        for least in low:
            for most in high:  # the actions of a continuous C_final from least to most
                ends = [sum(end < theta for theta in thresholds) for end in (most, least)]
                taken.add(ends[0] <= action <= ends[1])
        assert verdict == {(True,): "holds", (False,): "fails"}.get(tuple(taken), "open")


def test_what_stays_and_what_goes_under_other_thresholds() -> None:
    found = under(shipped(), THRESHOLDS)
    assert found is not None
    changed = {f.name for f in dataclasses.fields(found) if getattr(found, f.name) != getattr(shipped(), f.name)}
    assert changed == {"subject", "config", "calibration", "reachable"}
    assert (found.subject, found.calibration, found.config["thresholds"]) == ("another", "test:1", list(THRESHOLDS))
    assert all((reach.at, reach.share) == (None, None) for reach in found.reachable.values())
    assert found.trusted


@pytest.mark.parametrize("channel", CHANNELS)
def test_nothing_follows_where_c_final_is_not_proved_monotone(channel: str) -> None:
    """The actions may hold under the old thresholds, and not under others."""
    slopes = {**shipped().slopes, channel: dataclasses.replace(shipped().slopes[channel], verdict="open")}
    assert under(dataclasses.replace(shipped(), slopes=slopes), THRESHOLDS) is None


def test_nothing_follows_where_c_final_jumps() -> None:
    assert under(shipped(), THRESHOLDS, value_encoding=False) is None


# --- layers ----------------------------------------------------------------------------------------------------------


def test_the_status_of_layers_as_they_come() -> None:
    for name in CERTIFIED:
        assert preset(name).certificate_status == "valid"
    for layer in (preset("paper"), MemoryDecisionLayer(), MemoryDecisionLayer(MDLConfig(basis="certified"))):
        assert (layer.certificate, layer.certificate_status) == (None, "none")


@pytest.mark.parametrize("name", CERTIFIED)
@pytest.mark.parametrize("buffer", BUFFERS)
def test_a_buffer_that_is_changed_in_place_voids_it(name: str, buffer: str) -> None:
    for place in (0, -1):
        layer = preset(name)
        values = layer.get_buffer(buffer).view(-1)
        values[place] += 4 * RANGE_TOLERANCE if buffer == "head.norm_range" else 1e-9
        assert layer.certificate_status == "void", place
        if buffer in ("head.norm_range", "policy.thresholds"):
            assert layer.hand_set
        elif buffer != "projection.basis":  # its fingerprint is rounded, so that it is the same on every machine
            assert layer.preset == "custom"


@pytest.mark.parametrize("name", CERTIFIED)
def test_the_exact_range_of_another_machine_does_not(name: str) -> None:
    layer = preset(name)
    layer.head.norm_range += RANGE_TOLERANCE / 2
    assert layer.certificate_status == "valid"


@pytest.mark.parametrize("name", CERTIFIED)
@pytest.mark.parametrize("rebuilt", [False, True])
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_that_is_changed_in_place_voids_it(name: str, switch: str, rebuilt: bool) -> None:
    layer = preset(name)
    before = layer(*points(50)).gated_confidence
    module, _, attribute = switch.partition(".")
    setattr(layer.get_submodule(module), attribute, False)
    if rebuilt:
        layer.projection.rebuild()
    assert layer.certificate_status == "void"
    assert layer.preset == "custom"
    if rebuilt or switch != "projection.orthogonal":
        assert not torch.equal(layer(*points(50)).gated_confidence, before)
    setattr(layer.get_submodule(module), attribute, True)
    layer.projection.rebuild()
    assert (layer.certificate_status, layer.preset) == ("valid", name)


def test_the_dimensions_of_the_subspaces_count() -> None:
    layer = preset()
    layer.projection.dims = (6, 5, 5)
    layer.projection.rebuild()
    assert (layer.certificate_status, layer.preset) == ("void", "custom")


def test_a_configuration_that_is_exchanged_voids_it() -> None:
    """The layer looks risk inversion up in it."""
    layer = preset()
    layer.config = dataclasses.replace(layer.config, risk_inversion=False)
    assert layer.certificate_status == "void"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("fusion.bias", lambda layer: layer.fusion.bias.data.add_(1e-9)),
        ("fusion.bias", lambda layer: np.add(layer.fusion.bias.numpy(), 1e-9, out=layer.fusion.bias.numpy())),
        (
            "fusion.bias",
            lambda layer: layer.fusion.load_state_dict({**layer.fusion.state_dict(), "bias": torch.ones(16)}),
        ),
        ("head.gate", lambda layer: setattr(layer.head, "gate", torch.tensor([0.3, 0.8], dtype=torch.float64))),
    ],
    ids=["data", "numpy", "state", "another tensor"],
)
def test_whatever_way_it_is_changed(name: str, change) -> None:
    layer = preset()
    change(layer)
    assert (layer.certificate_status, layer.changed()) == ("void", [name])


@pytest.mark.parametrize("name", CERTIFIED)
def test_a_change_of_thresholds_alone_renews_it(name: str) -> None:
    layer = preset(name)
    fitted = layer.calibrated(thresholds_only(layer))
    found = fitted.certificate
    assert fitted.certificate_status == "valid"
    assert (found.subject, found.config) == (fitted.digest(), fitted.held_config().to_dict())
    assert found.calibration == fitted.calibration_label
    assert layer.certificate is shipped(name), "the layer it was made of stays"
    signals = points(4_000)
    own = fitted(*signals).action
    for k, sign in enumerate((1, 1, -1)):  # every signal moved towards more trust
        moved = signals.clone()
        moved[k] += sign * points(4_000)[0] * (1 - moved[k] if sign > 0 else moved[k])
        assert (fitted(*moved).action <= own).all()
    taken = {Action(action).label for action in own.tolist()}
    for label, reach in found.reachable.items():
        assert reach.verdict == "holds"
        assert label in taken
    high = layer.calibrated(thresholds_only(layer, (0.999, 0.5, 0.1)))
    assert high.certificate.reachable["active"].verdict == "fails"
    assert not (high(*signals).action == Action.ACTIVE).any()


@pytest.mark.parametrize("name", CERTIFIED)
def test_a_fitted_range_voids_it_and_without_it_the_shipped_one_is_back(name: str) -> None:
    layer = preset(name)
    fitted = layer.calibrated(calibration_of(layer))
    assert fitted.certificate_status == "void"
    assert fitted.calibrated(thresholds_only(layer)).certificate_status == "valid", "with the exact range again"
    for made in (fitted, layer.calibrated(thresholds_only(layer)), fitted.calibrated(thresholds_only(layer))):
        back = made.uncalibrated()
        assert (back.certificate, back.certificate_status) == (shipped(name), "valid")


def test_what_was_changed_in_place_and_undone() -> None:
    layer = preset()
    layer.policy.thresholds.copy_(torch.tensor([0.5, 0.3, 0.1]))
    layer.head.norm_range += 0.1
    assert layer.certificate_status == "void"
    assert (layer.uncalibrated().certificate, layer.uncalibrated().certificate_status) == (shipped(), "valid")
    layer.fusion.bias += 1e-9
    assert layer.uncalibrated().certificate_status == "void", "that is another function"
    assert layer.calibrated(thresholds_only(preset())).certificate_status == "void"


def test_a_layer_without_one_gets_none_by_calibration() -> None:
    layer = MemoryDecisionLayer(MDLConfig(basis="certified"))
    for made in (layer.calibrated(thresholds_only(layer)), layer.uncalibrated()):
        assert made.certificate_status == "none"


def test_a_layer_of_ones_own() -> None:
    """Its thresholds are those of no preset; other ones renew the certificate, and its own give it back."""
    layer = MemoryDecisionLayer(MDLConfig(basis="certified", thresholds=THRESHOLDS))
    proved = shipped().with_thresholds(layer.digest(), layer.config, layer.calibration_label)
    assert proved is not None
    worn = layer.certified(proved)
    assert (worn.certificate_status, layer.certificate_status) == ("valid", "none")
    other = worn.calibrated(thresholds_only(layer, (0.5, 0.3, 0.2)))
    assert (other.certificate_status, other.certificate is proved) == ("valid", False)
    assert worn.uncalibrated().certificate == shipped()


def test_without_value_encoding_other_thresholds_void_it() -> None:
    """There C_final jumps at M = 0: that an action is taken no longer follows from the range of C_final."""
    plain = {"value_encoding": False, "risk_modulation": False, "orthogonal_subspaces": False, "alpha_gate": False}
    layer = MemoryDecisionLayer(MDLConfig(**plain, bias=0.2))
    worn = layer.certified(certify(layer, boxes=2_000))
    assert worn.certificate_status == "valid"
    assert worn.calibrated(thresholds_only(layer)).certificate_status == "void"


def test_a_certificate_of_another_layer_is_refused() -> None:
    others = (MemoryDecisionLayer(), preset("ensemble"), preset().calibrated(thresholds_only(preset())))
    for layer in others:
        with pytest.raises(
            CertificateMismatchError, match=rf"of layer {shipped().subject}, this is layer {layer.digest()}"
        ):
            layer.certified(shipped())


def test_a_certificate_that_proves_too_little_is_refused() -> None:
    layer = MemoryDecisionLayer()
    found = certify(layer, boxes=1_000)
    with pytest.raises(CertificateMismatchError, match="must hold along every signal to be worn, got relevance fails"):
        layer.certified(found)
    layer.certificate = found
    assert layer.certificate_status == "void"


@pytest.mark.parametrize("name", CERTIFIED)
@pytest.mark.parametrize(
    "remade",
    [
        copy.deepcopy,
        lambda layer: pickle.loads(pickle.dumps(layer)),
        lambda layer: layer.half(),
        lambda layer: layer.to(torch.bfloat16),
        lambda layer: torch.nn.Sequential(layer).float()[0],
        lambda layer: layer.requires_grad_(False).eval(),
    ],
    ids=["deepcopy", "pickle", "half", "bfloat16", "float", "eval"],
)
def test_what_changes_nothing_leaves_it_valid(name: str, remade) -> None:
    layer = remade(preset(name))
    assert (layer.certificate, layer.certificate_status) == (shipped(name), "valid")


def test_a_layer_without_values_has_nothing_proved() -> None:
    with torch.device("meta"):
        built = preset()
    for layer in (built, preset().to("meta")):
        assert (layer.certificate, layer.certificate_status) == (shipped(), "void")


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CERTIFIED)
def test_a_saved_layer_keeps_it_and_its_status(name: str, tmp_path) -> None:
    layer = preset(name)
    renewed = layer.calibrated(thresholds_only(layer))
    void = layer.calibrated(calibration_of(layer))
    for place, (made, status) in enumerate(((layer, "valid"), (renewed, "valid"), (void, "void"))):
        made.save_pretrained(tmp_path / str(place))
        back = MemoryDecisionLayer.from_pretrained(tmp_path / str(place))
        assert (back.certificate, back.certificate_status) == (made.certificate, status)
        assert back.uncalibrated().certificate == shipped(name)


def resaved(folder, certificate, *, checksum: bool) -> None:
    described = json.loads((folder / "config.json").read_text("utf-8"))
    described["certificate"] = certificate
    if checksum:
        del described["sha256"]
        described["sha256"] = _checksum(described, load_file(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(described), "utf-8")


def test_a_certificate_that_was_edited_is_found(tmp_path) -> None:
    preset().save_pretrained(tmp_path)
    for altered in (edited("largest_gated", [0.1, 0.2]), edited("slopes.risk.verdict", "weak"), None):
        resaved(tmp_path, altered, checksum=False)
        with pytest.raises(CheckpointError, match="was altered after it was saved: the checksum"):
            MemoryDecisionLayer.from_pretrained(tmp_path)


def test_a_certificate_of_another_layer_does_not_become_valid_in_a_file(tmp_path) -> None:
    """Not even with a checksum that fits."""
    MemoryDecisionLayer().save_pretrained(tmp_path)
    resaved(tmp_path, shipped().to_dict(), checksum=True)
    assert MemoryDecisionLayer.from_pretrained(tmp_path).certificate_status == "void"
    resaved(tmp_path, edited("slopes", {}), checksum=True)
    with pytest.raises(CheckpointError, match="does not hold a valid layer: slopes lacks"):
        MemoryDecisionLayer.from_pretrained(tmp_path)


# --- output lines ----------------------------------------------------------------------------------------------------


READY = Retrieval(signals=ReadySignals(0.7, 0.3, 0.5), id="x")


def test_output_lines_say_what_is_proved_of_the_layer() -> None:
    expected = {"paper": "none", "certified": "valid", "ensemble": "valid"}
    for name, status in expected.items():
        assert MemoryGate.from_pretrained(layer=name).records([READY])[0].certificate == status


@pytest.mark.parametrize("name", CERTIFIED)
def test_output_lines_of_calibrated_presets(name: str) -> None:
    """Thresholds alone renew the proof, a range of its own voids it."""
    layer, theirs = preset(name), {"encoder": None, "detector": MemoryGate().detector.identity}
    for fitted, status in ((thresholds_only(layer), "valid"), (calibration_of(layer), "void")):
        gate = MemoryGate.from_pretrained(layer=layer, calibration=dataclasses.replace(fitted, **theirs))
        assert gate.records([READY])[0].certificate == status


def bias(layer: MemoryDecisionLayer) -> None:
    layer.fusion.bias += 1e-9


def ungated(layer: MemoryDecisionLayer) -> None:
    layer.head.gated = False


def lowered(layer: MemoryDecisionLayer) -> None:
    layer.policy.thresholds[0] = 0.55


def widened(layer: MemoryDecisionLayer) -> None:
    layer.head.norm_range[1] += 0.1


CHANGES = [(bias, "preset"), (ungated, "preset"), (lowered, "calibration"), (widened, "calibration")]


@pytest.mark.parametrize(("change", "field"), CHANGES)
def test_the_lines_after_a_change_are_those_of_the_changed_layer(change, field: str) -> None:
    gate = MemoryGate(layer=preset())
    before = gate.records([READY])[0]
    change(gate.layer)
    after, again = gate.records([READY])[0], gate.decide("What is tea?", ["Tea is a drink."], risk=0.2)
    assert (before.certificate, after.certificate, again.certificate) == ("valid", "void", "void")
    assert getattr(before, field) != getattr(after, field) == getattr(again, field)
    assert after.thresholds == tuple(round(theta, 7) for theta in gate.layer.policy.thresholds.tolist())
    assert verify(after, gate).outcome == "verified"


@pytest.mark.parametrize(("change", "field"), CHANGES)
def test_a_line_does_not_come_out_of_a_changed_layer(change, field: str) -> None:
    gate = MemoryGate(layer=preset())
    record = gate.records([READY])[0]
    assert verify(record, gate).outcome == "verified"
    change(gate.layer)
    found = verify(record, gate)
    assert found.outcome == "not_verifiable"
    assert found.obstacles[0].startswith(f"{field} is {getattr(record, field)} in the line, ")
    assert found.obstacles[-1] == "certificate is valid in the line, void in this gate"


@pytest.mark.parametrize("claimed", ["none", "void"])
def test_a_line_that_tells_otherwise_is_found(claimed: str) -> None:
    gate = MemoryGate(layer=preset())
    found = verify(dataclasses.replace(gate.records([READY])[0], certificate=claimed), gate)
    assert [check.field for check in found.differing] == ["certificate"]


def test_what_is_said_of_a_gate_is_made_anew_only_where_something_changed() -> None:
    gate = MemoryGate(layer=preset())
    first = gate.provenance
    assert gate.provenance is first
    layer = gate.layer
    layer.certificate = None
    assert (gate.provenance.certificate, first.certificate) == ("none", "valid")
    layer.certificate = shipped()
    assert gate.provenance == first
    layer.config = dataclasses.replace(layer.config, risk_inversion=False)
    assert gate.provenance.certificate == "void"
    layer.config = preset().config
    assert not gate.provenance.fitted
    layer.calibration = thresholds_only(layer)
    assert gate.provenance.fitted
