"""Enclosures: whatever is computed with them encloses the function that is meant, at every point of the box."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.enclosure import STEEPEST_BEND, Enclosure

UNIT = st.floats(-1, 1)
MIDDLES = st.tuples(*[st.floats(-2, 2)] * 3)


def signal(k: int, middle, half: float) -> Enclosure:
    """The k-th signal itself, over one box."""
    slope = np.zeros((3, 1))
    slope[k] = 1.0
    return Enclosure(np.array([middle[k]]), slope, np.zeros(1), half)


def samples(middle, half: float, count: int = 200) -> np.ndarray:
    """Points of a box, its corners among them, ``(n, 3)``."""
    offsets = np.random.default_rng(0).uniform(-1, 1, (count, 3))
    corners = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, 8).T
    return np.array(middle) + half * np.concatenate((offsets, corners, np.zeros((1, 3))))


def assert_encloses(found: Enclosure, values: np.ndarray) -> None:
    low, high = found.bounds
    assert (values >= low).all()
    assert (values <= high).all()


FUNCTIONS = {
    "sum": (lambda x, y, z: x + y - z + 0.3, lambda x, y, z: x + y - z + 0.3),
    "product": (lambda x, y, z: x * y * z * 1.7, lambda x, y, z: x * y * z * 1.7),
    "square": (lambda x, y, z: x * x - y * 2.0, lambda x, y, z: x * x - 2 * y),
    "tanh": (lambda x, y, z: (x * y + z).tanh(), lambda x, y, z: np.tanh(x * y + z)),
    "root": (lambda x, y, z: (x * x + y * y + 0.5).sqrt(), lambda x, y, z: np.sqrt(x * x + y * y + 0.5)),
    "reciprocal": (lambda x, y, z: (x * x + 1.0).reciprocal() * y, lambda x, y, z: y / (x * x + 1)),
    "all": (
        lambda x, y, z: (x + y * z).tanh() * (z * z + 0.1).sqrt().reciprocal(),
        lambda x, y, z: np.tanh(x + y * z) / np.sqrt(z * z + 0.1),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@given(middle=MIDDLES, half=st.floats(1e-6, 0.5))
def test_a_function_lies_within_its_enclosure(name, middle, half):
    enclosed, plain = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        found = enclosed(*(signal(k, middle, half) for k in range(3)))
    assert_encloses(found, plain(*samples(middle, half).T))


@pytest.mark.parametrize("name", FUNCTIONS)
@given(middle=MIDDLES)
def test_at_a_point_it_is_the_value(name, middle):
    """To rounding: the radius is not far larger than it must be."""
    enclosed, plain = FUNCTIONS[name]
    found = enclosed(*(signal(k, middle, 0.0) for k in range(3)))
    assert found.centre[0] == pytest.approx(plain(*middle), rel=1e-9, abs=1e-11)
    assert found.spread[0] < 1e-8


@pytest.mark.parametrize("name", ["product", "tanh", "root", "reciprocal", "all"])
def test_what_is_lost_shrinks_with_the_square_of_the_box(name):
    """Half the box, a quarter of the radius; plain intervals would give half."""
    radii = []
    for half in (0.02, 0.01):
        found = FUNCTIONS[name][0](*(signal(k, (0.4, -0.3, 0.8), half) for k in range(3)))
        radii.append(found.radius[0])
    assert radii[0] / radii[1] == pytest.approx(4, rel=0.1)


def test_the_slope_is_the_derivative():
    x, y = signal(0, (0.5, 2.0, 0.0), 0.1), signal(1, (0.5, 2.0, 0.0), 0.1)
    assert (x * y).slope.ravel().tolist() == [2.0, 0.5, 0.0]
    assert x.tanh().slope[0, 0] == pytest.approx(1 - np.tanh(0.5) ** 2)
    assert y.sqrt().slope[1, 0] == pytest.approx(0.5 / np.sqrt(2))
    assert y.reciprocal().slope[1, 0] == pytest.approx(-0.25)


@given(st.lists(st.tuples(UNIT, UNIT), min_size=1, max_size=8), st.floats(0.01, 0.3))
def test_a_sum_of_products(pairs, half):
    x, y = signal(0, (0.5, -0.2, 0.0), half), signal(1, (0.5, -0.2, 0.0), half)
    a, b = (np.array(column) for column in zip(*pairs, strict=True))
    left, right = x.lifted() * a, y.lifted() * b + 0.1
    points = samples((0.5, -0.2, 0.0), half)
    expected = ((points[:, :1] * a) * (points[:, 1:2] * b + 0.1)).sum(axis=1)
    assert_encloses(left.dot(right), expected)


def test_where_nothing_is_known_the_bounds_are_infinite():
    x = signal(0, (0.05, 0.0, 0.0), 0.1)  # reaches below 0
    for unknown in (x.sqrt(), x.reciprocal(), x.sqrt() * x - x.reciprocal()):
        low, high = unknown.bounds
        assert (low[0], high[0]) == (-np.inf, np.inf)


def test_the_steepest_bend_of_tanh():
    x = np.linspace(-5, 5, 100_001)
    bend = np.abs(2 * np.tanh(x) * (1 - np.tanh(x) ** 2))
    assert bend.max() == pytest.approx(STEEPEST_BEND, abs=1e-8)
    assert bend.max() <= STEEPEST_BEND


def test_rounding_is_in_the_radius():
    """0.1 + 0.2 is not 0.3 in floating point, but encloses it; cancellation keeps the error of what was cancelled."""
    tenth = Enclosure(np.array([0.1]), np.zeros((3, 1)), np.zeros(1), 0.0)
    low, high = (tenth + 0.2).bounds
    assert low[0] < 0.3 < high[0]
    low, high = (tenth * 1e9 - tenth * 1e9).bounds
    assert high[0] - low[0] > 1e-6
