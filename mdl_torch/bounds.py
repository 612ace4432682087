"""What the controller does over whole boxes of signals: proved bounds of ‖v_meta‖, C_final and its slopes.

The way through the stages is that of ``layer.py``, with enclosures in place of numbers and the derivatives beside them.
Each channel's vector depends on one signal alone, so that it is enclosed once for each interval of an axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdl_torch.enclosure import ROUNDING, Array, Enclosure

if TYPE_CHECKING:
    from torch import Tensor

    from mdl_torch.layer import MemoryDecisionLayer

Mask = NDArray[np.bool_]

EDGE = 1e-9
"""Where C would lie so little outside of [0, 1], it counts as unclipped."""

WEIGHT_ERROR = 1e-13
"""By how much the weights of a layer may differ from those computed on another machine from the same basis."""

FIRST, THIRD, FOURTH = 0.6066, 1.3802, 3.0
"""Largest |u|, |u³ - 3u| and |u⁴ - 6u² + 3|, times exp(-u²/2): first, third and fourth derivative of a peak."""


class Part(NamedTuple):
    """A part of the cube: whether a box may reach into it, lies in it entirely, and the slopes there ``(2, 3, n)``."""

    may: Mask
    surely: Mask
    slopes: Array


@dataclass(frozen=True)
class Bounds:
    """Lower and upper bounds over n boxes.

    Attributes:
        norm: Of ‖v_meta‖ for each of b bases, ``(2, b, n)``.
        gated: Of C_final, ``(2, n)``.
        slopes: Of the slopes of C_final along M, R and -A, ``(2, 3, n)``.
        parts: The same by the parts of the cube, in the order of ``certificate.PARTS``. With several bases
            ``saturated`` is where C is cut off at 1 for any of them, ``zero`` where it is at 0 for any, at 1 for none.
    """

    norm: Array
    gated: Array
    slopes: Array
    parts: tuple[Part, ...]


class _Trust(NamedTuple):
    """Enclosures of ‖v_meta‖, C before clipping, α and g_a + g_b·α; slopes of C, of C_final, and where C is 1."""

    norm: Enclosure
    confidence: Enclosure
    alpha: Enclosure
    gate: Enclosure
    rises: list[Enclosure]
    unclipped: list[Enclosure]
    saturated: list[Enclosure]


class LayerBounds:
    """Bounds of a layer as its buffers are now, in real arithmetic: rounding is added to them, never to the layer.

    Boxes are given in (M, R, s), s being what the encoder sees of the risk: 1 - A, or A without risk inversion.

    Args:
        layer: The controller.

    Raises:
        ValueError: A buffer holds what no configuration can: it is not finite, or a gate coefficient is negative.

    Example:
        >>> from mdl_torch.layer import MemoryDecisionLayer
        >>> found = LayerBounds(MemoryDecisionLayer()).over(np.array([[0.7, 0.3, 0.5]]), half=0.0)
        >>> found.gated.round(6).ravel().tolist()
        [0.728299, 0.728299]
    """

    def __init__(self, layer: MemoryDecisionLayer) -> None:
        for name, buffer in layer.named_buffers():
            if not buffer.isfinite().all():
                raise ValueError(f"{name} must be finite to be certified, got {buffer.tolist()!r:.80}")
        if (layer.head.gate < 0).any():
            raise ValueError(f"head.gate must not be negative to be certified, got {layer.head.gate.tolist()}")
        self.peaks = layer.encoder.peaks
        self.inverted = layer.config.risk_inversion
        self.modulated = layer.fusion.modulated
        self.centres = _numpy(layer.encoder.centres)
        self.sigma = _numpy(layer.encoder.sigma)
        dim = len(self.centres)
        self.weights = _numpy(layer.projection.weights).reshape(-1, 3, dim, dim)
        self.bias = _numpy(layer.fusion.bias)
        self.gain = _numpy(layer.fusion.coefficients) if self.modulated else np.array([1.0, 0.0])
        self.ranges = _numpy(layer.head.norm_range).reshape(-1, 2)
        self.gate = _numpy(layer.head.gate) if layer.head.gated else np.array([1.0, 0.0])
        self.proved = np.tile([0.0, np.sqrt(dim)], (len(self.weights), 1))
        """Bounds of ‖v_meta‖ over the whole cube for each basis, once they are known."""

    def over(self, middles: Array, half: float) -> Bounds:
        """Bounds over boxes.

        Args:
            middles: (M, R, s) of their middles, ``(n, 3)``.
            half: Half the side of all of them; 0 bounds the values at points.
        """
        with np.errstate(all="ignore"):  # unknown is infinite or NaN, and ends as an infinite bound
            found = [
                self._clipped(basis, middles, half, self._trust(basis, middles, half))
                for basis in range(len(self.weights))
            ]
        if len(found) == 1:
            return found[0]
        norm = np.concatenate([one.norm for one in found], axis=1)
        gated, slopes = (np.mean([getattr(one, name) for one in found], axis=0) for name in ("gated", "slopes"))
        unclipped, saturated, zero = zip(*(one.parts for one in found), strict=True)
        may = [np.any([part.may for part in parts], axis=0) for parts in (saturated, zero)]
        surely = [np.any([part.surely for part in parts], axis=0) for parts in (saturated, zero)]
        inside = Part(
            np.all([part.may for part in unclipped], axis=0),
            np.all([part.surely for part in unclipped], axis=0),
            np.mean([part.slopes for part in unclipped], axis=0),
        )
        parts = (inside, Part(may[0], surely[0], slopes), Part(may[1] & ~surely[0], surely[1] & ~may[0], slopes))
        return Bounds(norm, gated, slopes, parts)

    def norms(self, middles: Array, half: float, basis: int) -> tuple[Array, Array]:
        """Bounds of ‖v_meta‖ alone, for one basis."""
        with np.errstate(all="ignore"):
            low, high = self._meta(basis, middles, half)[0].norm().bounds
        return np.maximum(low, self.proved[basis, 0]), np.minimum(high, self.proved[basis, 1])

    # ------------------------------------------------------------------------------------------------------- stages

    def _meta(
        self, basis: int, middles: Array, half: float
    ) -> tuple[Enclosure, tuple[Enclosure, Enclosure, Enclosure], NDArray[np.intp]]:
        """v_meta, its derivatives before tanh along M, R and s, and the interval of M that each box lies in."""
        places = [np.unique(middles[:, k], return_inverse=True) for k in range(3)]
        vectors = [self._derivatives(points, half) for points, _ in places]
        (p, p_prime), (q, q_prime), (u, u_prime) = (
            [one[places[k][1]] for one in vectors[k].weighted(k, self.weights[basis, k])] for k in range(3)
        )
        mean = np.full((1, len(self.centres)), self.gain[1] / len(self.centres))
        g, g_prime = (one[places[2][1]] for one in vectors[2].weighted(2, mean))
        g = g + self.gain[0]
        meta = (g * p + q + u + self.bias).tanh()
        return meta, (g * p_prime, q_prime, g_prime * p + u_prime), places[0][1]

    def _derivatives(self, points: Array, half: float) -> _Derivatives:
        return _Derivatives.of(points, half, self.centres, self.sigma, peaks=self.peaks)

    def _trust(self, basis: int, middles: Array, half: float) -> _Trust:
        """Confidence and consistency with their slopes, as ``head.py`` has them."""
        meta, inner, which = self._meta(basis, middles, half)
        direction, turn = self._direction(np.unique(middles[:, 0]), half)
        direction, turn = direction[which], turn[which]
        norm = meta.norm()
        inverse = norm.reciprocal()
        alpha = direction.dot(meta) * inverse
        low, high = self.ranges[basis]
        constant, coefficient = self.gate
        confidence = (norm - low) * (1 / (high - low))
        gate = alpha * coefficient + constant
        steepness = -(meta * meta) + 1.0  # of tanh
        rises, unclipped, saturated = [], [], []
        for k, prime in enumerate(inner):
            change = steepness * prime
            norm_slope = meta.dot(change) * inverse
            turned = direction.dot(change) + turn.dot(meta) if k == 0 else direction.dot(change)
            alpha_slope = (turned - alpha * norm_slope) * inverse
            rises.append(norm_slope * (1 / (high - low)))
            unclipped.append(rises[k] * gate + confidence * alpha_slope * coefficient)
            saturated.append(alpha_slope * coefficient)
        return _Trust(norm, confidence, alpha, gate, rises, unclipped, saturated)

    def _direction(self, points: Array, half: float) -> tuple[Enclosure, Enclosure]:
        """v_wm/‖v_wm‖ and its derivative along M, for each interval of M."""
        size = len(self.centres)
        if not self.peaks:  # the direction of M·1, for every M above 0
            flat = np.full((len(points), size), size**-0.5)
            still = np.zeros((3, len(points), size))
            return Enclosure(flat, still, ROUNDING * flat, half), Enclosure(0 * flat, still, 0 * flat, half)
        vector, prime = self._derivatives(points, half).weighted(0, np.eye(size))
        inverse = vector.norm().reciprocal().lifted()
        direction = vector * inverse
        return direction, (prime - direction * direction.dot(prime).lifted()) * inverse

    def _clipped(self, basis: int, middles: Array, half: float, trust: _Trust) -> Bounds:
        """What clipping C to [0, 1] makes of the enclosures."""
        (least, most), (low, high) = self.proved[basis], self.ranges[basis]
        norm_low, norm_high = np.maximum(trust.norm.bounds[0], least), np.minimum(trust.norm.bounds[1], most)
        edge = EDGE * (high - low)
        below, above = norm_low < low - edge, norm_high > high + edge
        surely_below, surely_above = norm_high < low - edge, norm_low > high + edge
        sign = np.array([1.0, 1.0, 1.0 if self.inverted else -1.0])[:, None]
        inside, cut = (_signed(_stacked(found), sign) for found in (trust.unclipped, trust.saturated))
        flat = np.zeros_like(inside)
        cut = cut if self.gate[1] else flat
        if not self.peaks and self.gate[1]:  # then v_wm is 0 at M = 0, where α counts as 0: C_final = g_a·C there
            at_zero = middles[:, 0] - half <= 0
            rises = _signed(_stacked(trust.rises), sign) * self.gate[0]
            rises = np.where(np.isnan(rises), 0.0, rises)  # unknown, times a factor of 0
            inside, cut = (_jumped(slopes, face, at_zero, trust) for slopes, face in ((inside, rises), (cut, flat)))
        parts = (
            Part(~(surely_below | surely_above), ~(below | above), inside),
            Part(above, surely_above, cut),
            Part(below, surely_below, flat),
        )
        cosine = np.clip(trust.alpha.bounds, -1, 1)
        factor = self.gate[0] + _product(np.full_like(cosine, self.gate[1]), cosine)
        slack = np.array([[-1.0], [1.0]]) * self.gate.sum()
        confidence = np.clip(trust.confidence.bounds, 0, 1)
        gated = _product(confidence, factor + ROUNDING * slack)
        free = np.stack((trust.confidence * trust.gate).bounds) + EDGE * slack
        exact = ~(below | above)
        gated[0] = np.where(exact, np.maximum(gated[0], free[0]), gated[0])
        gated[1] = np.where(exact, np.minimum(gated[1], free[1]), gated[1])
        if not self.peaks and self.gate[1]:
            face = self.gate[0] * confidence
            gated[0] = np.where(at_zero, np.minimum(gated[0], face[0]), gated[0])
            gated[1] = np.where(at_zero, np.maximum(gated[1], face[1]), gated[1])
        slopes = np.stack(
            (
                np.min([np.where(part.may, part.slopes[0], np.inf) for part in parts], axis=0),
                np.max([np.where(part.may, part.slopes[1], -np.inf) for part in parts], axis=0),
            )
        )
        return Bounds(np.stack((norm_low, norm_high))[:, None], gated, slopes, parts)


@dataclass(frozen=True)
class _Derivatives:
    """v(s) and its derivatives on intervals, ``(n, D)``.

    Attributes:
        half: Half the length of the intervals.
        at: v and its first three derivatives in the middle.
        ranges: Lower and upper bounds of v, and of its first derivative, over the interval.
        third: The largest size of the third derivative over it.
        fourth: That of the fourth.
    """

    half: float
    at: tuple[Array, Array, Array, Array]
    ranges: tuple[tuple[Array, Array], tuple[Array, Array]]
    third: Array
    fourth: Array

    @classmethod
    def of(cls, points: Array, half: float, centres: Array, sigma: Array, *, peaks: bool) -> _Derivatives:
        """Of the value encoding on intervals."""
        s = points[:, None]
        linear, one = s * np.ones_like(centres), np.ones((len(points), len(centres)))
        nothing = np.zeros_like(linear)
        if not peaks:
            ranges = ((linear - half, linear + half), (one, one))
            return cls(half, (linear, one, nothing, nothing), ranges, nothing, nothing)
        u = (s - centres) / sigma
        reach = half / sigma
        peak = np.exp(-u * u / 2)
        far, near = np.abs(u) + reach, np.maximum(np.abs(u) - reach, 0)
        least, most = np.exp(-far * far / 2), np.exp(-near * near / 2)
        fourth = np.minimum(FOURTH, (far**4 + 6 * far**2 + 3) * most) / sigma**4
        third = np.minimum(THIRD, (far**3 + 3 * far) * most) / sigma**3
        first = np.minimum(FIRST, far * most) / sigma
        at = (
            linear + peak,
            one - u * peak / sigma,
            (u * u - 1) * peak / sigma**2,
            (3 * u - u**3) * peak / sigma**3,
        )
        ranges = ((linear - half + least, linear + half + most), (one - first, one + first))
        return cls(half, at, ranges, np.minimum(third, np.abs(at[3]) + half * fourth), fourth)

    def weighted(self, axis: int, weights: Array) -> tuple[Enclosure, Enclosure]:
        """Enclosures of W v and its derivative for weights ``(E, D)``."""
        sizes = np.abs(weights) + WEIGHT_ERROR
        value, first, second, third = (a @ weights.T for a in self.at)
        over_third = np.minimum(self.third @ sizes.T, np.abs(third) + self.half * (self.fourth @ sizes.T))
        over_fourth = self.fourth @ sizes.T
        errors = [np.abs(a) @ (ROUNDING * np.abs(weights) + WEIGHT_ERROR).T for a in self.at[:3]]
        curves = (
            self._curve(axis, value, first, second, over_third, errors[0] + self.half * errors[1]),
            self._curve(axis, first, second, third, over_fourth, errors[1] + self.half * errors[2]),
        )
        own, prime = (
            curve.within(*_weighted_range(low, high, weights, sizes))
            for curve, (low, high) in zip(curves, self.ranges, strict=True)
        )
        return own, prime

    def _curve(self, axis: int, value: Array, slope: Array, bend: Array, rest: Array, error: Array) -> Enclosure:
        """A function with this value and these derivatives in the middle, the third at most ``rest`` over the interval.

        The second-order term is of one sign: its middle goes into the centre, which halves what it adds to the radius.
        """
        quarter = self.half**2 / 4
        along = np.zeros((3, *value.shape))
        along[axis] = slope
        radius = quarter * np.abs(bend) + self.half**3 / 6 * rest + error
        return Enclosure(value + quarter * bend, along, radius, self.half)


def _weighted_range(low: Array, high: Array, weights: Array, sizes: Array) -> tuple[Array, Array]:
    """Bounds of W v from those of v."""
    middle, reach = (low + high) / 2, (high - low) / 2
    error = (np.abs(middle) + reach) @ (ROUNDING * np.abs(weights) + WEIGHT_ERROR).T
    about, away = middle @ weights.T, reach @ sizes.T + error
    return about - away, about + away


def _jumped(slopes: Array, face: Array, at_zero: Mask, trust: _Trust) -> Array:
    """Slopes ``(2, 3, n)`` that allow for those on the face M = 0, and along M for the jump that begins there."""
    low, high = trust.alpha.bounds
    found = slopes.copy()
    found[0, 0] = np.where(at_zero & (low < 0), -np.inf, found[0, 0])
    found[1, 0] = np.where(at_zero & (high > 0), np.inf, found[1, 0])
    found[0, 1:] = np.where(at_zero, np.minimum(found[0, 1:], face[0, 1:]), found[0, 1:])
    found[1, 1:] = np.where(at_zero, np.maximum(found[1, 1:], face[1, 1:]), found[1, 1:])
    return found


def _stacked(found: list[Enclosure]) -> Array:
    return np.stack([np.stack(one.bounds) for one in found], axis=1)


def _signed(bounds: Array, sign: Array) -> Array:
    """Bounds ``(2, 3, n)`` times ±1."""
    both = bounds * sign
    return np.stack((both.min(axis=0), both.max(axis=0)))


def _product(a: Array, b: Array) -> Array:
    """Bounds of the product of two quantities with bounds ``(2, n)`` each."""
    every = np.stack([x * y for x in a for y in b])
    return np.stack((every.min(axis=0), every.max(axis=0)))


def _numpy(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().cpu().double().numpy())
