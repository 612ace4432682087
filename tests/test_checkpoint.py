"""Saving and loading: bit for bit what was saved, or an error that names the folder and the fault."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys

import pytest
import torch
from cases import CONFIGURATIONS, assert_identical, calibration_of, configs, grid
from hypothesis import given, settings
from safetensors.torch import load_file, save_file

from mdl_torch import MDLConfig, MemoryDecisionLayer
from mdl_torch.errors import CheckpointError
from mdl_torch.layer import _checksum


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "my-layer"
    layer = MemoryDecisionLayer()
    layer.calibrated(calibration_of(layer)).save_pretrained(folder)
    return folder


def refused(folder, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        MemoryDecisionLayer.from_pretrained(folder)
    assert str(folder) in str(caught.value)


def rewrite(folder, *, tensors=None, checksum=True, **changes):
    """Change a saved layer; with a valid checksum, as somebody who means harm would."""
    described = json.loads((folder / "config.json").read_text("utf-8"))
    described.update(changes)
    stored = load_file(folder / "model.safetensors")
    stored = {**stored, **tensors} if isinstance(tensors, dict) else tensors(stored) if tensors else stored
    save_file(stored, folder / "model.safetensors")
    if checksum:
        described.pop("sha256", None)
        described["sha256"] = _checksum(described, stored)
    (folder / "config.json").write_text(json.dumps(described), "utf-8")


# --- what was saved comes back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_round_trip_bit_for_bit(name, tmp_path):
    layer = MemoryDecisionLayer(CONFIGURATIONS[name])
    layer.save_pretrained(tmp_path)
    back = MemoryDecisionLayer.from_pretrained(tmp_path)
    assert back.config == layer.config
    for name, tensor in layer.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    assert_identical(back(*grid(7)), layer(*grid(7)))
    assert (back.preset, back.basis, back.calibration) == (layer.preset, layer.basis, None)


@settings(max_examples=15)
@given(config=configs())
def test_round_trip_of_any_configuration(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("layer")
    layer = MemoryDecisionLayer(config)
    layer.save_pretrained(folder)
    back = MemoryDecisionLayer.from_pretrained(folder)
    assert back.config == config
    assert_identical(back(*grid(3)), layer(*grid(3)))
    shutil.rmtree(folder)


def test_round_trip_of_a_calibrated_layer(saved):
    back = MemoryDecisionLayer.from_pretrained(saved)
    assert back.calibration == calibration_of(MemoryDecisionLayer())
    assert back.head.norm_range.tolist() == [1.5, 3.0]


@pytest.mark.parametrize("change", [{"norm_range": (1.5, 3.0)}, {"norm_range": None, "range_method": "exact"}])
def test_round_trip_of_a_calibrated_ensemble(tmp_path, change):
    """With a range for all bases, and with the exact one of each."""
    bare = MemoryDecisionLayer(MDLConfig(bases=3))
    rows = ((0.5, 0.25, 0.2), (0.7, 0.5, 0.85))
    layer = bare.calibrated(calibration_of(bare, thresholds=(0.7, 0.5, 0.3), signals=rows, samples=2, **change))
    layer.save_pretrained(tmp_path)
    back = MemoryDecisionLayer.from_pretrained(tmp_path)
    assert (back.config, back.calibration, back.hand_set) == (layer.config, layer.calibration, False)
    assert torch.equal(back.head.norm_range, layer.head.norm_range)
    assert_identical(back(*grid(5)), layer(*grid(5)))


def test_a_layer_saved_before_there_were_several_bases(saved):
    """Its configuration and calibration lack what came later."""
    described = json.loads((saved / "config.json").read_text("utf-8"))
    config = {k: v for k, v in described["config"].items() if k not in ("bases", "basis")}
    calibration = {k: v for k, v in described["calibration"].items() if k != "signals"}
    rewrite(saved, config=config, calibration=calibration)
    back = MemoryDecisionLayer.from_pretrained(saved)
    assert (back.preset, back.calibration) == ("paper", calibration_of(MemoryDecisionLayer()))


def test_ranges_of_their_own_that_no_configuration_holds(tmp_path):
    """Of several bases: one for all, or the exact one of each."""
    layer = MemoryDecisionLayer(MDLConfig(bases=2))
    layer.save_pretrained(tmp_path)
    layer.head.norm_range[0, 0] = 1.0
    with pytest.raises(ValueError, match="norm_range must be one for all bases or the exact one of each"):
        layer.save_pretrained(tmp_path / "other")
    rewrite(tmp_path, tensors={"head.norm_range": layer.head.norm_range})
    refused(tmp_path, "norm_range must be one for all bases or the exact one of each")


@pytest.mark.parametrize("place", [0, 2])
def test_every_basis_must_be_orthogonal(tmp_path, place):
    layer = MemoryDecisionLayer(MDLConfig(bases=3))
    layer.save_pretrained(tmp_path)
    basis = layer.projection.basis.clone()
    basis[place] *= 1.001
    rewrite(tmp_path, tensors={"projection.basis": basis})
    refused(tmp_path, "basis is not orthogonal")


def test_another_number_of_bases_than_the_configuration_says(tmp_path):
    MemoryDecisionLayer(MDLConfig(bases=3)).save_pretrained(tmp_path)
    rewrite(tmp_path, tensors={"projection.basis": MemoryDecisionLayer(MDLConfig(bases=2)).projection.basis})
    refused(tmp_path, "projection.basis")


def test_round_trip_of_a_replaced_basis(tmp_path):
    layer = MemoryDecisionLayer()
    other = MemoryDecisionLayer(MDLConfig(seed=7)).projection.basis
    layer.load_state_dict({**layer.state_dict(), "projection.basis": other})
    layer.save_pretrained(tmp_path)
    back = MemoryDecisionLayer.from_pretrained(tmp_path)
    assert_identical(back(*grid(5)), layer(*grid(5)))
    assert back.preset == "custom"


@pytest.mark.parametrize("calibrated", [False, True])
def test_values_that_were_set_in_place_come_back_as_set_by_hand(tmp_path, calibrated):
    """The configuration follows the buffers, and a calibration that no longer holds is not saved."""
    layer = MemoryDecisionLayer()
    if calibrated:
        layer = layer.calibrated(calibration_of(layer))
    layer.head.norm_range.copy_(f64(1.0, 2.0))
    layer.policy.thresholds.copy_(f64(0.9, 0.8, 0.7))
    layer.save_pretrained(tmp_path)
    back = MemoryDecisionLayer.from_pretrained(tmp_path)
    assert back.config == MDLConfig(norm_range=(1.0, 2.0), thresholds=(0.9, 0.8, 0.7))
    assert (back.calibration, back.hand_set) == (None, True)
    assert back.calibration_label == layer.calibration_label
    assert back.calibration_label.startswith("manual:")


def test_buffers_that_differ_from_the_configuration_are_what_counts(tmp_path):
    MemoryDecisionLayer().save_pretrained(tmp_path)
    rewrite(tmp_path, tensors={"policy.thresholds": f64(0.9, 0.8, 0.7)})
    back = MemoryDecisionLayer.from_pretrained(tmp_path)
    assert (back.config.thresholds, back.config.norm_range, back.hand_set) == ((0.9, 0.8, 0.7), None, True)


@pytest.mark.parametrize("tensors", ["head.norm_range", "policy.thresholds"])
def test_buffers_that_differ_from_the_calibration_are_refused(saved, tensors):
    values = {"head.norm_range": (1.0, 2.0), "policy.thresholds": (0.9, 0.8, 0.7)}
    rewrite(saved, tensors={tensors: f64(*values[tensors])})
    refused(saved, "range and thresholds are not those of its calibration 'test'")


def test_a_cast_layer_saves_what_it_computes_with(tmp_path):
    MemoryDecisionLayer().to(torch.bfloat16).save_pretrained(tmp_path)
    assert_identical(MemoryDecisionLayer.from_pretrained(tmp_path)(*grid(5)), MemoryDecisionLayer()(*grid(5)))


def test_saving_over_another_layer(saved):
    MemoryDecisionLayer(MDLConfig(sigma=0.3)).save_pretrained(str(saved))
    assert MemoryDecisionLayer.from_pretrained(str(saved)).config.sigma == 0.3


def test_two_files_and_no_pickle(saved, monkeypatch):
    """Neither writes nor reads one: with the unpickler gone it still loads."""
    assert sorted(p.name for p in saved.iterdir()) == ["config.json", "model.safetensors"]
    code = (
        "import pickle, sys, torch\n"
        "from mdl_torch import MemoryDecisionLayer\n"
        "def gone(*_, **__): raise AssertionError('unpickled')\n"
        "pickle.load = pickle.loads = pickle.Unpickler = torch.load = gone\n"
        "print(MemoryDecisionLayer.from_pretrained(sys.argv[1]).preset)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(saved)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "paper"


def test_the_description_is_readable(saved):
    described = json.loads((saved / "config.json").read_text("utf-8"))
    assert set(described) == {"format", "config", "calibration", "certificate", "sha256"}
    assert described["format"] == 1
    assert MDLConfig.from_dict(described["config"]).norm_range == (1.5, 3.0)


# --- damaged ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file(saved, name):
    (saved / name).unlink()
    refused(saved, f"is not a saved layer.*{name}|No such file")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("keep", [0, 1, 40, -1, -8])
def test_a_truncated_file(saved, name, keep):
    content = (saved / name).read_bytes()
    cut = content[:keep] if name == "model.safetensors" or keep != -1 else content[:-3]  # a final newline is no loss
    (saved / name).write_bytes(cut)
    refused(saved, "is not a saved layer")


@pytest.mark.parametrize(
    "content", [b"<!DOCTYPE html><html>404</html>", b"[]", b"3", b"null", b"{}", b"\xff\xfe", b'{"format": 1}']
)
def test_something_else_than_a_description(saved, content):
    (saved / "config.json").write_bytes(content)
    refused(saved, "is not a saved layer")


def test_html_instead_of_tensors(saved):
    (saved / "model.safetensors").write_text("<!DOCTYPE html><html>404</html>")
    refused(saved, "is not a saved layer")


def test_a_pickle_instead_of_tensors(saved):
    torch.save(MemoryDecisionLayer().state_dict(), saved / "model.safetensors")
    refused(saved, "is not a saved layer")


def test_a_pointer_of_large_file_storage(saved):
    (saved / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    refused(saved, "is not a saved layer")


def test_missing_folder(tmp_path):
    refused(tmp_path / "absent", "no such folder")
    refused("./absent/layer", "no such folder")


def test_a_name_that_the_hub_cannot_give(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("nobody/absent-layer", "no such folder, and not to be had from the hub")


# --- altered ---------------------------------------------------------------------------------------------------------


def test_every_byte_of_the_tensors_counts(saved):
    """One bit flipped, in a sample of bytes of header and values: refused, unless the tensors are still the same."""
    path = saved / "model.safetensors"
    content, original, refusals = path.read_bytes(), load_file(path), 0
    for position in [*range(8, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        try:
            loaded = MemoryDecisionLayer.from_pretrained(saved).state_dict()
        except CheckpointError as error:
            refusals += str(saved) in str(error)
        else:
            assert all(torch.equal(loaded[name], tensor) for name, tensor in original.items())
    assert refusals > len(content) / 97 * 0.9


@pytest.mark.parametrize(
    "change", [{"sigma": 0.3}, {"thresholds": [0.1, 0.05, 0.01]}, {"alpha_gate": False}, {"norm_range": None}]
)
def test_an_altered_configuration(saved, change):
    config = json.loads((saved / "config.json").read_text("utf-8"))["config"]
    rewrite(saved, config={**config, **change}, checksum=False)
    refused(saved, "was altered after it was saved")


def test_an_altered_calibration(saved):
    calibration = json.loads((saved / "config.json").read_text("utf-8"))["calibration"]
    rewrite(saved, calibration={**calibration, "name": "better"}, checksum=False)
    refused(saved, "was altered after it was saved")


def test_altered_tensors(saved):
    rewrite(saved, tensors={"policy.thresholds": torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)}, checksum=False)
    refused(saved, "was altered after it was saved")


@pytest.mark.parametrize("version", [0, 2, "1.0", None])
def test_another_format_version(saved, version):
    rewrite(saved, format=version)
    refused(saved, f"has checkpoint format {version}, this version reads 1")


# --- altered, with a checksum that fits ------------------------------------------------------------------------------


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"projection.basis": torch.eye(16, dtype=torch.float64) * 1.001}, "basis is not orthogonal"),
        ({"projection.basis": torch.zeros(16, 16, dtype=torch.float64)}, "basis is not orthogonal"),
        ({"projection.basis": torch.full((16, 16), torch.nan, dtype=torch.float64)}, "basis is not orthogonal"),
        ({"projection.basis": torch.eye(16)}, "projection.basis must be torch.float64, got torch.float32"),
        ({"projection.basis": torch.eye(16, dtype=torch.bfloat16)}, "must be torch.float64, got torch.bfloat16"),
        ({"projection.basis": torch.eye(8, dtype=torch.float64)}, "projection.basis"),
        ({"head.norm_range": f64(3, 1)}, "norm_range must"),
        ({"head.norm_range": f64(1, torch.inf)}, "norm_range must"),
        ({"head.norm_range": f64(torch.nan, 2)}, "norm_range must"),
        ({"policy.thresholds": f64(0.2, 0.4, 0.6)}, "thresholds must"),
        ({"policy.thresholds": f64(0.6, torch.nan, 0.2)}, "thresholds must"),
        ({"projection.gains": f64(1, 1, 1)}, "projection.gains does not follow from the configuration"),
        ({"projection.leakage": f64(0.3).squeeze()}, "projection.leakage does not follow"),
        ({"encoder.sigma": f64(torch.nan).squeeze()}, "encoder.sigma does not follow"),
        ({"encoder.centres": torch.zeros(16, dtype=torch.float64)}, "encoder.centres does not follow"),
        ({"fusion.bias": torch.ones(16, dtype=torch.float64)}, "fusion.bias does not follow"),
        ({"head.gate": f64(1, 0)}, "head.gate does not follow"),
        ({"extra": f64(1)}, "extra"),
        (lambda t: {k: v for k, v in t.items() if k != "head.gate"}, "head.gate"),
    ],
)
def test_tensors_that_no_layer_has(saved, tensors, message):
    rewrite(saved, tensors=tensors)
    refused(saved, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"sgima": 0.2}}, "unknown configuration key 'sgima'; did you mean 'sigma'"),
        ({"config": {"sigma": -1}}, "sigma must"),
        ({"config": []}, "values must be a mapping"),
        ({"config": {"dim": 17, "subspace_dims": [5, 5, 7]}}, "projection.basis"),
        ({"calibration": {"name": "x"}}, "calibration lacks"),
        ({"calibration": [1]}, "calibration must be a mapping"),
    ],
)
def test_descriptions_that_no_layer_has(saved, changes, message):
    rewrite(saved, **changes)
    refused(saved, message)


def test_the_checksum_covers_every_tensor_and_every_word(saved):
    """Of names, shapes, dtypes, values and the description: each makes another sum."""
    tensors, base = {"a": f64(1, 2)}, {"x": 1}
    variants = [
        (base, tensors),
        ({"x": 2}, tensors),
        (base, {"b": f64(1, 2)}),
        (base, {"a": f64(1, 3)}),
        (base, {"a": f64(1, 2).view(2, 1)}),
        (base, {"a": f64(1, 2).view(torch.int64)}),
    ]
    assert len({_checksum(*v) for v in variants}) == len(variants)
    assert len(_checksum(base, tensors)) == len(hashlib.sha256().hexdigest())
