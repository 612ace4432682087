"""How much hangs on the seed: counted again by the oracle and, layer by layer, by hand."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import numpy as np
import pytest
import torch
from cases import calibration_of, grid
from oracle import Oracle

from mdl_torch import Action, Calibration, MDLConfig, MemoryDecisionLayer, MemoryGate
from mdl_torch.calibration import fit_norm_range
from mdl_torch.config import MOST_BASES
from mdl_torch.data import read_text
from mdl_torch.outputs import Status
from mdl_torch.policy import guard
from mdl_torch.retrieval import Memory, ReadySignals, Retrieval
from mdl_torch.stability import (
    POINTS_AT_ONCE,
    ActionStability,
    cube,
    seed_stability,
    seeded,
    seeded_actions,
    stability_of,
)

POINTS = grid(7)
SIGNALS = ((0.1, 0.9, 0.9), (0.9, 0.5, 0.1), (0.5, 0.1, 0.5), (0.3, 0.7, 0.85), (0.7, 0.2, 0.2))
"""Of the retrievals of a calibration."""


@functools.cache
def single(seed: int, **changes) -> MemoryDecisionLayer:
    return MemoryDecisionLayer(MDLConfig(seed=seed, **changes))


def one_by_one(layers, points=POINTS) -> np.ndarray:
    """The action of each layer at each point, ``(n, layers)``."""
    return np.stack([layer(*points).action.numpy() for layer in layers], axis=-1)


def calibrated(layer: MemoryDecisionLayer, **changes) -> MemoryDecisionLayer:
    fitted = {"norm_range": (1.5, 3.0), "thresholds": (0.65, 0.45, 0.25)}
    return layer.calibrated(calibration_of(layer, **{**fitted, **changes}))


# --- the layers of other seeds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seeds", "first"), [(4, 0), (3, 11)])
def test_each_seed_is_the_oracle_with_its_own_exact_range(seeds: int, first: int) -> None:
    others, plain = seeded(MemoryDecisionLayer(), seeds, first=first), [p.numpy() for p in POINTS]
    gated = others.trust(*POINTS).gated_confidence
    actions = seeded_actions(others, *POINTS)
    assert actions.dtype == torch.int8
    for place in range(seeds):
        oracle = Oracle(seed=first + place)
        np.testing.assert_allclose(others.head.norm_range[place], oracle.exact_range(), rtol=0, atol=1e-12)
        *_, expected, action = oracle.decide(*plain)
        np.testing.assert_allclose(gated[:, place], expected, rtol=0, atol=1e-12)
        clear = np.abs(expected[:, None] - oracle.thresholds).min(-1) > 1e-11
        np.testing.assert_array_equal(actions[:, place].numpy()[clear], action[clear])


@pytest.mark.parametrize("changes", [{}, {"sigma": 0.3, "thresholds": (0.7, 0.5, 0.1)}, {"alpha_gate": False}])
def test_all_else_is_as_in_the_layer(changes: dict) -> None:
    found = seeded_actions(seeded(MemoryDecisionLayer(MDLConfig(**changes)), 5), *POINTS)
    np.testing.assert_array_equal(found, one_by_one([single(seed, **changes) for seed in range(5)]))


@pytest.mark.parametrize("name", ["certified", "ensemble"])
def test_the_seeds_beside_a_preset_are_single_random_bases(name: str) -> None:
    layer = MemoryDecisionLayer.from_preset(name)
    others = seeded(layer, 6)
    assert (others.config.basis, others.config.bases, others.certificate) == (None, 6, None)
    found, alone = seeded_actions(others, *POINTS), one_by_one([single(seed) for seed in range(6)])
    np.testing.assert_array_equal(found, alone)
    own = layer(*POINTS).action.numpy()
    measured = seed_stability(layer, *POINTS, seeds=6)
    assert measured.differing == pytest.approx((alone != own[:, None]).mean(), abs=1e-12)


@pytest.mark.parametrize("method", ["minmax", "quantile(0.1)"])
def test_a_calibrated_layer_lends_its_retrievals_to_every_seed(method: str) -> None:
    rows = {"signals": SIGNALS, "samples": len(SIGNALS), "range_method": method}
    others = seeded(calibrated(MemoryDecisionLayer(), **rows), 4)
    m, r, a = np.array(SIGNALS).T
    for place in range(4):
        expected = fit_norm_range(Oracle(seed=place).norm(m, r, a), method)
        np.testing.assert_allclose(others.head.norm_range[place], expected, rtol=0, atol=1e-12)
    alone = [
        calibrated(single(s), **{**rows, "norm_range": tuple(others.head.norm_range[s].tolist())}) for s in range(4)
    ]
    np.testing.assert_array_equal(seeded_actions(others, *POINTS), one_by_one(alone))


def test_the_shipped_calibration_gives_each_seed_a_range_of_its_own() -> None:
    """And the paper's own seed the one it has."""
    layer = MemoryDecisionLayer().calibrated(Calibration.reference())
    others = seeded(layer, 3, first=41)
    torch.testing.assert_close(others.head.norm_range[1], layer.head.norm_range, rtol=0, atol=1e-6)
    assert len(np.unique(others.head.norm_range.numpy().round(4), axis=0)) == 3


def test_thresholds_that_were_changed_in_place_do_not_keep_the_range_from_being_fitted() -> None:
    layer = MemoryDecisionLayer().calibrated(Calibration.reference())
    expected = seeded(layer, 3).head.norm_range
    layer.policy.thresholds[0] = 0.7
    others = seeded(layer, 3)
    assert torch.equal(others.head.norm_range, expected)
    assert others.policy.thresholds.tolist() == [0.7, 0.4, 0.2]


def test_a_calibration_that_keeps_the_exact_range_keeps_that_of_each_seed() -> None:
    layer = calibrated(MemoryDecisionLayer(), norm_range=None, range_method="exact")
    others = seeded(layer, 3)
    assert torch.equal(others.head.norm_range, seeded(MemoryDecisionLayer(), 3).head.norm_range)
    assert others.policy.thresholds.tolist() == [0.65, 0.45, 0.25]


def in_place() -> MemoryDecisionLayer:
    layer = MemoryDecisionLayer().calibrated(Calibration.reference())
    layer.head.norm_range.copy_(torch.tensor([1.5, 3.0]))
    return layer


@pytest.mark.parametrize(
    "make",
    [
        lambda: MemoryDecisionLayer(MDLConfig(norm_range=(1.5, 3.0))),
        in_place,
        lambda: calibrated(MemoryDecisionLayer()),  # its signals were not kept
    ],
    ids=["configured", "in place", "fitted, without its signals"],
)
def test_a_range_that_cannot_be_fitted_again_stays(make) -> None:
    layer = make()
    others = seeded(layer, 3)
    assert others.head.norm_range.tolist() == [[1.5, 3.0]] * 3
    alone = [single(s, norm_range=(1.5, 3.0), thresholds=tuple(layer.policy.thresholds.tolist())) for s in range(3)]
    np.testing.assert_array_equal(seeded_actions(others, *POINTS), one_by_one(alone))


def test_points_that_do_not_fit_at_once() -> None:
    points = grid(13)
    assert len(points[0]) * 4 > 2 * POINTS_AT_ONCE
    expected = one_by_one([single(seed) for seed in range(4)], points)
    np.testing.assert_array_equal(seeded_actions(seeded(MemoryDecisionLayer(), 4), *points), expected)


@pytest.mark.parametrize("seeds", [-1, 0, 1, MOST_BASES + 1])
def test_a_number_of_seeds_that_there_cannot_be(seeds: int) -> None:
    with pytest.raises(ValueError, match=rf"seeds must be from 2 to {MOST_BASES}, got {seeds}"):
        seed_stability(MemoryDecisionLayer(), *POINTS, seeds=seeds)


def test_a_layer_that_no_configuration_describes_is_refused() -> None:
    layer = MemoryDecisionLayer()
    layer.fusion.bias[3] = 1e-3
    layer.head.gated = False
    with pytest.raises(ValueError, match=r"changed in place: alpha_gate, fusion\.bias"):
        seeded(layer, 3)


def test_a_layer_with_a_basis_of_its_own() -> None:
    """It is compared with; the seeds are what they are."""
    layer = MemoryDecisionLayer()
    layer.load_state_dict({**layer.state_dict(), "projection.basis": single(77).projection.basis})
    layer = layer.uncalibrated()
    measured = seed_stability(layer, *POINTS, seeds=3)
    assert measured.differing == seed_stability(single(77), *POINTS, seeds=3).differing > 0
    assert torch.equal(seeded(layer, 3).head.norm_range, seeded(single(77), 3).head.norm_range)


# --- over many decisions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [42, 2])
def test_shares_are_counted_one_by_one(seed: int) -> None:
    actions = one_by_one([single(s) for s in range(5)])
    own = single(seed)(*POINTS).action.numpy()
    measured = seed_stability(single(seed), *POINTS, seeds=5)
    assert (measured.decisions, measured.seeds) == (343, 5)
    pairs = [(i, j) for i in range(5) for j in range(i)]
    assert measured.changed == pytest.approx(np.mean([actions[:, i] != actions[:, j] for i, j in pairs]), abs=1e-12)
    assert measured.differing == pytest.approx(np.mean([actions[:, i] != own for i in range(5)]), abs=1e-12)
    assert measured.unanimous == pytest.approx(np.mean([len(set(row)) == 1 for row in actions]), abs=1e-12)
    assert 0 < measured.changed < 1
    assert 0 < measured.unanimous < 1
    for action in Action:
        rows = actions[own == action]
        assert measured.by_action[action.label] == pytest.approx((rows != action).mean(), abs=1e-12)


def test_where_all_seeds_agree_nothing_hangs_on_the_seed() -> None:
    nearly_all = MDLConfig(thresholds=(0.99999, 0.99998, 0.0))
    points = tuple(torch.full((4,), x, dtype=torch.float64) for x in (0.4, 0.5, 0.6))
    measured = seed_stability(MemoryDecisionLayer(nearly_all), *points, seeds=8)
    assert (measured.changed, measured.differing, measured.unanimous) == (0.0, 0.0, 1.0)
    assert measured.by_action == {"active": None, "supp": None, "silent": 0.0, "opt_out": None}
    assert json.loads(json.dumps(measured.to_dict())) == measured.to_dict()


def test_two_seeds_that_never_agree() -> None:
    """Where seeds 0 and 1 differ, every pair does, and a layer that is one of them differs from half."""
    actions = one_by_one([single(0), single(1)])
    differ = torch.from_numpy(actions[:, 0] != actions[:, 1])
    points = tuple(p[differ] for p in POINTS)
    measured = seed_stability(single(0), *points, seeds=2)
    assert (measured.decisions, measured.changed) == (int(differ.sum()), 1.0)
    assert (measured.differing, measured.unanimous) == (0.5, 0.0)


def test_signals_as_they_come() -> None:
    """Of float32, and with a cosine that is negative, or more than 1 by rounding."""
    single_precision = tuple(p.float() for p in POINTS)
    doubled = tuple(p.double() for p in single_precision)
    layer = MemoryDecisionLayer()
    assert seed_stability(layer, *single_precision, seeds=3) == seed_stability(layer, *doubled, seeds=3)
    one, half = torch.ones(1), torch.full((1,), 0.5)
    for given, taken in ((one + 2e-7, one), (-half, 0 * half)):
        for risk in (0.2, 0.5, 0.8):
            found = seed_stability(layer, given, half, risk * one, seeds=20)
            assert found == seed_stability(layer, taken, half, risk * one, seeds=20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relevance": torch.empty(0)}, r"relevance must be \(n\) with n >= 1.*got \(0,\)"),
        ({"relevance": torch.tensor(0.5)}, r"relevance must be \(n\).*got \(\)"),
        ({"relevance": torch.rand(2, 2)}, r"relevance must be \(n\).*got \(2, 2\)"),
        ({"risk": torch.rand(4)}, r"risk must be \(n\).*as many as relevance, got \(4,\)"),
        ({"risk": torch.tensor([0.5, math.nan, 0.5])}, r"finite and in \[0, 1\], got 1 of 3"),
        ({"reliability": torch.tensor([0.5, -0.1, 1.1])}, r"finite and in \[0, 1\], got 2 of 3"),
    ],
)
def test_signals_that_cannot_be_decided_on(changes: dict, message: str) -> None:
    signals = {name: torch.full((3,), 0.5) for name in ("relevance", "reliability", "risk")}
    with pytest.raises(ValueError, match=message):
        seed_stability(MemoryDecisionLayer(), **{**signals, **changes}, seeds=3)


def test_the_cube_is_cut_into_cells_of_one_size() -> None:
    columns = cube(3)
    points = {tuple(round(x, 12) for x in point) for point in zip(*(c.tolist() for c in columns), strict=True)}
    middles = [round(x, 12) for x in (1 / 6, 1 / 2, 5 / 6)]
    assert points == {(m, r, a) for m in middles for r in middles for a in middles}


# --- of one decision -------------------------------------------------------------------------------------------------


def by_hand(record, layers, *, require_relevant: bool = True) -> dict[str, int]:
    """The actions of layers on the signals of a record, after the guard."""
    counts = dict.fromkeys((action.label for action in Action), 0)
    point = torch.tensor((record.relevance, record.reliability, record.risk), dtype=torch.float64)
    for layer in layers:
        decision = guard(layer(*point), torch.tensor(record.status), require_relevant=require_relevant)
        counts[Action(decision.action.item()).label] += 1
    return counts


def test_the_seeds_of_a_decision_are_counted_one_by_one(gate: MemoryGate) -> None:
    """On the sample, with the shipped calibration fitted for every seed."""
    asked = [Retrieval.parse(json.loads(line)) for line in read_text("sample.jsonl").splitlines()][::4]
    ranges = [tuple(row) for row in seeded(gate.layer, 12).head.norm_range.tolist()]
    layers = [single(seed, norm_range=found) for seed, found in enumerate(ranges)]
    divided = set()
    for record in gate.records(asked):
        found = stability_of(record, gate, 12)
        assert found.actions == by_hand(record, layers), record.id
        assert (found.action, found.seeds, found.first) == (record.action.label, 12, 0)
        assert found.share == found.actions[record.action.label] / 12
        divided.add(found.share < 1)
    assert divided == {True, False}


@pytest.mark.parametrize("require_relevant", [True, False])
@pytest.mark.parametrize("risk", [0.2, 0.85])
@pytest.mark.parametrize("memories", [(), ((0.0, 1.0),), ((1.0, 0.0), (1.0, 0.1))])
def test_the_guard_binds_every_seed(require_relevant: bool, risk: float, memories: tuple) -> None:
    """Empty stores and irrelevant ones."""
    gate = MemoryGate(require_relevant=require_relevant)
    store = tuple(Memory(embedding=torch.tensor(memory)) for memory in memories)
    record = gate.records([Retrieval(query_embedding=torch.tensor([1.0, 0.0]), memories=store, risk=risk)])[0]
    layers = [single(seed) for seed in range(8)]
    found = stability_of(record, gate, 8)
    assert found.actions == by_hand(record, layers, require_relevant=require_relevant)
    if not memories:
        assert found.actions["active"] == found.actions["supp"] == 0
    if require_relevant and len(memories) < 2 and risk == 0.85:
        assert found.actions["opt_out"] == 8


@pytest.mark.parametrize("preset", ["certified", "ensemble"])
def test_a_decision_of_a_preset_beside_single_random_bases(preset: str) -> None:
    gate = MemoryGate(layer=MemoryDecisionLayer.from_preset(preset))
    for point in ((0.35, 0.5, 0.85), (0.6, 0.3, 0.5)):
        record = gate.records([Retrieval(signals=ReadySignals(*point))])[0]
        found = stability_of(record, gate, 10, first=100)
        assert found.actions == by_hand(record, [single(seed) for seed in range(100, 110)])


@pytest.mark.parametrize("signals", [(math.nan, 0.5, 0.5), (0.9, 2.0, 0.1)])
def test_a_faulty_decision_is_opt_out_whatever_the_seed(lenient: MemoryGate, signals: tuple) -> None:
    record = lenient.records([Retrieval(signals=ReadySignals(*signals))])[0]
    found = stability_of(record, lenient, 5)
    assert found == ActionStability(5, 0, "opt_out", {"active": 0, "supp": 0, "silent": 0, "opt_out": 5})
    faulty = dataclasses.replace(record, relevance=1.0, reliability=1.0, risk=0.0)  # of a store with a bad embedding
    assert faulty.status & (Status.NOT_FINITE | Status.OUT_OF_RANGE)
    assert stability_of(faulty, lenient, 5).share == 1.0


def test_the_account_is_plain_json(gate: MemoryGate) -> None:
    record = gate.records([Retrieval(signals=ReadySignals(0.5, 0.5, 0.5))])[0]
    found = stability_of(record, gate, 4)
    plain = {"seeds": 4, "first": 0, "action": found.action, "actions": found.actions, "share": found.share}
    assert json.loads(json.dumps(found.to_dict())) == plain


def test_a_decision_of_another_gate_is_refused(gate: MemoryGate) -> None:
    record = gate.records([Retrieval(signals=ReadySignals(0.5, 0.5, 0.5))])[0]
    other = MemoryGate(layer=MemoryDecisionLayer.from_preset("certified"))
    with pytest.raises(ValueError, match="must be one of this gate: preset is paper in the line, certified in this"):
        stability_of(record, other, 5)
    with pytest.raises(ValueError, match="seeds must be from 2"):
        stability_of(record, gate, 1)
