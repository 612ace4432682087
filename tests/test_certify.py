"""Certificates: what is proved holds wherever it is tried, and what does not hold is not proved."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch

from mdl_torch.calibration import Calibration
from mdl_torch.certificate import Certificate, Counterexample, Cover
from mdl_torch.certify import certify, check
from mdl_torch.config import ABLATIONS, CHANNELS, MDLConfig
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Action
from tests.oracle import Oracle

FEW = 60_000
"""Boxes that are enough for most of what is asked here."""

PLAIN = {
    "value_encoding": False,
    "risk_modulation": False,
    "orthogonal_subspaces": False,
    "alpha_gate": False,
    "subspace_gains": (0.5, 0.4, 0.3),
    "bias": 0.2,
}
"""v_meta = tanh(y)·1 with y = 0.5·M + 0.4·R + 0.3·(1 - A) + 0.2, so that ‖v_meta‖ = 4·tanh(y), and C_final = C."""


def y(m, r, a):
    return 0.5 * m + 0.4 * r + 0.3 * (1 - a) + 0.2


def sech2(x):
    return 1 / np.cosh(x) ** 2


@functools.cache
def certified() -> tuple[MemoryDecisionLayer, Certificate]:
    layer = MemoryDecisionLayer.from_preset("certified")
    return layer, certify(layer)


@functools.cache
def paper() -> tuple[MemoryDecisionLayer, Certificate]:
    layer = MemoryDecisionLayer()
    return layer, certify(layer)


@functools.cache
def calibrated() -> tuple[MemoryDecisionLayer, Certificate]:
    layer = MemoryDecisionLayer().calibrated(Calibration.reference())
    return layer, certify(layer, boxes=300_000)


# --- layers whose slopes are known in closed form --------------------------------------------------------------------


def test_slopes_in_closed_form():
    """C_final = (4·tanh(y) - n_min)/(n_max - n_min), whose slopes are smallest where y is largest, at (1, 1, 0)."""
    layer = MemoryDecisionLayer(MDLConfig(**PLAIN))
    found = certify(layer, boxes=FEW)
    low, high = 4 * np.tanh(0.2), 4 * np.tanh(1.4)
    assert found.norm_range[0] == pytest.approx((low, high), abs=1e-12)
    for (proved, attained), truly in ((found.smallest_norm[0], low), (found.largest_norm[0][::-1], high)):
        assert attained == pytest.approx(truly, abs=1e-9)
        assert proved == pytest.approx(truly, abs=1e-9)
    assert found.smallest_norm[0][0] <= low
    assert found.largest_norm[0][1] >= high
    for channel, gain in zip(CHANNELS, (0.5, 0.4, 0.3), strict=True):
        slopes = found.slopes[channel]
        smallest, largest = (4 * gain * sech2(end) / (high - low) for end in (1.4, 0.2))
        assert slopes.verdict == "strict"
        proved, attained = slopes.everywhere.smallest
        assert proved <= smallest <= attained + 1e-9
        assert attained == pytest.approx(smallest, rel=1e-6)
        assert proved >= 0.94 * smallest
        assert slopes.everywhere.at == (1.0, 1.0, 0.0)
        assert largest <= slopes.everywhere.largest <= 1.2 * largest
        assert slopes.holds == (1.0, 1.0)
        assert slopes.counterexample is None
        assert (slopes.saturated, slopes.zero) == (None, None)
        assert found.actions[channel].verdict == "holds"
    assert found.parts == {"unclipped": (1.0, 1.0), "saturated": (0.0, 0.0), "zero": (0.0, 0.0)}
    assert found.monotone
    assert found.trusted


def test_shares_in_closed_form():
    """Where C_final < θ2 the point lies in the corner 0.5·M + 0.4·R + 0.3·(1 - A) < t, of volume t³/(6·0.5·0.4·0.3)."""
    low, high = 4 * np.tanh(0.2), 4 * np.tanh(1.4)
    theta = (4 * np.tanh(0.2 + 0.25) - low) / (high - low)
    layer = MemoryDecisionLayer(MDLConfig(**PLAIN, thresholds=(0.9, 0.8, theta)))
    found = certify(layer, boxes=FEW)
    least, most = found.reachable["opt_out"].share
    volume = 0.25**3 / (6 * 0.5 * 0.4 * 0.3)
    assert least <= volume <= most
    assert most - least < 0.02
    assert sum(found.reachable[a.label].share[0] for a in Action) <= 1
    for action in Action:
        reach = found.reachable[action.label]
        assert reach.verdict == "holds"
        decision = layer(*torch.tensor(reach.at, dtype=torch.float64))
        assert Action(decision.action.item()) == action


def test_clipped_parts_in_closed_form():
    """C is cut off where y leaves a band; there C_final is flat, so that it is monotone, but not strictly."""
    layer = MemoryDecisionLayer(MDLConfig(**PLAIN, norm_range=(4 * np.tanh(0.45), 4 * np.tanh(1.2))))
    found = certify(layer, boxes=FEW)
    zero, saturated = (t**3 / (6 * 0.5 * 0.4 * 0.3) for t in (0.25, 0.2))
    for part, volume in (("zero", zero), ("saturated", saturated), ("unclipped", 1 - zero - saturated)):
        least, most = found.parts[part]
        assert least <= volume <= most
        assert most - least < 0.04
    for channel, gain in zip(CHANNELS, (0.5, 0.4, 0.3), strict=True):
        slopes = found.slopes[channel]
        assert slopes.zero.smallest == (0.0, 0.0)
        assert slopes.unclipped.smallest[0] > 0
        smallest = 4 * gain * sech2(1.2) / (4 * np.tanh(1.2) - 4 * np.tanh(0.45))
        assert slopes.unclipped.smallest[0] <= smallest <= slopes.unclipped.smallest[1] + 0.02
        assert slopes.saturated.smallest == slopes.zero.smallest == (0.0, 0.0)
        assert slopes.verdict == "weak"
        assert slopes.holds == (1.0, 1.0)
        assert found.actions[channel].verdict == "holds"
    assert found.monotone


def test_a_jump_in_closed_form():
    """Without value encoding α is 0 at M = 0, and 1 above: C_final jumps from 0.3·C to C, so that nothing falls.

    Along R and A the slope is smallest on that face, where it is 0.3 of that of C.
    """
    layer = MemoryDecisionLayer(MDLConfig(**{**PLAIN, "alpha_gate": True}))
    found = certify(layer, boxes=FEW)
    low, high = 4 * np.tanh(0.2), 4 * np.tanh(1.4)
    for channel, gain in (("reliability", 0.4), ("risk", 0.3)):
        smallest = 0.3 * 4 * gain * sech2(0.2 + 0.7) / (high - low)
        assert 0 < found.slopes[channel].everywhere.smallest[0] <= smallest
        assert found.slopes[channel].everywhere.smallest[0] == pytest.approx(smallest, rel=0.2)
        assert found.slopes[channel].unclipped.smallest[0] <= smallest
    assert found.slopes["relevance"].everywhere.largest > 1e300
    assert found.monotone
    assert found.trusted


def test_a_fall_in_closed_form():
    """Without risk inversion C_final rises with A, the most along the whole axis at M = R = 0."""
    config = MDLConfig(**PLAIN, risk_inversion=False)
    layer = MemoryDecisionLayer(config)
    found = certify(layer, boxes=FEW)
    low, high = 4 * np.tanh(0.2), 4 * np.tanh(1.4)
    slopes = found.slopes["risk"]
    assert slopes.verdict == "fails"
    assert slopes.holds == (0.0, 0.0)
    assert slopes.everywhere.smallest[0] <= -4 * 0.3 * sech2(0.2) / (high - low) <= slopes.everywhere.smallest[1] + 1e-9
    worst = slopes.counterexample
    assert worst.fall == pytest.approx(4 * (np.tanh(0.5) - np.tanh(0.2)) / (high - low), abs=1e-12)
    assert (worst.weaker, worst.stronger) == ((0.0, 0.0, 1.0), (0.0, 0.0, 0.0))
    assert found.actions["risk"].verdict == "fails"
    assert (found.slopes["relevance"].verdict, found.slopes["reliability"].verdict) == ("strict", "strict")
    assert not found.trusted


def test_a_fall_that_never_moves_the_action():
    """C_final falls, but stays between two thresholds where it does: users are safe, and that is proved."""
    config = MDLConfig(**PLAIN, risk_inversion=False, thresholds=(1.0, 1e-6, 0.0))
    found = certify(MemoryDecisionLayer(dataclasses.replace(config, norm_range=(0.1, 5.0))), boxes=FEW)
    assert found.slopes["risk"].verdict == "fails"
    assert found.actions["risk"].verdict == "holds"
    assert found.reachable["supp"].share == (1.0, 1.0)
    assert {label: r.verdict for label, r in found.reachable.items()} == {
        "active": "fails",
        "supp": "holds",
        "silent": "fails",
        "opt_out": "fails",
    }


@pytest.mark.parametrize("seed", [3, 7])
def test_bounds_of_several_bases(seed):
    """The ensemble of one layer twice is that layer."""
    once = certify(MemoryDecisionLayer(MDLConfig(seed=seed)), boxes=4_000)
    twice = MemoryDecisionLayer(MDLConfig(seed=seed, bases=2))
    basis, norm_range = twice.projection.basis[0].clone(), twice.head.norm_range[0].clone()
    twice.projection.basis[1], twice.head.norm_range[1] = basis, norm_range
    twice.projection.rebuild()
    found = certify(twice, boxes=4_000)
    for channel in CHANNELS:
        assert found.slopes[channel].everywhere.smallest == pytest.approx(once.slopes[channel].everywhere.smallest)
        assert found.slopes[channel].holds == pytest.approx(once.slopes[channel].holds, abs=1e-9)
    assert found.smallest_norm == (once.smallest_norm[0],) * 2


# --- a layer that is broken at one small spot ------------------------------------------------------------------------


def broken(width: float = 0.002, centre: float = 0.5375) -> MemoryDecisionLayer:
    """The certified layer, one peak of its encoding moved and made so narrow that no point of a 41-grid sees it."""
    layer = MemoryDecisionLayer.from_preset("certified")
    layer.encoder.sigma = torch.full((16,), 0.2, dtype=torch.float64)
    layer.encoder.sigma[14], layer.encoder.centres[14] = width, centre
    return layer


def test_one_small_spot_is_caught():
    layer = broken()
    axis = torch.linspace(0, 1, 41, dtype=torch.float64)
    gated = layer(*torch.cartesian_prod(axis, axis, axis).unbind(-1)).gated_confidence.reshape(41, 41, 41)
    assert (gated.diff(dim=0) > 0).all()  # the grid sees a monotone layer
    assert (gated.diff(dim=1) > 0).all()
    assert (gated.diff(dim=2) < 0).all()
    found = certify(layer, boxes=FEW)
    assert not found.monotone
    assert not found.trusted
    example = found.slopes["relevance"].counterexample
    assert example is not None
    assert found.slopes["relevance"].everywhere.smallest[0] < -1


@pytest.mark.parametrize("width", [0.002, 0.0005])
def test_the_spot_is_where_it_was_put(width):
    """The fall along M that is found is that down the far side of the peak."""
    example = certify(broken(width), boxes=FEW).slopes["relevance"].counterexample
    start, end = example.weaker[0], example.stronger[0]
    assert 0.5375 <= start < end < 0.5375 + 5 * width


# --- what is proved of the presets -----------------------------------------------------------------------------------


def test_the_certified_preset_is_proved():
    _, found = certified()
    assert {channel: found.slopes[channel].verdict for channel in CHANNELS} == dict.fromkeys(CHANNELS, "strict")
    assert all(found.slopes[channel].everywhere.smallest[0] >= 0.03 for channel in CHANNELS)
    assert all(found.actions[channel].verdict == "holds" for channel in CHANNELS)
    assert all(found.reachable[action.label].verdict == "holds" for action in Action)
    assert found.parts["unclipped"] == (1.0, 1.0)
    (low, high) = found.norm_range[0]
    assert found.smallest_norm[0][0] == pytest.approx(low, abs=1e-9)
    assert found.largest_norm[0][1] == pytest.approx(high, abs=1e-9)


def test_the_paper_preset_fails():
    """The shares enclose those of the 41-grid in tests/test_theory.py: 27.7%, 1.7% and 0.06% of its steps fall."""
    _, found = paper()
    for channel, falling in zip(CHANNELS, (0.277, 0.0168, 0.00055), strict=True):
        slopes = found.slopes[channel]
        assert slopes.verdict == "fails"
        least, most = slopes.holds
        assert least < 1 - falling < most
        assert most - least < 0.1
    assert found.slopes["relevance"].counterexample.fall > 0.03
    assert found.actions["relevance"].verdict == "fails"
    assert found.smallest_norm[0][1] == pytest.approx(1.2522579643, abs=1e-9)
    assert found.largest_norm[0][0] > 3.28058975  # the 41-grid misses the maximum, by 5e-6
    assert found.largest_norm[0][0] > found.norm_range[0][1]


@pytest.mark.parametrize("of", [paper, calibrated], ids=["paper", "reference calibration"])
def test_counterexamples_can_be_run_again(of):
    layer, found = of()
    seen = 0
    for k, channel in enumerate(CHANNELS):
        for example in (found.slopes[channel].counterexample, found.actions[channel].counterexample):
            if example is None:
                continue
            seen += 1
            weaker, stronger = (
                layer(*torch.tensor(p, dtype=torch.float64)) for p in (example.weaker, example.stronger)
            )
            gated = weaker.gated_confidence.item(), stronger.gated_confidence.item()
            assert gated == pytest.approx(example.gated_confidence, abs=1e-12)
            assert example.fall == pytest.approx(gated[0] - gated[1], abs=1e-12)
            assert example.fall > 0
            assert [Action(d.action.item()).label for d in (weaker, stronger)] == list(example.actions)
            moved = np.array(example.stronger) - np.array(example.weaker)
            assert np.flatnonzero(moved).tolist() == [k]
            assert moved[k] * (1, 1, -1)[k] > 0
        if (move := found.actions[channel].counterexample) is not None:
            order = [a.label for a in Action]
            assert order.index(move.actions[0]) < order.index(move.actions[1])
    assert seen >= 4


def test_counterexamples_by_the_oracle():
    """The equations themselves fall there, not our code."""
    _, found = paper()
    for channel in CHANNELS:
        example = found.slopes[channel].counterexample
        gated = [Oracle().head(*point)[2] for point in (example.weaker, example.stronger)]
        assert gated == pytest.approx(example.gated_confidence, abs=1e-12)


def pairs(n: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """n random pairs of points that differ in signal k alone, some of them hardly; the second deserves more trust."""
    rng = np.random.default_rng(seed)
    weaker = rng.random((n, 3))
    on_a_face = rng.random((n, 3)) < 0.1
    weaker = np.where(on_a_face, weaker.round(), weaker)
    stronger = weaker.copy()
    stronger[:, k] = np.clip(weaker[:, k] + rng.choice([1e-6, 1e-3, 0.1, 1.0], n) * rng.random(n), 0, 1)
    if k == 2:
        weaker[:, 2], stronger[:, 2] = stronger[:, 2].copy(), weaker[:, 2].copy()
    return torch.from_numpy(weaker), torch.from_numpy(stronger)


@pytest.mark.parametrize("of", [certified, paper, calibrated], ids=["certified", "paper", "reference calibration"])
@pytest.mark.parametrize("k", range(3))
def test_a_million_random_pairs_do_not_contradict(of, k):
    """No pair rises by less than the smallest slope or more than the largest; where proved, no action moves wrong."""
    layer, found = of()
    channel = CHANNELS[k]
    weaker, stronger = pairs(340_000, k)
    before, after = (layer(*points.unbind(-1)) for points in (weaker, stronger))
    rise = (after.gated_confidence - before.gated_confidence).numpy()
    way = (stronger - weaker).abs().sum(dim=-1).numpy()
    slopes = found.slopes[channel].everywhere
    assert (rise >= slopes.smallest[0] * way - 1e-12).all()
    assert (rise <= slopes.largest * way + 1e-12).all()
    if found.actions[channel].verdict == "holds":
        assert (after.action <= before.action).all()
    norms = before.norm.numpy()
    assert found.smallest_norm[0][0] <= norms.min()
    assert norms.max() <= found.largest_norm[0][1]
    assert found.smallest_gated[0] <= before.gated_confidence.min().item()
    assert before.gated_confidence.max().item() <= found.largest_gated[1] + 1e-12


@pytest.mark.parametrize("of", [certified, paper, calibrated], ids=["certified", "paper", "reference calibration"])
def test_shares_enclose_those_of_random_points(of):
    layer, found = of()
    points = torch.rand(3, 500_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares = torch.bincount(layer(*points).action.long(), minlength=4).double().numpy() / 500_000
    for action, share in zip(Action, shares, strict=True):
        least, most = found.reachable[action.label].share
        assert least - 0.003 <= share <= most + 0.003  # four standard deviations
        assert most - least < 0.07


def test_in_float32_too():
    """Where C_final differs by more than rounding, the order holds: a step of 1e-4 is plenty at these slopes."""
    layer, _ = certified()
    for k in range(3):
        weaker, stronger = (points.float() for points in pairs(100_000, k, seed=1))
        far = (stronger - weaker).abs().sum(dim=-1) > 1e-4
        before, after = (layer(*points[far].unbind(-1)) for points in (weaker, stronger))
        assert (after.gated_confidence > before.gated_confidence).all()
        assert (after.action <= before.action).all()


# --- the search ------------------------------------------------------------------------------------------------------


def test_a_small_budget_proves_less_and_nothing_false():
    layer, full = certified()
    found = certify(layer, boxes=600)
    assert found.evaluated <= 600
    for channel in CHANNELS:
        assert found.slopes[channel].everywhere.smallest[0] <= full.slopes[channel].everywhere.smallest[1]
        assert found.slopes[channel].verdict == "open"
        assert found.slopes[channel].holds[1] == 1.0
    assert not found.trusted
    assert {found.actions[channel].verdict for channel in CHANNELS} <= {"open", "holds"}


def test_a_budget_below_the_first_boxes_is_refused():
    with pytest.raises(ValueError, match="boxes must be at least 512, got 100"):
        certify(MemoryDecisionLayer(), boxes=100)


def test_it_is_deterministic():
    layer = MemoryDecisionLayer(MDLConfig(seed=5))
    assert certify(layer, boxes=3_000) == certify(layer, boxes=3_000)


def test_progress_is_shown(capfd):
    certify(MemoryDecisionLayer(), boxes=600, progress=True)
    assert "cube settled" in capfd.readouterr().err


# --- the cover -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [certified, paper, calibrated], ids=["certified", "paper", "reference calibration"])
def test_a_certificate_is_checked_by_its_cover(of):
    layer, found = of()
    assert check(found, layer) == []


@pytest.mark.parametrize("name", ["certified", pytest.param("ensemble", marks=pytest.mark.slow)])
def test_the_shipped_certificates_hold(name):
    """16 bases take 16 times as long as one."""
    shipped = Certificate.of_preset(name)
    assert check(shipped, MemoryDecisionLayer.from_preset(name)) == []
    assert {shipped.slopes[channel].verdict for channel in CHANNELS} == {"strict"}
    assert shipped.trusted


def test_a_certificate_of_another_layer_is_refused():
    _, found = certified()
    other = MemoryDecisionLayer()
    assert check(found, other) == [f"the certificate is of layer {found.subject}, this is {other.digest()}"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: dataclasses.replace(c, smallest_norm=((1.5, 1.5),)), "smallest_norm"),
        (lambda c: dataclasses.replace(c, parts={**c.parts, "zero": (0.1, 0.1)}), "parts.zero"),
        (lambda c: dataclasses.replace(c, largest_gated=(0.9, 0.9)), "largest_gated"),
        (
            lambda c: dataclasses.replace(
                c, slopes={**c.slopes, "risk": dataclasses.replace(c.slopes["risk"], verdict="strict")}
            ),
            "slopes.risk.verdict",
        ),
        (
            lambda c: dataclasses.replace(
                c,
                slopes={
                    **c.slopes,
                    "relevance": dataclasses.replace(
                        c.slopes["relevance"],
                        everywhere=dataclasses.replace(c.slopes["relevance"].everywhere, smallest=(0.1, 0.2)),
                    ),
                },
            ),
            "slopes.relevance.everywhere.smallest",
        ),
        (
            lambda c: dataclasses.replace(
                c, actions={**c.actions, "relevance": dataclasses.replace(c.actions["relevance"], verdict="holds")}
            ),
            "actions.relevance.verdict",
        ),
    ],
)
def test_a_claim_that_the_cover_does_not_bear_is_found(change, named):
    layer, found = paper()
    problems = check(change(found), layer)
    assert problems
    assert any(problem.startswith(named) for problem in problems)


def with_example(found: Certificate, where: str, weaker, stronger) -> Certificate:
    """A certificate that claims a refutation along reliability by these points."""
    example = Counterexample(weaker, stronger, (0.9, 0.1), ("active", "opt_out"), 0.8)
    claims = getattr(found, where)
    changed = dataclasses.replace(claims["reliability"], verdict="fails", counterexample=example)
    return dataclasses.replace(found, **{where: {**claims, "reliability": changed}})


@pytest.mark.parametrize("where", ["slopes", "actions"])
@pytest.mark.parametrize(
    ("weaker", "stronger", "message"),
    [
        ((0.9, 0.9, 0.1), (0.9, 0.1, 0.9), "differ in one signal, towards trust"),
        ((0.9, 0.9, 0.1), (0.9, 0.1, 0.1), "differ in one signal, towards trust"),
        ((0.9, 0.9, 0.1), (0.9, 0.9, 0.1), "differ in one signal, towards trust"),
        ((0.9, 0.5, 0.1), (0.9, 2.0, 0.1), "must lie in the cube"),
        ((0.2, 0.2, 0.5), (0.2, 0.3, 0.5), "does not fall"),
    ],
)
def test_a_forged_counterexample_is_found(where, weaker, stronger, message):
    layer, found = certified()
    (problem,) = check(with_example(found, where, weaker, stronger), layer)
    assert problem.startswith(f"{where}.reliability")
    assert message in problem


def test_a_move_that_is_none_is_found():
    layer, found = paper()
    fall = found.slopes["relevance"].counterexample
    assert fall.actions[0] == fall.actions[1]
    moved = dataclasses.replace(found.actions["relevance"], counterexample=fall)
    (problem,) = check(dataclasses.replace(found, actions={**found.actions, "relevance": moved}), layer)
    assert "does not move the action" in problem


def test_an_attained_point_outside_of_the_cube_is_found():
    layer, found = certified()
    slopes = found.slopes["risk"]
    outside = dataclasses.replace(slopes, everywhere=dataclasses.replace(slopes.everywhere, at=(1.0, 1.0, -1.0)))
    (problem,) = check(dataclasses.replace(found, slopes={**found.slopes, "risk": outside}), layer)
    assert "every point must lie in the cube" in problem


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"evaluated": 123_456_789}, "evaluated"),
        ({"cover": {"leaves": 7}}, "cover.leaves"),
        ({"cover": {"deepest": 3}}, "cover.deepest"),
    ],
)
def test_counts_are_checked(change, named):
    layer, found = certified()
    if "cover" in change:
        change = {"cover": dataclasses.replace(found.cover, **change["cover"])}
    (problem,) = check(dataclasses.replace(found, **change), layer)
    assert problem.startswith(named)


def test_a_renewed_certificate_is_checked_too():
    layer = MemoryDecisionLayer.from_preset("certified").ranged(None, (0.8, 0.7, 0.5))
    assert layer.certificate_status == "valid"
    assert check(layer.certificate, layer) == []
    forged = {
        **layer.certificate.reachable,
        "active": dataclasses.replace(layer.certificate.reachable["active"], verdict="fails"),
    }
    assert check(dataclasses.replace(layer.certificate, reachable=forged), layer)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_certificates_of_the_ablations_are_written_and_read(ablation, tmp_path):
    layer = MemoryDecisionLayer(MDLConfig().ablate(ablation))
    found = certify(layer, boxes=2_000)
    found.save(tmp_path / "c.json")
    again = Certificate.load(tmp_path / "c.json")
    assert again == found
    assert check(again, layer) == []


def test_a_layer_that_no_configuration_describes_is_refused():
    layer = MemoryDecisionLayer(MDLConfig(norm_range=(1.0, 2.0), gate=(0.5, 0.0), thresholds=(0.9, 0.8, 0.0)))
    layer.fusion.bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"fusion\.bias must be finite"):
        certify(layer)


def test_the_order_holds_beyond_the_edge():
    """A range that is off by what goes unnoticed: C_final falls by less than 3e-9, as the certificate says."""
    layer = MemoryDecisionLayer.from_preset("certified")
    low, high = layer.head.norm_range.tolist()
    layer.head.norm_range[1] = high - 0.9e-10 * (high - low)
    assert layer.certificate_status == "valid"
    near = torch.linspace(0, 1e-6, 2001, dtype=torch.float64)
    gated = layer(*torch.broadcast_tensors(torch.tensor(1.0), torch.tensor(1.0), near)).gated_confidence
    assert (torch.cummin(gated, dim=0).values - gated).min().item() > -3e-9


@pytest.mark.parametrize("splits", ["", "not base64!", "AAAA", "eJwDAAAAAAE="])
def test_a_damaged_cover_is_found(splits):
    layer, found = paper()
    damaged = dataclasses.replace(found, cover=Cover(found.cover.leaves, found.cover.deepest, splits))
    assert "cover" in check(damaged, layer)[0]


def test_the_cover_counts():
    """Every box that was looked at is either a leaf or cut in eight, but for the first 512."""
    _, found = paper()
    cut = (found.evaluated - 512) // 8
    assert found.cover.leaves == found.evaluated - cut
    assert found.cover.deepest <= 16
