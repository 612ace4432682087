"""Bounds of a layer over boxes: the layer itself, anywhere in the box, keeps to them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mdl_torch.bounds import FOURTH, THIRD, LayerBounds, _Derivatives
from mdl_torch.config import ABLATIONS, MDLConfig
from mdl_torch.layer import MemoryDecisionLayer
from tests.cases import configs

MANY = 64


def inside(middle, half: float) -> np.ndarray:
    """Points (M, R, s) of a box, its corners among them, within the cube."""
    offsets = np.random.default_rng(1).uniform(-1, 1, (MANY, 3))
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
    return np.clip(np.array(middle) + half * np.concatenate((offsets, corners)), 0, 1)


def values(layer: MemoryDecisionLayer, points: np.ndarray) -> tuple[np.ndarray, ...]:
    """‖v_meta‖ ``(n, b)``, C_final ``(n)`` and its slopes along M, R and -A ``(n, 3)`` of the layer, by autograd."""
    signals = torch.tensor(points, requires_grad=True)
    risk = 1 - signals[:, 2] if layer.config.risk_inversion else signals[:, 2]
    decision = layer(signals[:, 0], signals[:, 1], risk)
    (slopes,) = torch.autograd.grad(decision.gated_confidence.sum(), signals)
    if not layer.config.risk_inversion:
        slopes = slopes * torch.tensor([1.0, 1.0, -1.0])
    with torch.no_grad():
        norms = layer.trust(signals[:, 0], signals[:, 1], risk).norm.reshape(len(points), -1)
    return norms.numpy(), decision.gated_confidence.detach().numpy(), slopes.numpy()


def assert_bounded(layer: MemoryDecisionLayer, middle, half: float) -> None:
    found = LayerBounds(layer).over(np.array([middle]), half)
    points = inside(middle, half)
    norms, gated, slopes = values(layer, points)
    for basis in range(norms.shape[1]):
        low, high = found.norm[:, basis, 0]
        assert (norms[:, basis] >= low - 1e-14).all()
        assert (norms[:, basis] <= high + 1e-14).all()
    assert (gated >= found.gated[0, 0] - 1e-14).all()
    assert (gated <= found.gated[1, 0] + 1e-14).all()
    along = np.ones_like(slopes, dtype=bool)
    along[points[:, 0] == 0, 0] = layer.encoder.peaks  # else C_final jumps there, and autograd sees no slope
    low, high = layer.head.norm_range.reshape(-1, 2).unbind(-1)
    confidence = (norms - low.numpy()) / (high - low).numpy()
    clear = (np.minimum(np.abs(confidence), np.abs(confidence - 1)) > 1e-7).all(axis=1)  # no kink nearby
    above, below = (confidence > 1).any(axis=1), (confidence < 0).any(axis=1)
    where = (~above & ~below, above, below & ~above)
    for belongs, bounds in (
        (np.ones_like(clear), found.slopes),
        *zip(where, (p.slopes for p in found.parts), strict=True),
    ):
        chosen = along & (belongs & clear)[:, None]
        slack = 1e-12 * (1 + np.abs(slopes))  # autograd rounds too
        assert (slopes >= bounds[0, :, 0] - slack)[chosen].all()
        assert (slopes <= bounds[1, :, 0] + slack)[chosen].all()


BOXES = st.tuples(st.sampled_from([2, 3, 4, 5, 7, 10]), st.tuples(*[st.floats(0, 0.999)] * 3))


@settings(max_examples=60)
@given(config=configs(), box=BOXES)
def test_the_layer_keeps_to_its_bounds(config, box):
    """Every value of Table 2, every ablation, one basis and several, boxes large and small."""
    try:
        layer = MemoryDecisionLayer(config)
    except ValueError:
        assume(False)  # a norm that hardly varies has no exact range
    level, places = box
    middle = [(np.floor(place * 2**level) + 0.5) / 2**level for place in places]
    assert_bounded(layer, middle, 0.5 / 2**level)


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("middle", [(0.5, 0.5, 0.5), (0.97, 0.03, 0.5), (0.03, 0.97, 0.97)])
def test_the_ablations(ablation, middle):
    assert_bounded(MemoryDecisionLayer(MDLConfig().ablate(ablation)), middle, 1 / 32)


def test_a_peak_that_is_narrower_than_the_box():
    """A box over it allows for all of it; one beside it is not troubled by it."""
    layer = MemoryDecisionLayer()
    layer.encoder.sigma = torch.full((16,), 0.2, dtype=torch.float64)
    layer.encoder.sigma[3], layer.encoder.centres[3] = 0.002, 0.537
    assert_bounded(layer, (0.53125, 0.28125, 0.28125), 1 / 32)
    bounds = LayerBounds(layer)
    over, beside = (bounds.over(np.array([[m, 0.25, 0.25]]), 1 / 256).slopes[0, 0, 0] for m in (0.537, 0.6))
    assert over < -5
    assert beside > -1


@pytest.mark.parametrize("cut", [(2.2, 2.9), (1.9, 2.6)])
def test_clipping_splits_the_cube_into_parts(cut):
    """A box surely in a part has C there; one that may reach into it need not."""
    layer = MemoryDecisionLayer(MDLConfig(norm_range=cut))
    rng = np.random.default_rng(2)
    middles = (rng.integers(0, 32, (500, 3)) + 0.5) / 32
    found = LayerBounds(layer).over(middles, 1 / 64)
    norm = values(layer, middles)[0][:, 0]
    where = np.stack((((norm >= cut[0]) & (norm <= cut[1])), norm > cut[1], norm < cut[0]))
    for part, truly in zip(found.parts, where, strict=True):
        assert (part.may | ~truly).all()
        assert (truly | ~part.surely).all()
        assert 0 < part.surely.sum() < 500
    assert (np.stack([part.surely for part in found.parts]).sum(axis=0) <= 1).all()


def test_bounds_close_in_with_the_square_of_the_box():
    """What a box loses over the range of the slopes in it: a quarter for half the box."""
    layer = MemoryDecisionLayer()
    losses = []
    for half in (1 / 64, 1 / 128):
        found = LayerBounds(layer).over(np.array([[0.4, 0.6, 0.3]]), half)
        _, _, slopes = values(layer, inside((0.4, 0.6, 0.3), half))
        losses.append((found.slopes[1, :, 0] - found.slopes[0, :, 0]) - (slopes.max(axis=0) - slopes.min(axis=0)))
    assert losses[0] / losses[1] == pytest.approx([4, 4, 4], rel=0.35)


def test_several_bases_are_their_mean():
    several, middles = MemoryDecisionLayer(MDLConfig(seed=3, bases=3)), np.array([[0.4, 0.6, 0.3], [0.9, 0.1, 0.8]])
    single = [LayerBounds(MemoryDecisionLayer(MDLConfig(seed=s))).over(middles, 1 / 64) for s in (3, 4, 5)]
    found = LayerBounds(several).over(middles, 1 / 64)
    np.testing.assert_allclose(found.slopes, np.mean([one.slopes for one in single], axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.gated, np.mean([one.gated for one in single], axis=0), rtol=0, atol=1e-12)


def test_parts_of_several_bases():
    """One of two bases is cut off at 0 nearly everywhere, the other never: the parts are those of the one."""
    layer = MemoryDecisionLayer(MDLConfig(seed=3, bases=2))
    layer.head.norm_range[0] = torch.tensor([2.6, 4.0])
    middles = (np.random.default_rng(3).integers(0, 32, (400, 3)) + 0.5) / 32
    found = LayerBounds(layer).over(middles, 1 / 64)
    norms, _, slopes = values(layer, middles)
    below = norms[:, 0] < 2.6
    unclipped, saturated, zero = found.parts
    assert not saturated.may.any()
    assert (zero.may | ~below).all()
    assert (unclipped.may | below).all()
    assert 0 < zero.surely.sum() < 400
    assert 0 < unclipped.surely.sum() < 400
    for part, belongs in ((unclipped, ~below), (zero, below)):
        assert (part.slopes[0] <= slopes.T + 1e-12)[:, belongs].all()
        assert (part.slopes[1] >= slopes.T - 1e-12)[:, belongs].all()


def test_the_face_without_relevance():
    """Without value encoding C_final = 0.3·C at M = 0, and flat where C is cut off: every part allows for it."""
    for cut in (None, (0.0, 1.0)):
        layer = MemoryDecisionLayer(MDLConfig(value_encoding=False, seed=0, bias=1.0, norm_range=cut))
        found = LayerBounds(layer).over(np.array([[1 / 64, 0.640625, 0.515625]]), 1 / 64)
        r, a = np.float64(0.64), np.float64(1 - 0.51)
        step = 1e-6

        def gated(r, a, layer=layer):
            return layer(*torch.tensor([0.0, r, a], dtype=torch.float64)).gated_confidence.item()

        along = [(gated(r + step, a) - gated(r, a)) / step, (gated(r, a - step) - gated(r, a)) / step]
        part = found.parts[1 if cut else 0]
        assert part.may[0]
        for bounds in (found.slopes, part.slopes):
            assert (bounds[0, 1:, 0] <= np.array(along) + 1e-8).all()
            assert (bounds[1, 1:, 0] >= np.array(along) - 1e-8).all()


@pytest.mark.parametrize(
    "name", ["fusion.bias", "encoder.sigma", "projection.basis", "head.norm_range", "policy.thresholds"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_buffer_that_is_not_finite_is_refused(name, value):
    layer = MemoryDecisionLayer()
    layer.get_buffer(name).view(-1)[0] = value
    with pytest.raises(ValueError, match=f"{name} must be finite to be certified"):
        LayerBounds(layer)


def test_a_negative_gate_is_refused():
    layer = MemoryDecisionLayer()
    layer.head.gate[1] = -0.3
    with pytest.raises(ValueError, match=r"head\.gate must not be negative"):
        LayerBounds(layer)


@pytest.mark.parametrize("order", [3, 4])
def test_largest_derivatives_of_a_peak(order):
    """Against a fine grid; the constants are rounded up."""
    u = np.linspace(-8, 8, 400_001)
    polynomial = {3: u**3 - 3 * u, 4: u**4 - 6 * u**2 + 3}[order]
    largest = np.abs(polynomial * np.exp(-u * u / 2)).max()
    assert largest <= {3: THIRD, 4: FOURTH}[order] <= largest * 1.0001


@given(point=st.floats(0, 1), half=st.floats(1e-4, 0.1), sigma=st.floats(0.01, 1))
def test_derivatives_of_the_encoding(point, half, sigma):
    """Each is that of the one before, by central differences; the bounds hold over the interval."""
    centres, h = np.linspace(0, 1, 5), sigma * 1e-4

    def at(x):
        return _Derivatives.of(np.atleast_1d(x), half, centres, np.array(sigma), peaks=True)

    here, above, below = at(point), at(point + h), at(point - h)
    for order in range(3):
        difference = (above.at[order] - below.at[order]) / (2 * h)
        np.testing.assert_allclose(here.at[order + 1], difference, rtol=0, atol=1e-4 / sigma ** (order + 1))
    around = at(point + half * np.linspace(-1, 1, 101))
    assert (np.abs(around.at[3]) <= here.third * (1 + 1e-12)).all()
    fourth = np.abs(np.diff(around.at[3], axis=0)) / (half * 0.02)
    assert (fourth <= here.fourth * (1 + 1e-6) + 1e-6 / sigma**4).all()
