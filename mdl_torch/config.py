"""The controller's configuration: every value of the paper's Table 2, the ablations of Table 7(a), and presets.

A configuration is plain data: it never holds tensors, and no other module invents a default of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from mdl_torch.errors import check_keys, unknown_name

CHANNELS = ("relevance", "reliability", "risk")
"""The order of every triple: the subspaces and gains of the paper's wm, r and a."""

LARGEST = 1e6
"""Largest size of any value: far beyond all use, and small enough that no product overflows float32."""

NARROWEST_PEAK = 1e-6
"""Smallest σ: 2σ² must not underflow in float32."""

SMALLEST_SPREAD = 1e-4
"""Smallest n_max - n_min: any closer, and float32 no longer tells the norms apart."""

MOST_BASES = 1024
"""Largest number of bases that are averaged."""

NAMED_BASES = {"certified": "basis-certified-dim16.npy"}
"""Bases that ship with the package by name, each of ``NAMED_DIM``; CONTRIBUTING.md says which script writes which."""

NAMED_DIM = 16
"""D of the named bases."""

ENSEMBLE_BASES = 16
"""Number of bases of the ``ensemble`` preset. They ship as data too: scripts/make_basis.py writes as many."""

NormRange = tuple[float, float] | tuple[tuple[float, float], ...]
"""(n_min, n_max), or one such pair for each of several bases."""


def _integer(name: str, value: object, at_least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not abs(value) <= LARGEST:
        raise ValueError(f"{name} must be finite and at most {LARGEST:g} in size, got {value}")
    return float(value)


def _sequence(name: str, value: object, length: int) -> tuple[object, ...]:
    if not isinstance(value, tuple | list):
        raise TypeError(f"{name} must be a tuple of {length} numbers, got {value!r}")
    if len(value) != length:
        raise ValueError(f"{name} must have {length} values, got {len(value)}: {tuple(value)}")
    return tuple(value)


def _numbers(name: str, value: object, length: int) -> tuple[float, ...]:
    return tuple(_number(name, v) for v in _sequence(name, value, length))


def check_norm_range(low: float, high: float) -> tuple[float, float]:
    """(n_min, n_max), if C can be computed with it.

    Raises:
        ValueError: n_min is negative, or n_max not ``SMALLEST_SPREAD`` above it.

    Example:
        >>> check_norm_range(2.0, 1.0)
        Traceback (most recent call last):
        ValueError: norm_range must be 0 <= n_min < n_max, at least 0.0001 apart, got (2.0, 1.0)
    """
    if not 0 <= low <= high - SMALLEST_SPREAD:
        raise ValueError(
            f"norm_range must be 0 <= n_min < n_max, at least {SMALLEST_SPREAD:g} apart, got {(low, high)}"
        )
    return low, high


@dataclass(frozen=True)
class MDLConfig:
    """What makes a Memory Decision Layer (Table 2). The defaults are the paper's.

    Attributes:
        dim: D, dimension of the value vectors.
        subspace_dims: (d_wm, d_r, d_a), dimensions of the three subspaces; they add up to ``dim``.
        sigma: σ, width of the Gaussian peaks; > 0, at least ``NARROWEST_PEAK``.
        subspace_gains: (s_wm, s_r, s_a), gain of each channel in its own subspace; > 0.
        cross_leakage: ε_c, gain in the other two; 0 <= ε_c < min s_k (Theorem 1).
        risk_gain: (g0, g1) of the risk modulation g_A = g0 + g1·⟨v_a⟩.
        gate: (g_a, g_b) of C_final = C·(g_a + g_b·α).
        bias: b, added to every component before tanh.
        thresholds: (θ0, θ1, θ2), falling, in [0, 1].
        norm_range: (n_min, n_max) that ‖v_meta‖ is scaled by, at least ``SMALLEST_SPREAD`` apart; None takes the exact
            range, that of a 41-point grid of the cube of signals.
        seed: Of the Gaussian matrix whose QR decomposition is the basis Q.
        bases: n, how many bases are averaged: those of the seeds ``seed`` to ``seed + n - 1``; at most ``MOST_BASES``.
        basis: Name of a basis that ships with the package, a key of ``NAMED_BASES``; None takes those of the seeds.
            With a name ``seed`` and ``bases`` stay at their defaults.
        value_encoding: False is the ablation v(s) = s·1.
        risk_inversion: False is the ablation s = A instead of 1 - A.
        risk_modulation: False is the ablation g_A = 1.
        orthogonal_subspaces: False is the ablation W_k = s_k·I.
        alpha_gate: False is the ablation C_final = C.

    Raises:
        TypeError: A value is of the wrong kind.
        ValueError: A value is out of its range; the message names it.

    Example:
        >>> MDLConfig().subspace_gains
        (1.0, 0.7, 0.5)
        >>> MDLConfig(cross_leakage=0.5)
        Traceback (most recent call last):
        ValueError: cross_leakage must lie in [0, min(subspace_gains)) = [0, 0.5), got 0.5
    """

    dim: int = 16
    subspace_dims: tuple[int, int, int] = (5, 5, 6)
    sigma: float = 0.20
    subspace_gains: tuple[float, float, float] = (1.0, 0.7, 0.5)
    cross_leakage: float = 0.10
    risk_gain: tuple[float, float] = (0.5, 0.5)
    gate: tuple[float, float] = (0.3, 0.7)
    bias: float = 0.0
    thresholds: tuple[float, float, float] = (0.6, 0.4, 0.2)
    norm_range: tuple[float, float] | None = None
    seed: int = 42
    bases: int = 1
    basis: str | None = None
    value_encoding: bool = True
    risk_inversion: bool = True
    risk_modulation: bool = True
    orthogonal_subspaces: bool = True
    alpha_gate: bool = True

    def __post_init__(self) -> None:
        for name in ("value_encoding", "risk_inversion", "risk_modulation", "orthogonal_subspaces", "alpha_gate"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be a bool, got {getattr(self, name)!r}")
        self._set("dim", _integer("dim", self.dim, at_least=1))
        self._set("seed", _integer("seed", self.seed, at_least=0))
        self._set("bases", _integer("bases", self.bases, at_least=1))
        if self.bases > MOST_BASES:
            raise ValueError(f"bases must be at most {MOST_BASES}, got {self.bases}")
        if self.basis is not None:
            self._check_basis(self.basis)
        for name, length in (("subspace_gains", 3), ("risk_gain", 2), ("gate", 2), ("thresholds", 3)):
            self._set(name, _numbers(name, getattr(self, name), length))
        for name in ("sigma", "cross_leakage", "bias"):
            self._set(name, _number(name, getattr(self, name)))
        dims = _sequence("subspace_dims", self.subspace_dims, 3)
        self._set("subspace_dims", tuple(_integer("subspace_dims", d, at_least=1) for d in dims))
        if sum(self.subspace_dims) != self.dim:
            raise ValueError(f"subspace_dims must add up to dim = {self.dim}, got {self.subspace_dims}")
        if self.sigma < NARROWEST_PEAK:
            raise ValueError(f"sigma must be greater than 0, at least {NARROWEST_PEAK:g}, got {self.sigma}")
        if min(self.subspace_gains) <= 0:
            raise ValueError(f"subspace_gains must all be greater than 0, got {self.subspace_gains}")
        if not 0 <= self.cross_leakage < min(self.subspace_gains):
            bound = f"[0, min(subspace_gains)) = [0, {min(self.subspace_gains)})"
            raise ValueError(f"cross_leakage must lie in {bound}, got {self.cross_leakage}")
        for name in ("risk_gain", "gate"):
            if min(getattr(self, name)) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        t0, t1, t2 = self.thresholds
        if not 1 >= t0 > t1 > t2 >= 0:
            raise ValueError(f"thresholds must fall strictly within [0, 1], got {self.thresholds}")
        if self.norm_range is not None:
            self._set("norm_range", check_norm_range(*_numbers("norm_range", self.norm_range, 2)))

    def _check_basis(self, name: str) -> None:
        """A name is of a basis that ships, and what the basis settles is not settled otherwise."""
        if not isinstance(name, str):
            raise TypeError(f"basis must be a name or None, got {name!r}")
        if name not in NAMED_BASES:
            raise ValueError(unknown_name("basis", name, NAMED_BASES))
        for field, settled in (("dim", NAMED_DIM), ("seed", MDLConfig.seed), ("bases", MDLConfig.bases)):
            if getattr(self, field) != settled:
                raise ValueError(f"{field} must be {settled} with the basis {name!r}, got {getattr(self, field)}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: lists for tuples, None for an unset range.

        Example:
            >>> MDLConfig.from_dict(MDLConfig().to_dict()) == MDLConfig()
            True
        """
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration of a mapping; missing keys take the defaults, unknown keys are refused.

        Raises:
            ValueError: A key is unknown (the nearest known one is named) or a value is out of range.
            TypeError: A value, or ``values`` itself, is of the wrong kind.

        Example:
            >>> MDLConfig.from_dict({"sgima": 0.3})
            Traceback (most recent call last):
            ValueError: unknown configuration key 'sgima'; did you mean 'sigma'? Known: alpha_gate, bases, ...
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a mapping, got {type(values).__name__}")
        check_keys("configuration key", values, [f.name for f in dataclasses.fields(cls)])
        return cls(**values)

    def ablate(self, name: str) -> Self:
        """This configuration with one mechanism of Table 7(a) taken out.

        Args:
            name: A key of ``ABLATIONS``.

        Raises:
            ValueError: No such ablation.

        Example:
            >>> MDLConfig().ablate("risk_modulation").risk_modulation
            False
        """
        if name not in ABLATIONS:
            raise ValueError(unknown_name("ablation", name, ABLATIONS))
        return dataclasses.replace(self, **{name: False})  # type: ignore[arg-type]

    @property
    def preset(self) -> str:
        """The preset that this configuration is, up to calibration; ``custom`` if none.

        With one mechanism less it is ``paper-without-...``. Derived, never stored, so that an output cannot name a
        preset that it does not follow.

        Example:
            >>> MDLConfig(thresholds=(0.5, 0.3, 0.1)).preset, MDLConfig(sigma=0.3).preset
            ('paper', 'custom')
            >>> MDLConfig().ablate("alpha_gate").preset
            'paper-without-alpha_gate'
        """
        mine = self.uncalibrated()
        for name, config in PRESETS.items():
            if mine == config.uncalibrated():
                return name
            for ablation in ABLATIONS:
                if mine == config.ablate(ablation).uncalibrated():
                    return f"{name}-without-{ablation}"
        return "custom"

    def uncalibrated(self) -> Self:
        """This configuration with the values that calibration sets back at their defaults.

        Example:
            >>> MDLConfig(norm_range=(1.0, 2.0)).uncalibrated() == MDLConfig()
            True
        """
        return dataclasses.replace(self, norm_range=None, thresholds=MDLConfig.thresholds)


ABLATIONS: dict[str, str] = {
    "alpha_gate": "C_final = C",
    "risk_modulation": "g_A = 1",
    "orthogonal_subspaces": "W_k = s_k·I",
    "risk_inversion": "s = A instead of 1 - A",
    "value_encoding": "v(s) = s·1",
}
"""The mechanisms of Table 7(a), each with what is left without it. The keys are the configuration's switches."""

PRESETS: dict[str, MDLConfig] = {
    "paper": MDLConfig(),
    "certified": MDLConfig(basis="certified"),
    "ensemble": MDLConfig(bases=ENSEMBLE_BASES),
}
"""Named configurations. See CONTRIBUTING.md for how to add one."""


def preset_config(name: str) -> MDLConfig:
    """The configuration of a preset.

    Raises:
        ValueError: No such preset; the nearest is named.

    Example:
        >>> preset_config("paper").seed
        42
    """
    if name not in PRESETS:
        raise ValueError(unknown_name("preset", name, PRESETS))
    return PRESETS[name]
