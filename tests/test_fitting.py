"""Calibration from outcomes: what is fitted follows from B1 and B2 on the split, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdl_torch.calibration import fit_thresholds
from mdl_torch.evaluation.fitting import fit_calibration, reachable
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Action

GATE = {"encoder": "encoder-a", "detector": "lexical@1"}


def record(question: int, system: str, signals, outcome: str | None) -> dict:
    return {
        "question_id": f"q{question}",
        "system": system,
        "injected": system == "b2",
        "outcome": outcome,
        "decision": dict(zip(("relevance", "reliability", "risk"), signals, strict=True)),
        "gate": GATE,
        "data": "lucky",
        "revision": "0123456789abcdef",
        "model": "echo",
    }


def split(n: int = 40, seed: int = 0) -> tuple[np.ndarray, list[dict]]:
    """Signals, and records in which memories help exactly where M is above 0.6."""
    signals = np.random.default_rng(seed).random((n, 3))
    records = []
    for q, row in enumerate(signals):
        helps = row[0] > 0.6
        records.append(record(q, "b1", row, "hallucination" if helps else "correct"))
        records.append(record(q, "b2", row, "correct" if helps else "hallucination"))
    return signals, records


@pytest.fixture(scope="module")
def layer() -> MemoryDecisionLayer:
    return MemoryDecisionLayer()


def test_the_range_is_that_of_the_split(layer):
    signals, records = split()
    fitted = fit_calibration(records, layer, name="mine")
    norms = layer(*torch.from_numpy(signals).unbind(-1)).norm
    assert fitted.norm_range == pytest.approx((norms.min().item(), norms.max().item()), abs=1e-12)
    assert fitted.samples == 40
    assert np.array(fitted.signals) == pytest.approx(signals)


def test_the_threshold_agrees_most_with_the_oracle(layer):
    signals, records = split()
    fitted = fit_calibration(records, layer, name="mine")
    gated = layer.ranged(fitted.norm_range)(*torch.from_numpy(signals).unbind(-1)).gated_confidence.numpy()
    adopt = np.repeat(signals[:, 0] > 0.6, 2)  # B1 and B2 of a question say the same here
    assert fitted.thresholds == fit_thresholds(np.repeat(gated, 2), adopt)
    agreement = ((np.repeat(gated, 2) >= fitted.thresholds[0]) == adopt).mean()
    assert fitted.provenance["agreement with the oracle"] == pytest.approx(agreement, abs=1e-4)
    assert fitted.provenance["share of adopt"] == pytest.approx(adopt.mean(), abs=1e-4)


def test_the_action_mix_is_that_of_the_fitted_layer(layer):
    signals, records = split()
    fitted = fit_calibration(records, layer, name="mine")
    actions = layer.calibrated(fitted)(*torch.from_numpy(signals).unbind(-1)).action.numpy()
    for action in Action:
        share, low, high = fitted.action_mix[action.label]
        assert share == pytest.approx((actions == action).mean())
        assert low <= share + 1e-12
        assert high >= low
    top = signals[:, 2] >= 0.7
    opt_out = fitted.action_mix_top_risk["opt_out"][0]
    assert opt_out == pytest.approx((actions[top] == Action.OPT_OUT).mean())


@pytest.mark.parametrize("name", ["certified", "ensemble"])
def test_presets_that_are_proved_keep_their_range(name):
    _, records = split()
    layer = MemoryDecisionLayer.from_preset(name)
    fitted = fit_calibration(records, layer, name="mine", range_method="quantile(0.1)")
    assert (fitted.norm_range, fitted.range_method) == (None, "exact")
    assert layer.calibrated(fitted).certificate_status == "valid"


def test_quantiles(layer):
    signals, records = split()
    fitted = fit_calibration(records, layer, name="mine", range_method="quantile(0.1)")
    norms = layer(*torch.from_numpy(signals).unbind(-1)).norm.numpy()
    assert fitted.norm_range == pytest.approx(tuple(np.quantile(norms, (0.1, 0.9))), abs=1e-12)


def test_an_empty_output_says_nothing(layer):
    """It is neither adopt nor reject; its signals still count for the range."""
    _, records = split()
    blank = [{**r, "outcome": "empty"} if r["system"] == "b1" else r for r in records]
    assert (
        fit_calibration(blank, layer, name="mine").thresholds == fit_calibration(records, layer, name="mine").thresholds
    )
    with pytest.raises(ValueError, match="every answer is empty or was not scored"):
        fit_calibration([{**r, "outcome": "empty"} for r in records], layer, name="mine")


def test_other_systems_play_no_part(layer):
    signals, records = split()
    others = [{**record(99, "b3", (0.01, 0.01, 0.99), "hallucination")}]
    assert fit_calibration(records + others, layer, name="mine") == fit_calibration(records, layer, name="mine")
    for system in ("b1", "b2"):
        with pytest.raises(ValueError, match="records must be of b1 and b2 on a calibration split, got"):
            fit_calibration([r for r in records if r["system"] != system], layer, name="mine")
    assert len(signals) == 40


def test_the_layers_own_calibration_plays_no_part(layer):
    _, records = split()
    changed = layer.ranged((0.5, 9.0), (0.9, 0.5, 0.1))
    assert fit_calibration(records, changed, name="mine") == fit_calibration(records, layer, name="mine")


def test_reachable():
    layer = MemoryDecisionLayer()
    assert reachable(layer) == {"active": True, "supp": True, "silent": True, "opt_out": True}
    never = layer.ranged((0.1, 1.3), (0.3, 0.2, 0.1))
    assert reachable(never)["opt_out"] is False
