"""``mdl certify``: presets, saved layers and calibration files; what it prints, writes and checks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mdl_torch import MDLConfig, MemoryDecisionLayer
from mdl_torch.calibration import Calibration
from mdl_torch.certificate import Certificate
from mdl_torch.certificate_card import SYMBOLS, certificate_card
from mdl_torch.config import CHANNELS
from tests.cases import calibration_of, mdl

QUICK = ("--boxes", "60000", "--resolution", "4")


def proved(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status, out, err = mdl(capfd, "certify", *arguments, "--json")
    assert err == ""
    return status, json.loads(out)


def test_a_preset_that_is_in_order(capfd):
    """Exit status 0, and the certificate that the library gives."""
    status, found = proved(capfd, "certified", *QUICK)
    assert status == 0
    certificate = Certificate.from_dict(found["certificate"])
    assert certificate.trusted
    assert certificate.subject == Certificate.of_preset("certified").subject
    assert [certificate.slopes[channel].verdict for channel in CHANNELS] == ["strict"] * 3


def test_the_paper_preset_is_not(capfd):
    status, out, _ = mdl(capfd, "certify", *QUICK)
    assert status == 1
    assert "REFUTED: more relevance never moves the action away from Active" in out
    assert "proved: more risk never moves the action towards Active" in out
    assert "controller paper, basis 78d31e72, calibration exact-range" in out


def test_a_calibration_file_finds_its_preset(capfd, tmp_path):
    path = tmp_path / "mine.json"
    Calibration.reference().save(path)
    _, by_file = proved(capfd, str(path), *QUICK)
    _, by_option = proved(capfd, "paper", "--calibration", str(path), *QUICK)
    _, by_name = proved(capfd, "paper", "--calibration", "reference", *QUICK)
    assert by_file == by_option == by_name
    assert by_file["certificate"]["calibration"] == Calibration.reference().label
    assert by_file["certificate"]["norm_range"] == [[2.2309673, 3.138886]]


def test_a_calibration_of_no_preset_is_named(capfd, tmp_path):
    path = tmp_path / "mine.json"
    calibration_of(MemoryDecisionLayer(MDLConfig(sigma=0.3)), name="mine").save(path)
    status, _, err = mdl(capfd, "certify", str(path))
    assert status == 2
    assert "calibration 'mine' is of no preset: name its layer, and give the file with --calibration" in err


def test_thresholds_alone_keep_the_certified_preset_proved(capfd, tmp_path):
    layer = MemoryDecisionLayer.from_preset("certified")
    path = tmp_path / "thresholds.json"
    fitted = calibration_of(layer, norm_range=None, range_method="exact", thresholds=(0.8, 0.7, 0.5))
    fitted.save(path)
    status, found = proved(capfd, str(path), *QUICK)
    assert status == 0
    assert found["certificate"]["config"]["thresholds"] == [0.8, 0.7, 0.5]
    assert found["certificate"]["preset"] == "certified"


def test_values_of_ones_own(capfd):
    _, found = proved(capfd, "--controller.sigma", "0.3", *QUICK)
    assert found["certificate"]["config"]["sigma"] == 0.3
    assert found["certificate"]["preset"] == "custom"


def test_a_saved_layer_comes_back_with_its_certificate(capfd, tmp_path):
    folder = tmp_path / "layer"
    status, _, _ = mdl(capfd, "certify", "certified", *QUICK, "--save", str(folder), "-o", str(tmp_path / "c.json"))
    assert status == 0
    saved = MemoryDecisionLayer.from_pretrained(folder)
    assert saved.certificate_status == "valid"
    assert saved.certificate == Certificate.load(tmp_path / "c.json")
    status, found = proved(capfd, str(folder), *QUICK)
    assert Certificate.from_dict(found["certificate"]) == saved.certificate


def test_what_is_refuted_is_not_worn(capfd, tmp_path):
    status, _, err = mdl(capfd, "certify", "paper", *QUICK, "--save", str(tmp_path / "layer"))
    assert status == 2
    assert "relevance fails" in err
    assert not (tmp_path / "layer").exists()


def test_a_certificate_is_checked(capfd, tmp_path):
    path = tmp_path / "c.json"
    mdl(capfd, "certify", "paper", *QUICK, "-o", str(path))
    status, out, _ = mdl(capfd, "certify", "paper", "--check", str(path))
    assert status == 0
    assert " ".join(out.split()) == f"HOLDS: {path} is borne out by its cover, box by box."
    status, out, _ = mdl(capfd, "certify", "certified", "--check", str(path))
    assert status == 1
    assert "the certificate is of layer" in out
    claimed = json.loads(path.read_text())
    claimed["slopes"]["relevance"]["verdict"] = "strict"
    path.write_text(json.dumps(claimed))
    status, out, _ = mdl(capfd, "certify", "paper", "--check", str(path), "--json")
    assert status == 1
    assert json.loads(out)["problems"] == ["slopes.relevance.verdict is 'strict', its cover gives 'fails'"]


def test_seeds_on_the_cube_and_on_decisions(capfd, tmp_path):
    decisions = tmp_path / "decisions.jsonl"
    lines = [
        json.dumps({"id": str(i), "signals": {"relevance": m, "reliability": 0.5, "risk": 0.5}})
        for i, m in enumerate((0.0, 0.3, 0.5, 1.0))
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    mdl(capfd, "score", str(tmp_path / "in.jsonl"), "-o", str(decisions))
    _, found = proved(capfd, "paper", "--boxes", "512", "--seeds", "10", "--decisions", str(decisions))
    cube, mine = found["stability"].values()
    assert (cube["decisions"], mine["decisions"], cube["seeds"]) == (41**3, 4, 10)
    assert 0.1 < cube["changed"] < 0.35
    _, out, _ = mdl(capfd, "certify", "paper", "--boxes", "512", "--seeds", "10", "--decisions", str(decisions))
    assert f"{cube['changed']:.1%}" in out
    assert "68,921" in out


def test_sensitivity_is_printed_and_drawn(capfd, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plots" / "sensitivity.svg"
    arguments = ("certify", "--boxes", "512", "--sensitivity", "--points", "5", "--plot", str(plot))
    _, out, _ = mdl(capfd, *arguments)
    assert "ε_c" in out
    assert plot.read_text().startswith("<?xml")
    _, found = mdl(capfd, *arguments[:-2], "--json")[:2]
    fields = {series["field"] for series in json.loads(found)["sensitivity"]["series"]}
    assert {"sigma", "dim", "cross_leakage", "bias"} <= fields


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsense",), "unknown preset 'nonsense'"),
        (("certifed",), "did you mean 'certified'"),
        (("/no/such/folder",), "no such folder"),
        (("paper", "--calibration", "/no/such/file"), "No such file"),
        (("certified", "--calibration", "reference"), "was fitted for configuration"),
        (("certified", "--controller.sigma", "0.3"), "LAYER and --controller both describe the controller"),
        (("--boxes", "100"), "boxes must be at least 512, got 100"),
        (("--resolution", "40"), "resolution must be from 3 to 16, got 40"),
        (("--seeds", "1", "--boxes", "512"), "seeds must be from 2 to 1024, got 1"),
        (("--plot", "x.svg"), "--plot draws the sensitivity: give --sensitivity too"),
        (("--sensitivity", "--plot", "x.txt"), "path of a figure must end in"),
        (("--check", "x.json", "--seeds", "4"), "--check proves nothing anew: leave out --seeds"),
        (("-o", "/"), "--output must be a file, got the folder /"),
        (("--seeds", "4", "--decisions", "/no/such/file"), "No such file"),
        (("--decisions", "x.jsonl"), "--decisions are for the seeds to decide on again: give --seeds too"),
        (("--check", "/no/such/file"), "No such file"),
        (("--check", str(Path(__file__))), "is not a certificate file"),
    ],
)
def test_mistakes_are_one_line(capfd, arguments, message):
    status, out, err = mdl(capfd, "certify", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_nothing_is_searched_before_a_name_is_checked(capfd, tmp_path, monkeypatch):
    """A file that cannot be written is found out before the work, not after."""
    monkeypatch.setattr("mdl_torch.certify.certify", None)
    status, _, err = mdl(capfd, "certify", "paper", "-o", str(tmp_path / "no" / "folder" / "c.json"))
    assert status == 2
    assert "no such folder" in err
    assert "no/folder" in err


# --- the card ---------------------------------------------------------------------------------------------------------


def shown(certificate: Certificate, width: int = 120) -> str:
    with (console := Console(width=width)).capture() as text:
        console.print(certificate_card(certificate))
    return text.get()


@pytest.mark.parametrize("channel", CHANNELS)
def test_printed_bounds_are_proved_too(channel):
    """A lower bound is rounded down, an upper one up."""
    certificate = Certificate.of_preset("certified")
    (row,) = [line for line in shown(certificate).splitlines() if line.strip().startswith(f"{SYMBOLS[channel]} ")]
    low, largest = re.search(r"everywhere +(\S+) \.\. \S+ +\(.*\) +(\S+)", row).groups()
    everywhere = certificate.slopes[channel].everywhere
    assert float(low) <= everywhere.smallest[0] < float(low) + 1e-4
    assert float(largest) - 1e-4 < everywhere.largest <= float(largest)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_card_fits(width):
    assert max(map(len, shown(Certificate.of_preset("ensemble"), width).splitlines())) <= width


# --- mdl explain --stability ------------------------------------------------------------------------------------------


@pytest.fixture
def decided(capfd, tmp_path) -> Path:
    """Three decisions on ready signals."""
    signals = [(0.9, 0.9, 0.1), (0.6, 0.3, 0.7), (0.0, 0.0, 1.0)]
    lines = [json.dumps({"id": str(i), "signals": dict(zip(CHANNELS, s, strict=True))}) for i, s in enumerate(signals)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    mdl(capfd, "score", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"))
    return tmp_path / "out.jsonl"


def test_the_stability_of_a_decision(capfd, decided):
    status, out, _ = mdl(capfd, "explain", str(decided), "--id", "1", "--stability", "40", "--json")
    assert status == 0
    found = json.loads(out)["stability"]
    assert found["seeds"] == 40
    assert sum(found["actions"].values()) == 40
    assert found["actions"][json.loads(out)["decision"]["action"]] / 40 == found["share"]
    _, out, _ = mdl(capfd, "explain", str(decided), "--id", "1", "--stability", "40")
    assert f"({found['share']:.0%}) take the same action" in " ".join(out.split())


def test_extremes_do_not_hang_on_the_seed(capfd, decided):
    for name in ("0", "2"):
        _, out, _ = mdl(capfd, "explain", str(decided), "--id", name, "--stability", "20", "--json")
        assert json.loads(out)["stability"]["share"] == 1.0


def test_stability_needs_one_decision_of_this_gate(capfd, decided):
    status, _, err = mdl(capfd, "explain", str(decided), "--verify", "--stability", "4")
    assert (status, "choose it by --id or --line" in err) == (2, True)
    status, _, err = mdl(capfd, "explain", str(decided), "--id", "1", "--stability", "4", "--gate.layer", "certified")
    assert status == 2
    assert "preset" in err
