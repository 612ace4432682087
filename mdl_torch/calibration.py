"""What is fitted rather than fixed: the range of ‖v_meta‖ and the thresholds (Section 3.4), with its provenance."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mdl_torch.config import MDLConfig, check_norm_range
from mdl_torch.errors import CalibrationMismatchError, unknown_name
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, NDArray

UNFITTED = "exact-range"
"""How outputs name the absence of a calibration: the range over the whole cube, and the default thresholds."""


@dataclass(frozen=True)
class Calibration:
    """A fitted range and thresholds, and for what they were fitted.

    Attributes:
        name: Short name in outputs.
        norm_range: (n_min, n_max) of ‖v_meta‖.
        thresholds: (θ0, θ1, θ2).
        range_method: ``minmax`` or ``quantile(q)``.
        threshold_method: How the thresholds came about.
        config: Digest of the uncalibrated configuration it holds for.
        basis: Fingerprint of the basis it holds for.
        encoder: Identity of the sentence encoder whose signals it was fitted on; None if unknown.
        detector: Name of the conflict detector behind them.
        dataset: Name and revision of the data.
        samples: Number of retrievals it was fitted on.
        action_mix: Share of each action on those retrievals, as (share, low, high) with a bootstrap interval.
        provenance: Anything else worth keeping: seed, command, identifiers of the questions.

    Raises:
        TypeError: A value is of the wrong kind.
        ValueError: A value is out of its range; the message names it.

    Example:
        >>> Calibration.reference().thresholds
        (0.6, 0.4, 0.2)
    """

    name: str
    norm_range: tuple[float, float]
    thresholds: tuple[float, float, float]
    range_method: str
    threshold_method: str
    config: str
    basis: str
    encoder: str | None
    detector: str
    dataset: str
    samples: int
    action_mix: dict[str, tuple[float, float, float]]
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.norm_range is None:
            raise TypeError("norm_range must be a tuple of 2 numbers, got None")
        checked = MDLConfig(norm_range=self.norm_range, thresholds=self.thresholds)  # the same rules
        object.__setattr__(self, "norm_range", checked.norm_range)
        object.__setattr__(self, "thresholds", checked.thresholds)
        for name in ("name", "range_method", "threshold_method", "config", "basis", "detector", "dataset"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a string, got {getattr(self, name)!r}")
        if not isinstance(self.encoder, str | None):
            raise TypeError(f"encoder must be a string or None, got {self.encoder!r}")
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or self.samples < 1:
            raise ValueError(f"samples must be an integer of at least 1, got {self.samples!r}")
        for name in ("action_mix", "provenance"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"{name} must be a mapping, got {getattr(self, name)!r}")
        object.__setattr__(self, "action_mix", {k: _interval(k, v) for k, v in self.action_mix.items()})

    @classmethod
    def reference(cls) -> Self:
        """The calibration that ships with the package: 80 TruthfulQA questions, MiniLM, the ``paper`` preset."""
        return cls.from_dict(json.loads((files("mdl_torch.data") / "calibration-reference.json").read_text("utf-8")))

    @property
    def label(self) -> str:
        """Name and digest, as outputs spell it: two calibrations of one name are told apart.

        Example:
            >>> Calibration.reference().label.split(":")[0]
            'reference'
        """
        values = [self.norm_range, self.thresholds, self.config, self.basis, self.encoder, self.detector]
        return f"{self.name}:{digest(values)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The calibration of a mapping.

        Raises:
            TypeError: ``values`` is no mapping, or a value is of the wrong kind.
            ValueError: A key is unknown or missing, or a value is out of its range.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"calibration must be a mapping, got {type(values).__name__}")
        known = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise ValueError(unknown_name("calibration key", key, known))
        missing = [name for name in known if name not in values and name != "provenance"]
        if missing:
            raise ValueError(f"calibration lacks {', '.join(missing)}")
        return cls(**values)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a calibration file.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is not a calibration; the message names the file and the fault.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text("utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is not a calibration file: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a calibration file, readable and diffable."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", "utf-8")

    def check_layer(self, config: MDLConfig, basis: str) -> None:
        """Refuse a layer that this was not fitted for.

        Raises:
            CalibrationMismatchError: The configuration or the basis differs.
        """
        for what, mine, got in (("configuration", self.config, config_digest(config)), ("basis", self.basis, basis)):
            if mine != got:
                raise CalibrationMismatchError(
                    f"calibration {self.name!r} was fitted for {what} {mine}, got a layer with {what} {got}; "
                    "fit one for this layer or use the preset it was fitted for"
                )

    def check_encoder(self, encoder: str, detector: str) -> None:
        """Refuse signals of another encoder or conflict detector than those it was fitted on.

        Raises:
            CalibrationMismatchError: The encoder or detector differs.
        """
        for what, mine, got in (("encoder", self.encoder, encoder), ("detector", self.detector, detector)):
            if mine is not None and mine != got:
                raise CalibrationMismatchError(
                    f"calibration {self.name!r} was fitted on signals of {what} {mine}, got {what} {got}; "
                    "fit one for it, or pass calibration=None to use the exact range"
                )


def _interval(action: str, values: object) -> tuple[float, float, float]:
    labels = [a.label for a in Action]
    if action not in labels:
        raise ValueError(unknown_name("action", action, labels))
    if not isinstance(values, tuple | list) or len(values) != 3:
        raise TypeError(f"action_mix[{action!r}] must be (share, low, high), got {values!r}")
    if not all(isinstance(v, int | float) and 0 <= v <= 1 for v in values):
        raise ValueError(f"action_mix[{action!r}] must hold shares in [0, 1], got {values!r}")
    share, low, high = map(float, values)
    return share, low, high


def digest(value: object) -> str:
    """Eight hex digits of a JSON value's SHA-256, independent of the order of keys.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def config_digest(config: MDLConfig) -> str:
    """Digest of everything in a configuration that calibration does not set."""
    return digest(config.uncalibrated().to_dict())


def fit_norm_range(norms: ArrayLike, method: str = "minmax") -> tuple[float, float]:
    """n_min and n_max from the norms ‖v_meta‖ of a calibration split (Section 3.4).

    Args:
        norms: One norm per calibration retrieval, at least two different ones.
        method: ``minmax``, or ``quantile(q)`` with 0 < q < 0.5 for the q and 1 - q quantiles (Theorem 1).

    Raises:
        ValueError: The method is unknown, or the norms have no spread.

    Example:
        >>> fit_norm_range([1.0, 2.0, 4.0])
        (1.0, 4.0)
        >>> fit_norm_range(list(range(101)), "quantile(0.05)")
        (5.0, 95.0)
    """
    values: NDArray[np.float64] = np.asarray(norms, dtype=np.float64)
    if values.size < 2 or not np.isfinite(values).all():
        raise ValueError(f"norms must be two or more finite values, got {values.size} with {values}")
    low, high = _bounds(values, method)
    try:
        return check_norm_range(low, high)
    except ValueError as error:
        raise ValueError(f"norms must spread for a range: {error}") from error


def _bounds(norms: NDArray[np.float64], method: str) -> tuple[float, float]:
    if method == "minmax":
        return float(norms.min()), float(norms.max())
    if not (match := re.fullmatch(r"quantile\((0?\.\d+)\)", method.replace(" ", ""))):
        raise ValueError(f"method must be 'minmax' or 'quantile(q)', got {method!r}")
    q = float(match[1])
    if not 0 < q < 0.5:
        raise ValueError(f"method quantile(q) needs 0 < q < 0.5, got q = {q}")
    low, high = np.quantile(norms, (q, 1 - q))
    return float(low), float(high)


def lower_thresholds(first: float) -> tuple[float, float, float]:
    """(θ0, θ0 - δ, θ0 - 2δ) with δ = min(0.2, θ0/3).

    Example:
        >>> [round(t, 3) for t in lower_thresholds(0.3)]
        [0.3, 0.2, 0.1]
    """
    delta = min(0.2, first / 3)
    return first, first - delta, first - 2 * delta


def fit_thresholds(gated_confidence: ArrayLike, adopt: ArrayLike) -> tuple[float, float, float]:
    """θ by grid search: the θ0 whose Active agrees most with the oracle's adopt, then ``lower_thresholds``.

    Ties go to the middle of the widest best stretch, so that a small shift of the signals changes least.

    Args:
        gated_confidence: C_final of the calibration retrievals, ``(n,)``.
        adopt: Whether the oracle would have injected the memories, bool ``(n,)``.

    Raises:
        ValueError: The two differ in length, are empty, or hold a score that is not finite.

    Example:
        >>> fit_thresholds([0.1, 0.2, 0.8, 0.9], [False, False, True, True])[0]
        0.5
    """
    scores, labels = np.asarray(gated_confidence, np.float64), np.asarray(adopt, bool)
    if scores.ndim != 1 or scores.shape != labels.shape or not scores.size:
        raise ValueError(f"gated_confidence and adopt must be (n,) with n >= 1, got {scores.shape} and {labels.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("gated_confidence must be finite")
    grid = np.round(np.arange(0.05, 0.96, 0.01), 2)
    agreement = ((scores >= grid[:, None]) == labels).mean(axis=1)
    best = np.flatnonzero(agreement == agreement.max())
    stretches = np.split(best, np.flatnonzero(np.diff(best) > 1) + 1)
    widest = max(stretches, key=len)
    return lower_thresholds(float(grid[widest[(len(widest) - 1) // 2]]))


def bootstrap_action_mix(
    norms: ArrayLike,
    factors: ArrayLike,
    thresholds: tuple[float, float, float],
    method: str = "minmax",
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float, float]]:
    """How much the action mix depends on which retrievals happened to be in the calibration split.

    Each resample refits the range and is applied to the whole split.

    Args:
        norms: ‖v_meta‖, ``(n,)``.
        factors: What the gate multiplies C by, g_a + g_b·α (ones without the α gate), ``(n,)``.
        thresholds: (θ0, θ1, θ2), kept.
        method: As for ``fit_norm_range``.
        resamples: Number of bootstrap resamples.
        seed: Of the resampling.

    Returns:
        For each action (share, low, high): the share with the range of all, and the 2.5% and 97.5% quantiles.

    Raises:
        ValueError: Norms and factors differ in length, the method is unknown, or the norms have no spread.

    Example:
        >>> mix = bootstrap_action_mix([1.0, 2.0, 3.0, 4.0], [1.0] * 4, (0.6, 0.4, 0.2))
        >>> mix["active"][0], mix["opt_out"][0]
        (0.5, 0.25)
    """
    norms, factors = np.asarray(norms, np.float64), np.asarray(factors, np.float64)
    if norms.ndim != 1 or norms.shape != factors.shape:
        raise ValueError(f"norms and factors must both be (n,), got {norms.shape} and {factors.shape}")
    fitted = fit_norm_range(norms, method)

    def mix(low: float, high: float) -> NDArray[np.float64]:
        gated = np.clip((norms - low) / (high - low), 0, 1) * factors
        actions = (gated[:, None] < np.asarray(thresholds)).sum(axis=1)
        return np.bincount(actions, minlength=len(Action)) / len(actions)

    rng = np.random.default_rng(seed)
    ranges = [_bounds(norms[rng.integers(0, len(norms), len(norms))], method) for _ in range(resamples)]
    mixes = np.stack([mix(low, high) for low, high in ranges if low < high])  # a resample may lack spread
    low, high = np.quantile(mixes, (0.025, 0.975), axis=0)
    share = mix(*fitted)
    return {action.label: (float(share[action]), float(low[action]), float(high[action])) for action in Action}
