"""A certificate: what is proved of a controller, as plain data that is tied to it by a digest."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from mdl_torch.config import CHANNELS, MDLConfig
from mdl_torch.data import read_text
from mdl_torch.outputs import Action
from mdl_torch.plain import read

if TYPE_CHECKING:
    import os

FORMAT = 1
"""Version of the certificate's layout."""

Verdict = Literal["strict", "weak", "fails", "open"]
"""Of C_final along a signal: rises everywhere; falls nowhere; falls somewhere, with a counterexample; not decided."""

Holds = Literal["holds", "fails", "open"]
"""Of a statement: proved, refuted by an example, or not decided within the boxes that were allowed."""

Interval = tuple[float, float]
"""A proved lower and upper bound."""

Point = tuple[float, float, float]
"""(M, R, A)."""

PARTS = ("unclipped", "saturated", "zero")
"""Of the cube: where C is the scaled norm, where it is cut off at 1, and where at 0."""


@dataclass(frozen=True)
class Counterexample:
    """Two points that differ in one signal, in the wrong order. Anyone can put them into the layer.

    Attributes:
        weaker: The one that deserves less trust: lower M, lower R or higher A.
        stronger: The other.
        gated_confidence: C_final at both, in float64.
        actions: Labels of the actions at both.
        fall: By how much C_final falls from the weaker to the stronger.
    """

    weaker: Point
    stronger: Point
    gated_confidence: tuple[float, float]
    actions: tuple[str, str]
    fall: float


@dataclass(frozen=True)
class PartSlopes:
    """The slopes of C_final along one signal on one part of the cube.

    Attributes:
        smallest: The smallest slope lies between these.
        at: Where the upper of them is attained, to rounding; None if no point was found that surely lies in this part,
            and the upper bound is then that of all slopes.
        largest: No slope is larger.
    """

    smallest: Interval
    at: Point | None
    largest: float


@dataclass(frozen=True)
class Slopes:
    """C_final along one signal, M, R or -A.

    Attributes:
        verdict: What is proved of the whole cube.
        holds: Share of the cube on which the slope is not negative, between these.
        everywhere: The slopes on the whole cube.
        unclipped: Where C is the scaled norm; None if there is no such part.
        saturated: Where C is cut off at 1.
        zero: Where C is cut off at 0; C_final is flat there, so that nothing strict can hold.
        counterexample: The largest fall that was found.
    """

    verdict: Verdict
    holds: Interval
    everywhere: PartSlopes
    unclipped: PartSlopes | None
    saturated: PartSlopes | None
    zero: PartSlopes | None
    counterexample: Counterexample | None


@dataclass(frozen=True)
class Actions:
    """The action along one signal: never towards Active as A rises, never away from it as M or R rises.

    Attributes:
        verdict: Whether that holds on the whole cube.
        counterexample: Two points that refute it.
    """

    verdict: Holds
    counterexample: Counterexample | None


@dataclass(frozen=True)
class Reach:
    """Whether an action is ever taken.

    Attributes:
        verdict: ``holds`` if it is: at a point, decided on in float64.
        at: A point where it is.
        share: Of the cube, between these; None where the thresholds were changed after the proof.
    """

    verdict: Holds
    at: Point | None
    share: Interval | None


@dataclass(frozen=True)
class Cover:
    """The boxes that the proof goes through, so that it can be checked without the search.

    Attributes:
        leaves: Their number.
        deepest: The smallest have sides of 2^-deepest.
        splits: Which boxes are split in eight, level by level from those of side 1/8 on, as bits in Base64.
    """

    leaves: int
    deepest: int
    splits: str


@dataclass(frozen=True)
class Certificate:
    """What ``certify`` proved of a layer, of its equations in real arithmetic with its buffers as they are.

    C counts as unclipped where it would lie within 1e-9 of [0, 1], and a layer computes with rounding: the proved order
    holds between two points whose C_final differs by more than 3e-9·(g_a + g_b), in float32 by more than 4e-6. A layer
    wears a certificate as long as the digest of its buffers and switches fits; ``certify.check`` says whether what it
    claims was ever proved.

    Attributes:
        subject: Digest of all that decides: basis, configuration, range and thresholds.
        function: The same without the thresholds: digest of C_final.
        preset: Name of the layer's preset.
        basis: Fingerprint of its basis.
        calibration: Its calibration label.
        config: Its configuration, with range and thresholds as held.
        norm_range: (n_min, n_max) that C is scaled by, of each basis.
        smallest_norm: The minimum of ‖v_meta‖ over the cube, of each basis, between these.
        largest_norm: The maximum.
        smallest_gated: The minimum of C_final over the cube, between these.
        largest_gated: Its maximum.
        parts: Share of the cube on which C is ``unclipped``, ``saturated`` and ``zero``, each between two bounds.
        slopes: Of C_final, along ``relevance``, ``reliability`` and ``risk`` (there along -A).
        actions: The same for the action.
        reachable: For each action.
        cover: The boxes of the proof.
        evaluated: Boxes that the search looked at.
        version: Of the package that proved it.

    Example:
        >>> Certificate.of_preset("certified").actions["risk"].verdict
        'holds'
        >>> Certificate.of_preset("paper") is None
        True
    """

    subject: str
    function: str
    preset: str
    basis: str
    calibration: str
    config: dict[str, Any]
    norm_range: tuple[Interval, ...]
    smallest_norm: tuple[Interval, ...]
    largest_norm: tuple[Interval, ...]
    smallest_gated: Interval
    largest_gated: Interval
    parts: dict[str, Interval]
    slopes: dict[str, Slopes]
    actions: dict[str, Actions]
    reachable: dict[str, Reach]
    cover: Cover
    evaluated: int
    version: str

    @property
    def monotone(self) -> bool:
        """Whether C_final is proved to fall nowhere with rising M, R or -A."""
        return all(self.slopes[channel].verdict in ("strict", "weak") for channel in CHANNELS)

    @property
    def trusted(self) -> bool:
        """Whether it proves what users need: the action never moves the wrong way along M, R or A."""
        return all(self.actions[channel].verdict == "holds" for channel in CHANNELS)

    @classmethod
    def of_preset(cls, name: str) -> Certificate | None:
        """The certificate that ships for a preset with its exact range and default thresholds; None if it has none."""
        return _shipped(name) if name in SHIPPED_CERTIFICATES else None

    def with_thresholds(self, subject: str, config: MDLConfig, calibration: str) -> Self | None:
        """The certificate of the same C_final under other thresholds; None if it does not follow from this one.

        Where C_final is monotone, so is the action, whatever the thresholds. It is continuous too, so that it takes
        every value between its smallest and its largest: which actions are taken is known, how often is not.

        Args:
            subject: Digest of the layer with its new thresholds.
            config: Its configuration.
            calibration: Its calibration label.
        """
        if not self.monotone or not config.value_encoding:  # without value encoding C_final jumps at M = 0
            return None
        (least, smallest), (largest, most) = self.smallest_gated, self.largest_gated
        edges = (math.inf, *config.thresholds, -math.inf)
        reachable = {}
        for action, (above, below) in zip(Action, itertools.pairwise(edges), strict=True):
            taken, never = smallest < above and largest >= below, least >= above or most < below
            reachable[action.label] = Reach("holds" if taken else "fails" if never else "open", None, None)
        return dataclasses.replace(
            self,
            subject=subject,
            config=config.to_dict(),
            calibration=calibration,
            actions={channel: Actions("holds", None) for channel in CHANNELS},
            reachable=reachable,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"format": FORMAT, **json.loads(json.dumps(dataclasses.asdict(self)))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The certificate of a mapping.

        Raises:
            ValueError: A key is unknown or missing, a value is of the wrong kind, the configuration is none, or the
                version is another.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"certificate must be an object, got {type(values).__name__}")
        values = dict(values)
        version = values.pop("format", None)
        if version != FORMAT or isinstance(version, bool):
            raise ValueError(f"certificate has format {version!r}, this version reads {FORMAT}")
        found = read(cls, values, name="the certificate", keys=_KEYS)
        try:
            MDLConfig.from_dict(found.config)
        except (TypeError, ValueError) as error:
            raise ValueError(f"config is not that of a layer: {error}") from error
        return found

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a certificate file.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is not a certificate; the message names the file and the fault.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text("utf-8")))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a certificate file: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a certificate file, readable and diffable."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(f"{text}\n", "utf-8")


_KEYS: dict[str, tuple[str, ...]] = {
    "parts": PARTS,
    "slopes": CHANNELS,
    "actions": CHANNELS,
    "reachable": tuple(action.label for action in Action),
}
"""The keys of the mappings within a certificate."""

SHIPPED_CERTIFICATES = {name: f"certificate-{name}.json" for name in ("certified", "ensemble")}
"""Presets with a certificate in the package's data."""


@functools.cache
def _shipped(preset: str) -> Certificate:
    return Certificate.from_dict(json.loads(read_text(SHIPPED_CERTIFICATES[preset])))
