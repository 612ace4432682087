"""Arithmetic with proof: values over a whole box of signals, as a plane and the most that anything departs from it.

A first-order Taylor model: over a box, a function lies within ``radius`` of ``centre + slope · δ``, δ being the way
from the middle of the box. Every operation widens the radius by what it leaves out, and by more than it rounds. Halving
the boxes quarters what is lost, where plain intervals only halve it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ROUNDING = 2.0**-40
"""Of the size of its operands, added to the radius of each operation: over 8,000 times the unit roundoff of float64.

It covers sums of many terms, and functions of the standard library that are a few units in the last place off.
"""

UNDERFLOW = 1e-290
"""Added likewise: products so small that float64 loses digits of them."""

FAR = 0.5
"""Beyond such a spread of its argument a plane says little of tanh, and its bounds may say more."""

STEEPEST_BEND = 4 / 3**1.5
"""Largest |tanh''|."""


@dataclass(frozen=True)
class Enclosure:
    """A function over boxes of one size: within ``radius`` of ``centre + Σ_k slope[k]·δ_k`` wherever |δ_k| <= ``half``.

    Attributes:
        centre: ``(n, ...)``, one entry a box.
        slope: ``(3, n, ...)``, along each of the three signals.
        radius: ``(n, ...)``, not negative; infinite where nothing is known.
        half: Half the side of the boxes, 0 for points.

    Example:
        >>> x = Enclosure(np.array([0.5]), np.array([[1.0], [0.0], [0.0]]), np.zeros(1), half=0.1)
        >>> low, high = (x * x).bounds  # of x² for x in [0.4, 0.6]
        >>> round(low.item(), 3), round(high.item(), 3)
        (0.14, 0.36)
    """

    centre: Array
    slope: Array
    radius: Array
    half: float

    @functools.cached_property
    def spread(self) -> Array:
        """The most by which the function departs from ``centre``."""
        spread: Array = np.abs(self.slope).sum(axis=0) * self.half + self.radius
        return spread

    @functools.cached_property
    def size(self) -> Array:
        """The largest absolute value."""
        size: Array = np.abs(self.centre) + self.spread
        return size

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bound, infinite where nothing is known."""
        low, high = self.centre - self.spread, self.centre + self.spread
        return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)

    def __add__(self, other: Enclosure | Array | float) -> Enclosure:
        if not isinstance(other, Enclosure):
            radius = self.radius + ROUNDING * (self.size + np.abs(other))
            return Enclosure(self.centre + other, self.slope, radius, self.half)
        radius = self.radius + other.radius + ROUNDING * (self.size + other.size)
        return Enclosure(self.centre + other.centre, self.slope + other.slope, radius, self.half)

    def __neg__(self) -> Enclosure:
        return Enclosure(-self.centre, -self.slope, self.radius, self.half)

    def __sub__(self, other: Enclosure | Array | float) -> Enclosure:
        return self + -other

    def __mul__(self, other: Enclosure | Array | float) -> Enclosure:
        if not isinstance(other, Enclosure):
            radius = self.radius * np.abs(other) + ROUNDING * self.size * np.abs(other) + UNDERFLOW
            return Enclosure(self.centre * other, self.slope * other, radius, self.half)
        return Enclosure(
            self.centre * other.centre,
            self.slope * other.centre + other.slope * self.centre,
            _product_radius(self, other),
            self.half,
        )

    def dot(self, other: Enclosure) -> Enclosure:
        """The sum of products over the last axis."""
        return Enclosure(
            np.einsum("...d,...d->...", self.centre, other.centre),
            np.einsum("k...d,...d->k...", self.slope, other.centre)
            + np.einsum("k...d,...d->k...", other.slope, self.centre),
            _product_radius(self, other).sum(axis=-1),
            self.half,
        )

    def norm(self) -> Enclosure:
        """The Euclidean length over the last axis; unknown where it may be 0."""
        low, high = self.bounds
        least = np.maximum(np.maximum(low, -high), 0)
        most = np.maximum(np.abs(low), np.abs(high))
        squares = self.dot(self).within((least * least).sum(axis=-1), (most * most).sum(axis=-1))
        return squares.sqrt()

    def within(self, low: Array, high: Array) -> Enclosure:
        """This function, known to lie within these bounds too: where the plane leaves out more, a constant instead."""
        middle, radius = (low + high) / 2, (high - low) / 2
        radius = radius + ROUNDING * (np.abs(middle) + radius) + UNDERFLOW
        better = ~(self.radius <= radius)  # also where nothing is known
        slope = np.where(better, 0.0, self.slope)
        return Enclosure(np.where(better, middle, self.centre), slope, np.where(better, radius, self.radius), self.half)

    def tanh(self) -> Enclosure:
        """The hyperbolic tangent."""
        value = np.tanh(self.centre)
        steepness = 1 - value * value
        nearest, farthest = np.maximum(np.abs(value) - self.spread, 0), np.minimum(np.abs(value) + self.spread, 1)
        found = self._mapped(value, steepness, np.minimum(STEEPEST_BEND, 2 * farthest * (1 - nearest * nearest)))
        if not (self.spread > FAR).any():
            return found
        low, high = self.bounds
        return found.within(np.tanh(low), np.tanh(high))

    def sqrt(self) -> Enclosure:
        """The square root; unknown where the argument may be 0 or less."""
        lowest = np.where(self.bounds[0] > 0, self.bounds[0], np.nan)
        value = np.sqrt(np.where(self.centre > 0, self.centre, np.nan))
        return self._mapped(value, 0.5 / value, 0.25 * lowest**-1.5)

    def reciprocal(self) -> Enclosure:
        """1/x of a positive x; unknown where the argument may be 0 or less."""
        lowest = np.where(self.bounds[0] > 0, self.bounds[0], np.nan)
        value = 1 / np.where(self.centre > 0, self.centre, np.nan)
        return self._mapped(value, -value * value, 2 * lowest**-3)

    def _mapped(self, value: Array, steepness: Array, bend: Array) -> Enclosure:
        """A function with this value and derivative in the middle, and a second derivative of at most ``bend``."""
        rounding = ROUNDING * (np.abs(value) + np.abs(steepness) * self.size) + UNDERFLOW
        radius = np.abs(steepness) * self.radius + 0.5 * bend * self.spread * self.spread + rounding
        return Enclosure(value, steepness * self.slope, radius, self.half)

    def __getitem__(self, boxes: NDArray[np.intp]) -> Enclosure:
        return Enclosure(self.centre[boxes], self.slope[:, boxes], self.radius[boxes], self.half)

    def lifted(self) -> Enclosure:
        """With a last axis of length 1, to scale vectors with."""
        return Enclosure(self.centre[..., None], self.slope[..., None], self.radius[..., None], self.half)


def _product_radius(a: Enclosure, b: Enclosure) -> Array:
    exact = np.abs(a.centre) * b.radius + np.abs(b.centre) * a.radius + a.spread * b.spread
    radius: Array = exact + ROUNDING * a.size * b.size + UNDERFLOW
    return radius
