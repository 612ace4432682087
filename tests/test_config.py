"""The configuration: Table 2's values, their checks, the strict dictionary, and that each value has an effect."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle

import pytest
import torch
from cases import assert_identical, configs, fields, grid
from hypothesis import given, settings

from mdl_torch import MDLConfig, MemoryDecisionLayer
from mdl_torch.config import ABLATIONS, ENSEMBLE_BASES, PRESETS, check_norm_range, preset_config
from mdl_torch.layer import exact_norm_range

SWITCHES = tuple(ABLATIONS)


def test_defaults_are_table_2():
    """Written from the table, the figures and the design's pins."""
    assert MDLConfig().to_dict() == {
        "dim": 16,
        "subspace_dims": [5, 5, 6],
        "sigma": 0.20,
        "subspace_gains": [1.0, 0.7, 0.5],
        "cross_leakage": 0.10,
        "risk_gain": [0.5, 0.5],
        "gate": [0.3, 0.7],
        "bias": 0.0,
        "thresholds": [0.6, 0.4, 0.2],
        "norm_range": None,
        "seed": 42,
        "bases": 1,
        "basis": None,
        "value_encoding": True,
        "risk_inversion": True,
        "risk_modulation": True,
        "orthogonal_subspaces": True,
        "alpha_gate": True,
    }


OUT_OF_RANGE = [
    ("dim", 0, {}),
    ("dim", -16, {}),
    ("seed", -1, {}),
    ("seed", 43, {"basis": "certified"}),
    ("bases", 0, {}),
    ("bases", 1025, {}),
    ("bases", 2, {"basis": "certified"}),
    ("dim", 12, {"basis": "certified", "subspace_dims": (4, 4, 4)}),
    ("subspace_dims", (5, 5, 5), {}),
    ("subspace_dims", (16, 0, 0), {}),
    ("subspace_dims", (5, 11), {}),
    ("subspace_dims", (-1, 11, 6), {}),
    ("subspace_dims", (5, 5, 6), {"dim": 17}),
    ("sigma", 0.0, {}),
    ("sigma", -0.2, {}),
    ("sigma", 1e-7, {}),
    ("subspace_gains", (1.0, 0.7, 0.0), {}),
    ("subspace_gains", (1.0, -0.7, 0.5), {}),
    ("subspace_gains", (1.0, 0.7), {}),
    ("cross_leakage", 0.5, {}),
    ("cross_leakage", 0.9, {}),
    ("cross_leakage", -0.1, {}),
    ("cross_leakage", 0.3, {"subspace_gains": (0.3, 0.7, 0.5)}),
    ("risk_gain", (-0.5, 0.5), {}),
    ("risk_gain", (0.5, 0.5, 0.5), {}),
    ("gate", (0.3, -0.7), {}),
    ("gate", (1.0,), {}),
    ("thresholds", (0.4, 0.6, 0.2), {}),
    ("thresholds", (0.6, 0.6, 0.2), {}),
    ("thresholds", (0.6, 0.4, 0.4), {}),
    ("thresholds", (1.1, 0.4, 0.2), {}),
    ("thresholds", (0.6, 0.4, -0.1), {}),
    ("thresholds", (0.6, 0.4), {}),
    ("norm_range", (3.0, 1.0), {}),
    ("norm_range", (1.0, 1.0), {}),
    ("norm_range", (1.0, 1.00001), {}),
    ("norm_range", (-1.0, 1.0), {}),
    ("norm_range", (1.0, 2.0, 3.0), {}),
    ("bias", 1e7, {}),
    ("bias", 10**400, {}),
    *[(name, value, {}) for name in ("sigma", "cross_leakage", "bias") for value in (math.nan, math.inf, -math.inf)],
    *[("thresholds", (0.6, v, 0.2), {}) for v in (math.nan, math.inf)],
    *[("norm_range", (0.0, v), {}) for v in (math.nan, math.inf)],
    *[("subspace_gains", (1.0, 0.7, v), {}) for v in (math.nan, math.inf)],
    *[("gate", (v, 0.7), {}) for v in (math.nan, math.inf)],
    *[("risk_gain", (v, 0.5), {}) for v in (math.nan, math.inf)],
]

WRONG_KIND = [
    *[(name, value) for name in ("dim", "seed", "bases") for value in (16.0, "16", None, True)],
    *[(name, value) for name in ("sigma", "cross_leakage", "bias") for value in ("0.2", None, True, [0.2])],
    *[
        (name, value)
        for name in ("subspace_gains", "risk_gain", "gate", "thresholds", "subspace_dims")
        for value in (0.5, "abc", None, {0.6: 1})
    ],
    *[("basis", value) for value in (3, True, ["certified"])],
    ("norm_range", 2.0),
    ("norm_range", ("1", "2")),
    ("subspace_gains", (1.0, "0.7", 0.5)),
    ("thresholds", (0.6, True, 0.2)),
    ("subspace_dims", (5.0, 5, 6)),
    *[(name, value) for name in SWITCHES for value in (1, "true", None)],
]


@pytest.mark.parametrize(("name", "value", "others"), OUT_OF_RANGE)
def test_values_out_of_range_are_named(name, value, others):
    with pytest.raises(ValueError, match=f"^{name} must "):
        MDLConfig(**{name: value, **others})


@pytest.mark.parametrize(("name", "value"), WRONG_KIND)
def test_values_of_the_wrong_kind_are_named(name, value):
    with pytest.raises(TypeError, match=f"^{name} must "):
        MDLConfig(**{name: value})


def test_every_value_has_a_check():
    checked = {name for name, *_ in OUT_OF_RANGE + WRONG_KIND}
    assert checked == {f.name for f in dataclasses.fields(MDLConfig)}


def test_the_ends_of_the_ranges_are_valid():
    MDLConfig(cross_leakage=0.0, thresholds=(1.0, 0.5, 0.0), gate=(0.0, 0.0), risk_gain=(0.0, 0.0), seed=0)
    MDLConfig(dim=3, subspace_dims=(1, 1, 1), norm_range=(0.0, 1e-4), sigma=1e-6, bases=1024)
    MDLConfig(basis="certified", seed=42, bases=1, dim=16, subspace_dims=(1, 1, 14))


def test_leakage_message_names_the_bound():
    with pytest.raises(
        ValueError, match=r"cross_leakage must lie in \[0, min\(subspace_gains\)\) = \[0, 0.5\), got 0.5"
    ):
        MDLConfig(cross_leakage=0.5)


def test_lists_and_integers_are_taken_as_tuples_and_floats():
    got = MDLConfig(thresholds=[1, 0.5, 0], norm_range=[1, 2], bias=0)
    assert (got.thresholds, got.norm_range, got.bias) == ((1.0, 0.5, 0.0), (1.0, 2.0), 0.0)
    assert isinstance(hash(got), int)


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        MDLConfig().sigma = 0.3


# --- the dictionary --------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(config=configs())
def test_round_trip_through_json(config):
    back = MDLConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False)))
    assert back == config
    assert hash(back) == hash(config)
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


def test_missing_keys_take_the_defaults():
    assert MDLConfig.from_dict({}) == MDLConfig()
    assert MDLConfig.from_dict({"sigma": 0.3}) == MDLConfig(sigma=0.3)


@pytest.mark.parametrize(
    ("typo", "nearest"),
    [("sgima", "sigma"), ("threshold", "thresholds"), ("alphagate", "alpha_gate"), ("Norm_Range", "norm_range")],
)
def test_an_unknown_key_names_the_nearest(typo, nearest):
    with pytest.raises(ValueError, match=rf"unknown configuration key '{typo}'; did you mean '{nearest}'"):
        MDLConfig.from_dict({typo: 1})


@pytest.mark.parametrize("values", [None, [], "sigma", 3])
def test_no_mapping(values):
    with pytest.raises(TypeError, match="values must be a mapping, got"):
        MDLConfig.from_dict(values)


def test_a_key_that_is_no_string():
    with pytest.raises(ValueError, match="unknown configuration key 3"):
        MDLConfig.from_dict({3: 1})


def test_wrong_values_in_a_dictionary_are_named():
    with pytest.raises(TypeError, match=r"^sigma must be a number, got '0\.2'"):
        MDLConfig.from_dict({"sigma": "0.2"})
    with pytest.raises(ValueError, match=r"^thresholds must fall strictly"):
        MDLConfig.from_dict({"thresholds": [0.2, 0.4, 0.6]})


# --- every value has an effect ---------------------------------------------------------------------------------------

CHANGES = {
    "dim": {"dim": 17, "subspace_dims": (5, 5, 7)},
    "subspace_dims": {"subspace_dims": (6, 5, 5)},
    "sigma": {"sigma": 0.21},
    "subspace_gains": [{"subspace_gains": g} for g in ((1.1, 0.7, 0.5), (1.0, 0.8, 0.5), (1.0, 0.7, 0.6))],
    "cross_leakage": {"cross_leakage": 0.11},
    "risk_gain": [{"risk_gain": g} for g in ((0.6, 0.5), (0.5, 0.6))],
    "gate": [{"gate": g} for g in ((0.4, 0.7), (0.3, 0.6))],
    "bias": {"bias": 0.05},
    "thresholds": [{"thresholds": t} for t in ((0.7, 0.4, 0.2), (0.6, 0.5, 0.2), (0.6, 0.4, 0.3))],
    "norm_range": [{"norm_range": r} for r in ((1.3, 3.2805849677116843), (1.2522579643522156, 3.2))],
    "seed": {"seed": 43},
    "bases": {"bases": 2},
    "basis": {"basis": "certified"},
    **{name: {name: False} for name in SWITCHES},
}
"""A change of every value, one for each of its components."""


def test_no_value_is_left_out():
    assert set(CHANGES) == {f.name for f in dataclasses.fields(MDLConfig)}


@pytest.mark.parametrize("name", CHANGES)
def test_each_value_changes_the_decisions(name):
    """A value without effect would be a lie in the configuration. The range is held, so that it hides no effect."""
    signals, held = grid(9), exact_norm_range(MDLConfig())
    before = MemoryDecisionLayer()(*signals)
    for change in CHANGES[name] if isinstance(CHANGES[name], list) else [CHANGES[name]]:
        after = MemoryDecisionLayer(MDLConfig(**{"norm_range": held, **change}))(*signals)
        if name == "thresholds":
            assert (after.action != before.action).any(), change
        else:
            assert (after.gated_confidence - before.gated_confidence).abs().max() > 1e-3, change


def test_the_default_range_given_explicitly_changes_nothing():
    explicit = MDLConfig(norm_range=exact_norm_range(MDLConfig()))
    assert_identical(MemoryDecisionLayer(explicit)(*grid(5)), MemoryDecisionLayer()(*grid(5)))


# --- ablations and presets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_is_one_switch(name):
    ablated = MDLConfig().ablate(name)
    assert {k for k, v in ablated.to_dict().items() if v != MDLConfig().to_dict()[k]} == {name}
    assert ablated.preset == f"paper-without-{name}"


def test_ablations_do_what_they_say():
    """g_A = 1; C_final = C; and s = A mirrors the risk axis where nothing else depends on it."""
    m, r, a = grid(7)
    unmodulated = MemoryDecisionLayer(MDLConfig().ablate("risk_modulation"))(m, r, a)
    assert (unmodulated.gain == 1).all()
    ungated = MemoryDecisionLayer(MDLConfig().ablate("alpha_gate"))(m, r, a)
    assert torch.equal(ungated.gated_confidence, ungated.confidence)
    mirrored = fields(MemoryDecisionLayer(MDLConfig().ablate("risk_inversion"))(m, r, 1 - a))
    plain = fields(MemoryDecisionLayer()(m, r, a))
    for name in ("gain", "norm", "confidence", "consistency", "gated_confidence"):
        torch.testing.assert_close(mirrored[name], plain[name], rtol=0, atol=1e-12)


def test_unknown_ablation_and_preset_name_the_nearest():
    with pytest.raises(ValueError, match=r"unknown ablation 'alpha'; did you mean 'alpha_gate'"):
        MDLConfig().ablate("alpha")
    with pytest.raises(ValueError, match=r"unknown preset 'Paper'; did you mean 'paper'"):
        preset_config("Paper")
    with pytest.raises(ValueError, match=r"unknown basis 'certifed'; did you mean 'certified'"):
        MDLConfig(basis="certifed")


def test_every_preset_is_itself():
    for name, config in PRESETS.items():
        assert preset_config(name) == config
        assert config.preset == name
        assert config.ablate("alpha_gate").preset == f"{name}-without-alpha_gate"
        assert dataclasses.replace(config, norm_range=(1.0, 2.0), thresholds=(0.5, 0.3, 0.1)).preset == name
    assert MDLConfig(bases=2).preset == MDLConfig(basis="certified", sigma=0.3).preset == "custom"
    assert MDLConfig(seed=1).preset == MDLConfig(bias=0.1).ablate("alpha_gate").preset == "custom"


def test_the_presets_differ_by_their_bases_only():
    """The ensemble begins with the basis of the paper."""
    assert list(PRESETS) == ["paper", "certified", "ensemble"]
    assert preset_config("paper") == MDLConfig()
    assert preset_config("certified") == MDLConfig(basis="certified")
    assert preset_config("ensemble") == MDLConfig(bases=ENSEMBLE_BASES)
    assert preset_config("ensemble").seed == preset_config("paper").seed == 42


def test_check_norm_range_returns_what_it_accepts():
    assert check_norm_range(1.0, 2.0) == (1.0, 2.0)
