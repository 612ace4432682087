"""What is fitted rather than fixed: the range of ‖v_meta‖ and the thresholds (Section 3.4), with its provenance."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mdl_torch.config import MDLConfig, check_norm_range
from mdl_torch.data import read_text
from mdl_torch.errors import CalibrationMismatchError, check_keys, unknown_name
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, NDArray

UNFITTED = "exact-range"
"""How outputs name the absence of a calibration: the range on a grid of the cube, and the default thresholds."""

Shares = dict[str, tuple[float, float, float]]
"""Of each action by its label: three figures of its share, said where they are given."""


@dataclass(frozen=True)
class Calibration:
    """A fitted range and thresholds, and for what they were fitted.

    Attributes:
        name: Short name in outputs.
        norm_range: (n_min, n_max) of ‖v_meta‖; None keeps the exact range.
        thresholds: (θ0, θ1, θ2).
        range_method: ``minmax`` or ``quantile(q)``; ``exact`` where ``norm_range`` is None.
        threshold_method: How the thresholds came about.
        config: Digest of the uncalibrated configuration it holds for.
        basis: Fingerprint of the basis it holds for.
        encoder: Identity of the sentence encoder whose signals it was fitted on; None if unknown.
        detector: Identity of the conflict detector behind them: its name, parameters and lexicon.
        dataset: Name and revision of the data.
        samples: Number of retrievals it was fitted on.
        action_mix: Share of each action on those retrievals, as (share, low, high); see ``bootstrap_action_mix``.
        action_mix_top_risk: The same on those at A = 0.85, where abstention hangs on the range most; empty if none are.
        provenance: Anything else worth keeping: seed, command, identifiers of the questions.
        signals: (M, R, A) of those retrievals, so that the range can be fitted for another basis; empty if not kept.

    Raises:
        TypeError: A value is of the wrong kind.
        ValueError: A value is out of its range; the message names it.

    Example:
        >>> Calibration.reference().thresholds
        (0.6, 0.4, 0.2)
    """

    name: str
    norm_range: tuple[float, float] | None
    thresholds: tuple[float, float, float]
    range_method: str
    threshold_method: str
    config: str
    basis: str
    encoder: str | None
    detector: str
    dataset: str
    samples: int
    action_mix: Shares
    action_mix_top_risk: Shares = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    signals: tuple[tuple[float, float, float], ...] = ()

    def __post_init__(self) -> None:
        checked = MDLConfig(norm_range=self.norm_range, thresholds=self.thresholds)  # the same rules
        object.__setattr__(self, "norm_range", checked.norm_range)
        object.__setattr__(self, "thresholds", checked.thresholds)
        for name in ("name", "range_method", "threshold_method", "config", "basis", "detector", "dataset"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a string, got {getattr(self, name)!r}")
        if (self.range_method == "exact") != (self.norm_range is None):
            fitting = "'exact' without a norm_range" if self.norm_range is None else "how norm_range was fitted"
            raise ValueError(f"range_method must be {fitting}, got {self.range_method!r}")
        if not isinstance(self.encoder, str | None):
            raise TypeError(f"encoder must be a string or None, got {self.encoder!r}")
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or self.samples < 1:
            raise ValueError(f"samples must be an integer of at least 1, got {self.samples!r}")
        for name in ("action_mix", "action_mix_top_risk", "provenance"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"{name} must be a mapping, got {getattr(self, name)!r}")
        for name in ("action_mix", "action_mix_top_risk"):
            object.__setattr__(self, name, {k: _interval(name, k, v) for k, v in getattr(self, name).items()})
        object.__setattr__(self, "signals", _signals(self.signals, self.samples))

    @classmethod
    def reference(cls) -> Self:
        """The calibration that ships with the package: 80 TruthfulQA questions, MiniLM, the ``paper`` preset."""
        return cls.from_dict(json.loads(read_text("calibration-reference.json")))

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
        fields = dataclasses.fields(cls)
        check_keys("calibration key", values, [f.name for f in fields])
        needed = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
        missing = [name for name in needed if name not in values]
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
        except (ValueError, TypeError, RecursionError) as error:
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

        Args:
            encoder: Identity of the sentence encoder.
            detector: Identity of the conflict detector.

        Raises:
            CalibrationMismatchError: The encoder or detector differs.
        """
        for what, mine, got in (("encoder", self.encoder, encoder), ("detector", self.detector, detector)):
            if mine is not None and mine != got:
                raise CalibrationMismatchError(
                    f"calibration {self.name!r} was fitted on signals of {what} {mine}, got {what} {got}; "
                    "fit one for it, or pass calibration=None to use the exact range"
                )


def _interval(name: str, action: str, values: object) -> tuple[float, float, float]:
    labels = [a.label for a in Action]
    if action not in labels:
        raise ValueError(unknown_name("action", action, labels))
    if not isinstance(values, tuple | list) or len(values) != 3:
        raise TypeError(f"{name}[{action!r}] must be (share, low, high), got {values!r}")
    if not all(isinstance(v, int | float) and 0 <= v <= 1 for v in values):
        raise ValueError(f"{name}[{action!r}] must hold shares in [0, 1], got {values!r}")
    share, low, high = map(float, values)
    return share, low, high


def _signals(rows: object, samples: int) -> tuple[tuple[float, float, float], ...]:
    if not isinstance(rows, tuple | list) or not all(isinstance(row, tuple | list) for row in rows):
        raise TypeError(f"signals must be a tuple of (M, R, A), got {rows!r}")
    if rows and len(rows) != samples:
        raise ValueError(f"signals must be empty or those of all {samples} samples, got {len(rows)}")
    for row in rows:
        numbers = [v for v in row if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(row) != 3 or len(numbers) != 3 or not all(0 <= v <= 1 for v in numbers):
            raise ValueError(f"signals must each be three numbers in [0, 1], got {row!r}")
    return tuple((float(m), float(r), float(a)) for m, r, a in rows)


def digest(value: object) -> str:
    """Eight hex digits of a JSON value's SHA-256, independent of the order of keys.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def config_digest(config: MDLConfig) -> str:
    """Digest of everything in a configuration that calibration does not set.

    The choice of bases came later: at its default it takes no part, so that older calibrations still apply.
    """
    values = config.uncalibrated().to_dict()
    later = [name for name in ("bases", "basis") if values[name] == getattr(MDLConfig, name)]
    return digest({name: value for name, value in values.items() if name not in later})


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
    within: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Shares:
    """How much the action mix depends on which retrievals happened to be in the calibration split.

    Each resample refits the range and is applied to the whole split. The interval is one-sided: the minimum and maximum
    of a resample lie within those of the split, so that it never shows what a wider range would do. Where there are
    more retrievals than the split, ``split_action_mix`` shows both sides.

    Args:
        norms: ‖v_meta‖, ``(n,)``.
        factors: What the gate multiplies C by, g_a + g_b·α (ones without the α gate), ``(n,)``.
        thresholds: (θ0, θ1, θ2), kept.
        method: As for ``fit_norm_range``.
        within: The retrievals whose actions are counted, bool ``(n,)``; all by default. The range is fitted on all.
        resamples: Number of bootstrap resamples.
        seed: Of the resampling.

    Returns:
        For each action (share, low, high): the share with the range of all, and the 2.5% and 97.5% quantiles.

    Raises:
        ValueError: Lengths differ, nothing is to be counted, the method is unknown, or the norms have no spread.

    Example:
        >>> mix = bootstrap_action_mix([1.0, 2.0, 3.0, 4.0], [1.0] * 4, (0.6, 0.4, 0.2))
        >>> mix["active"][0], mix["opt_out"][0]
        (0.5, 0.25)
    """
    n, f, counted = _columns(norms, factors, within)
    share = _mix(n[counted], f[counted], fit_norm_range(n, method), thresholds)
    rng = np.random.default_rng(seed)
    ranges = [_bounds(n[rng.integers(0, len(n), len(n))], method) for _ in range(resamples)]
    spread = [r for r in ranges if r[0] < r[1]]  # a resample may lack it
    low, high = np.quantile([_mix(n[counted], f[counted], r, thresholds) for r in spread], (0.025, 0.975), axis=0)
    return _shares(share, low, high)


def split_action_mix(
    norms: ArrayLike,
    factors: ArrayLike,
    thresholds: tuple[float, float, float],
    method: str = "minmax",
    *,
    samples: int,
    within: ArrayLike | None = None,
    splits: int = 200,
    seed: int = 0,
) -> Shares:
    """The action mix on retrievals that the range was not fitted on, over random splits.

    Each split draws ``samples`` retrievals, fits the range on them and counts the actions of all others.

    Args:
        norms: ‖v_meta‖, ``(n,)``.
        factors: As for ``bootstrap_action_mix``.
        thresholds: (θ0, θ1, θ2), kept.
        method: As for ``fit_norm_range``.
        samples: Size of a calibration split, less than n.
        within: The retrievals whose actions are counted, bool ``(n,)``; all by default.
        splits: Number of splits.
        seed: Of the draws.

    Returns:
        For each action the 2.5%, 50% and 97.5% quantiles of its share.

    Raises:
        ValueError: Lengths differ, no split leaves anything to count, the method is unknown, or a split has no spread.

    Example:
        >>> mix = split_action_mix(list(range(1, 101)), [1.0] * 100, (0.6, 0.4, 0.2), samples=50)
        >>> 0.3 < mix["active"][1] < 0.5
        True
    """
    n, f, counted = _columns(norms, factors, within)
    if not 2 <= samples < len(n):
        raise ValueError(f"samples must be at least 2 and less than the {len(n)} norms, got {samples}")
    rng = np.random.default_rng(seed)
    mixes = []
    for _ in range(splits):
        drawn = np.zeros(len(n), bool)
        drawn[rng.choice(len(n), samples, replace=False)] = True
        others = counted & ~drawn
        if others.any():
            mixes.append(_mix(n[others], f[others], fit_norm_range(n[drawn], method), thresholds))
    if not mixes:
        raise ValueError(f"within must leave something to count, got {counted.sum()} of {len(n)} in {splits} splits")
    return _shares(*np.quantile(mixes, (0.025, 0.5, 0.975), axis=0))


def _columns(
    norms: ArrayLike, factors: ArrayLike, within: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    n, f = np.asarray(norms, np.float64), np.asarray(factors, np.float64)
    if n.ndim != 1 or n.shape != f.shape:
        raise ValueError(f"norms and factors must both be (n,), got {n.shape} and {f.shape}")
    counted = np.ones(n.shape, bool) if within is None else np.asarray(within, bool)
    if counted.shape != n.shape or not counted.any():
        got = f"{counted.sum()} true of {counted.shape}"
        raise ValueError(f"within must be a truth value for each of {n.shape} norms, some of them true, got {got}")
    return n, f, counted


def _mix(
    norms: NDArray[Any], factors: NDArray[Any], norm_range: tuple[float, float], thresholds: tuple[float, ...]
) -> NDArray[Any]:
    """Share of each action, ``(4,)``."""
    low, high = norm_range
    gated = np.clip((norms - low) / (high - low), 0, 1) * factors
    actions = (gated[:, None] < np.asarray(thresholds)).sum(axis=1)
    return np.bincount(actions, minlength=len(Action)) / len(actions)


def _shares(first: NDArray[Any], second: NDArray[Any], third: NDArray[Any]) -> Shares:
    return {a.label: (float(first[a]), float(second[a]), float(third[a])) for a in Action}
