"""Proof of how a controller behaves on the whole cube of signals, by branch and bound.

The cube is cut into boxes. ``bounds.py`` says what a layer does on each; a box that leaves open what is asked is cut in
eight, until nothing is open or the boxes that were allowed are spent. Nothing is sampled but counterexamples and the
attained ends of the bounds, and those are evaluated, not estimated.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mdl_torch import __version__
from mdl_torch.bounds import EDGE, Bounds, LayerBounds, Mask, Part
from mdl_torch.certificate import (
    PARTS,
    Actions,
    Certificate,
    Counterexample,
    Cover,
    Interval,
    PartSlopes,
    Point,
    Reach,
    Slopes,
    Verdict,
)
from mdl_torch.config import CHANNELS
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from tqdm import tqdm

    from mdl_torch.enclosure import Array
    from mdl_torch.layer import MemoryDecisionLayer

FIRST_LEVEL = 3
"""The search begins with boxes of side 2^-3."""

RESOLUTION = 7
"""Shares of the cube are counted with boxes down to sides of 2^-7, unless told otherwise."""

DEEPEST = 16
"""What is to be proved is pursued down to sides of 2^-16."""

MOST_BOXES = 4_000_000
"""Boxes that a search looks at before it leaves open what is open."""

AT_ONCE = 2_048
"""Boxes that are bounded together, so that they stay in the cache."""

TIGHTNESS, FINEST_GAP = 0.05, 1e-3
"""The ends of the bounds of a smallest slope come within 5% of it, but need not come closer than this."""

CANDIDATES = 2
"""Boxes in whose middle and corners a smallest slope is looked for, of each lot that is bounded together."""

SUSPECTS = 64
"""Boxes of each level through which counterexamples are looked for."""

NORM_GAP, NORM_LEVELS, NORM_BOXES = EDGE / 4, 30, 20_000
"""How close the ends of the bounds of n_min and n_max come, unless so many halvings or boxes are not enough."""

LINES, LINE_POINTS = 33, 257
"""Counterexamples are looked for along 33² lines through the cube for each signal, and through the worst boxes."""

CLOSER_POINTS = 65
"""Further points of a line, within the box that it was drawn for."""

REAL_FALL = 5e-9
"""A smaller fall of C_final is no counterexample: it might be rounding, or within ``EDGE`` of a part's border."""

MOST_COVER = 2**26
"""Bytes of an inflated cover: more than any search writes."""

SAME = 1e-9
"""Numbers of a certificate that differ by less are the same on another machine."""

_CORNERS = np.stack(np.meshgrid([-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0], indexing="ij"), axis=-1).reshape(8, 3)


def certify(
    layer: MemoryDecisionLayer, *, boxes: int = MOST_BOXES, resolution: int = RESOLUTION, progress: bool = False
) -> Certificate:
    """Prove what can be proved of a layer as it is configured and calibrated; see ``Certificate``.

    Args:
        layer: The controller.
        boxes: The most boxes to look at; some tens of thousands a second. What they do not settle is called open.
        resolution: Shares of the cube are counted with boxes down to sides of 2^-resolution. One less is some four
            times faster, and leaves twice as much of the cube between the bounds of a share; proofs do not suffer.
        progress: Whether to show a progress bar on standard error.

    Raises:
        ValueError: ``boxes`` is less than the 512 that the search begins with, or ``resolution`` not 3 to 16.

    Example:
        >>> from mdl_torch.layer import MemoryDecisionLayer
        >>> certificate = certify(MemoryDecisionLayer.from_preset("certified"), resolution=4)
        >>> certificate.trusted, certificate.slopes["risk"].verdict
        (True, 'strict')
    """
    if boxes < 8**FIRST_LEVEL:
        raise ValueError(f"boxes must be at least {8**FIRST_LEVEL}, got {boxes}")
    if not FIRST_LEVEL <= resolution <= DEEPEST:
        raise ValueError(f"resolution must be from {FIRST_LEVEL} to {DEEPEST}, got {resolution}")
    proof = _Proof(layer)
    cover = proof.search(boxes, resolution, progress=progress)
    return proof.certificate(cover)


def check(certificate: Certificate, layer: MemoryDecisionLayer) -> list[str]:
    """Check a certificate against a layer: bound the layer on the boxes of its cover, and run its examples again.

    Returns:
        What does not hold; empty if all of it does.

    Raises:
        ValueError: The layer's buffers hold what no configuration can.

    Example:
        >>> from mdl_torch.layer import MemoryDecisionLayer
        >>> check(certify(MemoryDecisionLayer(), boxes=1_000), MemoryDecisionLayer())
        []
    """
    held = layer.digest()
    if held != certificate.subject:
        return [f"the certificate is of layer {certificate.subject}, this is {held}"]
    proof = _Proof(layer)
    try:
        again = proof.certificate(proof.retrace(certificate))
    except ValueError as error:
        return [str(error)]
    if any(reach.share is None for reach in certificate.reachable.values()):  # renewed for other thresholds
        renewed = again.with_thresholds(held, layer.held_config(), layer.calibration_label)
        if renewed is None:
            return ["the certificate does not count shares, and C_final is not proved to be monotone"]
        again = renewed
    return list(_differences(certificate.to_dict(), again.to_dict()))


# ------------------------------------------------------------------------------------------------------------ cover


def _leaves(cover: Cover) -> list[tuple[int, NDArray[np.int64]]]:
    """The boxes of a cover by level: their places on the grid of that level, ``(n, 3)``.

    Raises:
        ValueError: It is no cover.
    """
    try:
        inflate = zlib.decompressobj()
        packed = inflate.decompress(base64.b64decode(cover.splits, validate=True), MOST_COVER)
        if not inflate.eof or inflate.unused_data:
            raise ValueError("it is cut short, too large, or goes on after its end")
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the cover cannot be read: {error}") from error
    bits = np.unpackbits(np.frombuffer(packed, np.uint8)).astype(bool)
    found, boxes, level, read = [], _first_boxes(), FIRST_LEVEL, 0
    while len(boxes):
        split = bits[read : read + len(boxes)]
        if len(split) < len(boxes) or level > DEEPEST:
            raise ValueError("the cover is cut short or too deep")
        read += len(boxes)
        found.append((level, boxes[~split]))
        boxes, level = _halved(boxes[split]), level + 1
    if len(bits) - read >= 8 or bits[read:].any():
        raise ValueError("the cover goes on after its last box")
    return found


def _packed(splits: list[Mask]) -> str:
    return base64.b64encode(zlib.compress(np.packbits(np.concatenate(splits)).tobytes(), 9)).decode()


def _first_boxes() -> NDArray[np.int64]:
    return np.stack(np.unravel_index(np.arange(8**FIRST_LEVEL), (2**FIRST_LEVEL,) * 3), axis=-1)


def _halved(boxes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The eight halves of each box, in its place."""
    return (2 * boxes[:, None] + (_CORNERS > 0)).reshape(-1, 3)


def _middles(boxes: NDArray[np.int64], level: int) -> Array:
    return np.asarray((boxes + 0.5) / 2.0**level, np.float64)


# ------------------------------------------------------------------------------------------------------------ proof


@dataclass
class _Tally:
    """What the boxes of a cover say together."""

    lowest: Array = field(default_factory=lambda: np.full((4, 3), np.inf))
    """Of all slopes, then of each part's, along M, R and -A."""
    highest: Array = field(default_factory=lambda: np.full((4, 3), -np.inf))
    holds: Array = field(default_factory=lambda: np.zeros(3))
    fails: Array = field(default_factory=lambda: np.zeros(3))
    unsafe: Mask = field(default_factory=lambda: np.zeros(3, bool))
    """Whether the action may move the wrong way in some box."""
    parts: Array = field(default_factory=lambda: np.zeros((2, 3)))
    """Share of the cube that surely, and that possibly, lies in each part."""
    actions: Array = field(default_factory=lambda: np.zeros((2, 4)))
    gated: Array = field(default_factory=lambda: np.array([np.inf, -np.inf]))

    def add(self, found: Bounds, thresholds: Array, volume: float) -> None:
        """Count boxes of one size."""
        for row, (may, slopes) in enumerate(_rows(found)):
            self.lowest[row] = np.minimum(
                self.lowest[row], np.where(may, slopes[0], np.inf).min(axis=1, initial=np.inf)
            )
            self.highest[row] = np.maximum(
                self.highest[row], np.where(may, slopes[1], -np.inf).max(axis=1, initial=-np.inf)
            )
        self.holds += (found.slopes[0] >= 0).sum(axis=1) * volume
        self.fails += (found.slopes[1] < 0).sum(axis=1) * volume
        self.unsafe |= (_straddles(found, thresholds) & (found.slopes[0] < 0)).any(axis=1)
        self.parts += [
            [part.surely.sum() * volume for part in found.parts],
            [p.may.sum() * volume for p in found.parts],
        ]
        missed = [(found.gated[end] < thresholds[:, None]).sum(axis=0) for end in (1, 0)]  # the best and worst action
        every = np.arange(4)[:, None]
        self.actions[0] += ((missed[0] == every) & (missed[1] == every)).sum(axis=1) * volume
        self.actions[1] += ((missed[0] <= every) & (missed[1] >= every)).sum(axis=1) * volume
        self.gated[0] = min(self.gated[0], found.gated[0].min(initial=np.inf))
        self.gated[1] = max(self.gated[1], found.gated[1].max(initial=-np.inf))


def _rows(found: Bounds) -> list[tuple[Mask, Array]]:
    """Where slopes apply, and they themselves: all of them, and those of each part."""
    return [(np.ones(found.gated.shape[1], bool), found.slopes), *((part.may, part.slopes) for part in found.parts)]


def _straddles(found: Bounds, thresholds: Array) -> Mask:
    """Boxes on which the action may change."""
    straddles: Mask = ((found.gated[0] < thresholds[:, None]) & (found.gated[1] >= thresholds[:, None])).any(axis=0)
    return straddles


class _Proof:
    """One layer, and what is known of it so far."""

    def __init__(self, layer: MemoryDecisionLayer) -> None:
        self.layer = layer
        self.bounds = LayerBounds(layer)
        self.thresholds = layer.policy.thresholds.detach().cpu().double().numpy()
        self.tally = _Tally()
        self.evaluated = 0
        self.attained = np.full((4, 3), np.inf)
        """The smallest slopes that were found at points, in the rows of ``_Tally.lowest``."""
        self.at: dict[tuple[int, int], Array] = {}
        self.suspects: list[list[tuple[float, Array]]] = [[], [], []]
        self.norms = [self._extremes(basis) for basis in range(len(self.bounds.weights))]
        self.bounds.proved = np.array([[low[0], high[1]] for low, high in self.norms])
        self.falls: list[Counterexample | None] = [None] * 3
        self.moves: list[Counterexample | None] = [None] * 3

    # ------------------------------------------------------------------------------------------------------ search

    def search(self, most: int, resolution: int, *, progress: bool) -> Cover:
        """Cut the cube until nothing is open, or ``most`` boxes were looked at."""
        from tqdm import tqdm

        self._attain(_grid(21, 3))
        for k in range(3):
            self._look_along(k, np.insert(_grid(LINES, 2), k, 0.5, axis=1), 1.0)
        boxes, level, splits = _first_boxes(), FIRST_LEVEL, []
        shape = "{desc}: {percentage:3.0f}%|{bar}|{postfix} [{elapsed}<{remaining}]"
        with tqdm(total=1.0, disable=not progress, desc="cube settled", bar_format=shape) as bar:
            while len(boxes):
                allowed = max(0, most - self.evaluated - len(boxes)) // 8 if level < DEEPEST else 0
                split = self._level(boxes, level, allowed, resolution, bar)
                splits.append(split)
                boxes, level = _halved(boxes[split]), level + 1
                for k in range(3):
                    if suspects := [point for _, point in self.suspects[k]]:
                        self._look_along(k, np.array(suspects), 2.0 ** -(level - 1))
                    self.suspects[k] = []
        leaves = sum(len(found) - int(found.sum()) for found in splits)
        return Cover(leaves, level - 1, _packed(splits))

    def _level(self, boxes: NDArray[np.int64], level: int, allowed: int, resolution: int, bar: tqdm[Any]) -> Mask:
        """Bound the boxes of one level, count those that are settled, and say which are to be split."""
        splits, side = [], 2.0**-level
        for start in range(0, len(boxes), AT_ONCE):
            middles = _middles(boxes[start : start + AT_ONCE], level)
            found = self.bounds.over(middles, side / 2)
            split = self._is_open(found, counting=level < resolution)
            if split.sum() > allowed:
                split[np.flatnonzero(split)[allowed:]] = False
            allowed -= int(split.sum())
            self._look_into(found, middles, split, side / 2)
            self.tally.add(_some(found, ~split), self.thresholds, side**3)
            self.evaluated += len(middles)
            bar.set_postfix_str(f"{self.evaluated:,} boxes", refresh=False)
            bar.update(side**3 * int((~split).sum()))
            splits.append(split)
        return np.concatenate(splits)

    def _is_open(self, found: Bounds, *, counting: bool) -> Mask:
        """Which boxes leave open what smaller ones may settle; while counting, also to which share they belong."""
        changes = _straddles(found, self.thresholds)
        low, high = found.slopes
        undecided = (low < 0) & (high >= 0)
        is_open = np.zeros(len(changes), bool)
        if counting:
            is_open |= undecided.any(axis=0) | changes | (sum(part.may.astype(int) for part in found.parts) > 1)
        for row, (may, slopes) in enumerate(_rows(found)):
            best = self.attained[row]
            known = np.isfinite(best)
            finite = np.where(known, best, 0.0)
            wanted = np.where(known, finite - np.maximum(TIGHTNESS * np.abs(finite), FINEST_GAP), -np.inf)
            is_open |= (may & (slopes[0] < wanted[:, None])).any(axis=0)
        for k in range(3):
            if self.falls[k] is None:
                is_open |= low[k] < 0
            if self.moves[k] is None:
                is_open |= changes & (low[k] < 0)
        return is_open

    def _look_into(self, found: Bounds, middles: Array, split: Mask, half: float) -> None:
        """Look for small slopes in the boxes that allow the smallest, and note the worst for counterexamples."""
        chosen: set[int] = set()
        for row, (may, slopes) in enumerate(_rows(found)):
            for k in range(3):
                low = np.where(may & split, slopes[0, k], np.inf)
                chosen |= {int(place) for place in np.argsort(low)[:CANDIDATES] if low[place] < self.attained[row, k]}
        if chosen:
            picked = middles[sorted(chosen)]
            self._attain(np.concatenate((picked, (picked[:, None] + half * _CORNERS).reshape(-1, 3))))
        changes = _straddles(found, self.thresholds)
        for k in range(3):
            low = np.where(found.slopes[0, k] >= 0, np.inf, found.slopes[0, k])
            if self.falls[k] is not None:  # then it is a move of the action that is missing, if anything
                low = np.where(changes, low, np.inf)
            worst = [place for place in np.argsort(low)[:CANDIDATES] if low[place] < np.inf]
            noted = self.suspects[k] + [(float(low[place]), self._signals(middles[place])) for place in worst]
            self.suspects[k] = sorted(noted, key=lambda suspect: suspect[0])[:SUSPECTS]

    def _signals(self, point: Array) -> Array:
        """(M, R, A) of (M, R, s), and the other way round."""
        return np.array([point[0], point[1], 1 - point[2]]) if self.bounds.inverted else point

    def _attain(self, points: Array) -> None:
        """Take the slopes at points into account."""
        found = self.bounds.over(points, 0.0)
        surely = [np.ones(len(points), bool), *(part.surely for part in found.parts)]
        for row, ((_, slopes), sure) in enumerate(zip(_rows(found), surely, strict=True)):
            for k in range(3):
                values = np.where(sure, slopes[1, k], np.inf)
                place = int(values.argmin())
                if values[place] < self.attained[row, k]:
                    self.attained[row, k] = values[place]
                    self.at[row, k] = points[place]

    def retrace(self, certificate: Certificate) -> Cover:
        """Go through the boxes and examples of a certificate, without a search.

        Raises:
            ValueError: Its cover cannot be read, or an example of it is none.
        """
        levels = _leaves(certificate.cover)
        for level, boxes in levels:
            for start in range(0, len(boxes), AT_ONCE):
                middles = _middles(boxes[start : start + AT_ONCE], level)
                self.tally.add(self.bounds.over(middles, 0.5 * 2.0**-level), self.thresholds, 8.0**-level)
        leaves = sum(len(boxes) for _, boxes in levels)
        self.evaluated = leaves + (leaves - 8**FIRST_LEVEL) // 7  # each box that is split leaves seven more
        for k, channel in enumerate(CHANNELS):
            slopes, actions = certificate.slopes[channel], certificate.actions[channel]
            parts = (slopes.everywhere, slopes.unclipped, slopes.saturated, slopes.zero)
            if points := [part.at for part in parts if part and part.at]:
                _expect_in_cube(f"slopes.{channel}", *points)
                self._attain(np.array([self._signals(np.array(point)) for point in points]))
            self.falls[k] = self._again(f"slopes.{channel}", k, slopes.counterexample)
            self.moves[k] = self._again(f"actions.{channel}", k, actions.counterexample)
            if (move := self.moves[k]) is not None and _rank(move.actions[0]) >= _rank(move.actions[1]):
                raise ValueError(f"actions.{channel}: its counterexample does not move the action away from Active")
        return Cover(leaves, levels[-1][0], certificate.cover.splits)

    def _again(self, name: str, k: int, example: Counterexample | None) -> Counterexample | None:
        """A counterexample, decided on anew.

        Raises:
            ValueError: It is none.
        """
        if example is None:
            return None
        _expect_in_cube(name, example.weaker, example.stronger)
        way = np.array(example.stronger) - np.array(example.weaker)
        if np.flatnonzero(way).tolist() != [k] or (way[k] > 0) == (k == 2):
            raise ValueError(f"{name}: the points of its counterexample must differ in one signal, towards trust")
        again = self._example(np.array(example.weaker), np.array(example.stronger))
        if not again.fall > REAL_FALL:
            raise ValueError(f"{name}: C_final does not fall from one point of its counterexample to the other")
        return again

    def _extremes(self, basis: int) -> tuple[Interval, Interval]:
        """The smallest and the largest ‖v_meta‖, each between a proved and an attained bound."""
        (least, lowest), (most, highest) = (self._extreme(basis, sign) for sign in (1.0, -1.0))
        return (least, lowest), (-highest, -most)

    def _extreme(self, basis: int, sign: float) -> Interval:
        """The smallest ±‖v_meta‖ between a proved and an attained bound, by the same search."""

        def lowest(middles: Array, half: float) -> tuple[Array, Array]:
            low, high = self.bounds.norms(middles, half, basis)
            return (low, high) if sign > 0 else (-high, -low)

        boxes, settled, attained = _first_boxes(), np.inf, np.inf
        for level in range(FIRST_LEVEL, NORM_LEVELS):
            middles, half = _middles(boxes, level), 0.5 * 2.0**-level
            low, _ = lowest(middles, half)
            best = middles[np.argsort(low)[:SUSPECTS]]
            points = np.concatenate((best, (best[:, None] + half * _CORNERS).reshape(-1, 3)))
            attained = min(attained, float(lowest(points, 0.0)[1].min()))
            is_open = low < attained - NORM_GAP
            settled = min(settled, float(low[~is_open].min(initial=np.inf)))
            if not is_open.any() or is_open.sum() > NORM_BOXES:
                return min(settled, float(low.min())), attained
            boxes = _halved(boxes[is_open])
        return min(settled, float(lowest(_middles(boxes, NORM_LEVELS), 0.5 * 2.0**-NORM_LEVELS)[0].min())), attained

    # --------------------------------------------------------------------------------------------- counterexamples

    def _look_along(self, k: int, points: Array, side: float) -> None:
        """Look for the largest fall of C_final along signal k on lines, and the largest with a move of the action.

        Args:
            k: 0 for M, 1 for R, 2 for -A.
            points: (M, R, A) that lines are drawn through, from one end of the cube to the other, ``(n, 3)``.
            side: About each point the line is looked at more closely, over so much of its length.
        """
        about = side * np.linspace(-0.5, 0.5, CLOSER_POINTS)
        for block in np.array_split(points, max(1, len(points) // 256)):
            steps = np.broadcast_to(np.linspace(0.0, 1.0, LINE_POINTS), (len(block), LINE_POINTS))
            steps = np.sort(np.clip(np.concatenate((steps, block[:, k : k + 1] + about), axis=1), 0, 1), axis=1)
            lines = np.repeat(block[:, None], steps.shape[1], axis=1)
            lines[..., k] = steps[:, ::-1] if k == 2 else steps  # towards trust
            gated, action = self._decide(lines)
            falls = np.maximum.accumulate(gated, axis=1) - gated
            moves = np.where(action > np.minimum.accumulate(action, axis=1), falls, -np.inf)
            for found, known in ((falls, self.falls), (moves, self.moves)):
                line, end = np.unravel_index(int(found.argmax()), found.shape)
                best = known[k]
                if found[line, end] > (best.fall if best else REAL_FALL):
                    start = int(gated[line, : end + 1].argmax())
                    known[k] = self._example(lines[line, start], lines[line, end])

    def _example(self, weaker: Array, stronger: Array) -> Counterexample:
        gated, action = self._decide(np.stack((weaker, stronger)))
        first, second = (Action(a).label for a in action.tolist())
        values = float(gated[0]), float(gated[1])
        return Counterexample(_point(weaker), _point(stronger), values, (first, second), values[0] - values[1])

    def _decide(self, points: Array) -> tuple[Array, NDArray[np.int64]]:
        """C_final and action of the layer itself at points (M, R, A), ``(*, 3)``."""
        signals = torch.from_numpy(np.ascontiguousarray(points)).to(self.layer.policy.thresholds.device)
        decision = self.layer(*signals.unbind(-1))
        return decision.gated_confidence.cpu().numpy(), decision.action.cpu().numpy().astype(np.int64)

    # -------------------------------------------------------------------------------------------------- certificate

    def certificate(self, cover: Cover) -> Certificate:
        """What the boxes and examples prove."""
        layer, tally = self.layer, self.tally
        config = layer.held_config()
        slopes = {channel: self._slopes(k) for k, channel in enumerate(CHANNELS)}
        smallest, largest = self._gated(monotone=all(s.verdict in ("strict", "weak") for s in slopes.values()))
        return Certificate(
            subject=layer.digest(),
            function=layer.digest(thresholds=False),
            preset=layer.preset,
            basis=layer.basis,
            calibration=layer.calibration_label,
            config=config.to_dict(),
            norm_range=tuple((float(low), float(high)) for low, high in self.bounds.ranges),
            smallest_norm=tuple(low for low, _ in self.norms),
            largest_norm=tuple(high for _, high in self.norms),
            smallest_gated=smallest,
            largest_gated=largest,
            parts={part: _interval(tally.parts[:, row]) for row, part in enumerate(PARTS)},
            slopes=slopes,
            actions={channel: self._actions(k) for k, channel in enumerate(CHANNELS)},
            reachable=self._reachable(),
            cover=cover,
            evaluated=self.evaluated,
            version=__version__,
        )

    def _slopes(self, k: int) -> Slopes:
        lowest = self.tally.lowest[0, k]
        verdict: Verdict = "open"
        if lowest >= 0:
            verdict = "strict" if lowest > 0 else "weak"
        elif self.falls[k] is not None:
            verdict = "fails"
        unclipped, saturated, zero = (
            self._part(row, k) if self.tally.parts[1, row - 1] > 0 else None for row in range(1, 1 + len(PARTS))
        )
        return Slopes(
            verdict=verdict,
            holds=(_share(self.tally.holds[k]), _share(1 - self.tally.fails[k])),
            everywhere=self._part(0, k),
            unclipped=unclipped,
            saturated=saturated,
            zero=zero,
            counterexample=self.falls[k] if verdict == "fails" else None,
        )

    def _part(self, row: int, k: int) -> PartSlopes:
        low, high = self.tally.lowest[row, k], self.tally.highest[row, k]
        point = self.at.get((row, k))
        attained = self.attained[row, k] if point is not None else high
        at = None if point is None else _point(self._signals(point))
        return PartSlopes(_finite((low, max(low, attained))), at, _finite((high, high))[1])

    def _actions(self, k: int) -> Actions:
        if not self.tally.unsafe[k]:
            return Actions("holds", None)
        return Actions("fails" if self.moves[k] is not None else "open", self.moves[k])

    def _gated(self, *, monotone: bool) -> tuple[Interval, Interval]:
        """Smallest and largest C_final, each between two bounds."""
        ends = np.array([self._signals(np.array(point)) for point in ((0.0, 0.0, 1.0), (1.0, 1.0, 0.0))])
        if monotone:
            low, high = self.bounds.over(ends, 0.0).gated
            return (float(low[0]), float(high[0])), (float(low[1]), float(high[1]))
        gated, _ = self._decide(_grid(41, 3))
        return (float(self.tally.gated[0]), float(gated.min())), (float(gated.max()), float(self.tally.gated[1]))

    def _reachable(self) -> dict[str, Reach]:
        points = _grid(41, 3)
        _, taken = self._decide(points)
        found = {}
        for action in Action:
            share = _interval(self.tally.actions[:, action])
            where = points[taken == action]
            at = _point(where[len(where) // 2]) if len(where) else None
            never = share[1] == 0
            found[action.label] = Reach("holds" if at else "fails" if never else "open", at, share)
        return found


def _grid(points: int, dimensions: int) -> Array:
    """A grid of the cube, corners included, ``(points^dimensions, dimensions)``."""
    axis = np.linspace(0.0, 1.0, points)
    return np.stack(np.meshgrid(*[axis] * dimensions, indexing="ij"), axis=-1).reshape(-1, dimensions)


def _some(found: Bounds, chosen: Mask) -> Bounds:
    parts = tuple(Part(part.may[chosen], part.surely[chosen], part.slopes[..., chosen]) for part in found.parts)
    return Bounds(found.norm[..., chosen], found.gated[:, chosen], found.slopes[..., chosen], parts)


def _expect_in_cube(name: str, *points: Point) -> None:
    if not all(0 <= value <= 1 for point in points for value in point):
        raise ValueError(f"{name}: every point must lie in the cube, got {points}")


def _rank(label: str) -> int:
    return [action.label for action in Action].index(label)


def _point(values: Array) -> Point:
    m, r, a = (float(value) for value in values)
    return m, r, a


def _share(value: float) -> float:
    return float(min(1.0, max(0.0, value)))


def _interval(shares: Array) -> Interval:
    return _share(shares[0]), _share(shares[1])


def _finite(interval: tuple[float, float]) -> Interval:
    """Bounds that JSON can hold: nothing is known beyond the largest float."""
    largest = float(np.finfo(np.float64).max)
    low, high = (float(np.clip(end, -largest, largest)) for end in interval)
    return low, high


def _differences(stored: Any, again: Any, path: str = "") -> Iterator[str]:
    """Where two certificates differ beyond rounding."""
    if isinstance(stored, dict) and isinstance(again, dict) and stored.keys() == again.keys():
        for key in stored:
            yield from _differences(stored[key], again[key], f"{path}.{key}" if path else key)
    elif isinstance(stored, list) and isinstance(again, list) and len(stored) == len(again):
        for place, pair in enumerate(zip(stored, again, strict=True)):
            yield from _differences(*pair, f"{path}[{place}]")
    elif isinstance(stored, float) and isinstance(again, float):
        if not abs(stored - again) <= SAME * max(1.0, abs(again)):
            yield f"{path} is {stored!r}, its cover gives {again!r}"
    elif stored != again and path != "version":
        yield f"{path} is {stored!r:.60}, its cover gives {again!r:.60}"
