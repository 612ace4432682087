"""The paper's equations, plainly, in float64 NumPy: what the package is held to, and the baseline of the benchmarks.

Written from Section 3.2 and 3.3 (and the pins of the design) without looking at the package; imports neither torch nor
it. One function an equation. Everything broadcasts over leading axes unless it says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np

ACTIVE, SUPP, SILENT, OPT_OUT = range(4)


def qr_basis(seed: int, dim: int = 16) -> np.ndarray:
    """Q of the QR decomposition of a Gaussian matrix."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))[0]


def projectors(q: np.ndarray, dims: tuple[int, int, int]) -> list[np.ndarray]:
    """Π_k = P_k P_kᵀ with P_k a block of columns of Q."""
    blocks = np.split(q, np.cumsum(dims)[:-1], axis=1)
    return [p @ p.T for p in blocks]


@dataclass(frozen=True)
class Oracle:
    """The controller with everything of Table 2, the ablations of Table 7(a) and a calibration.

    Q is that of the seed, or ``basis``. With several ``bases`` everything from ‖v_meta‖ on is the mean over the
    controllers of that many seeds, ``members``, each with its own exact range.
    """

    dim: int = 16
    dims: tuple[int, int, int] = (5, 5, 6)
    sigma: float = 0.20
    gains: tuple[float, float, float] = (1.0, 0.7, 0.5)
    leakage: float = 0.10
    risk_gain: tuple[float, float] = (0.5, 0.5)
    gate: tuple[float, float] = (0.3, 0.7)
    bias: float = 0.0
    seed: int = 42
    bases: int = 1
    basis: np.ndarray | None = None
    thresholds: tuple[float, float, float] = (0.6, 0.4, 0.2)
    norm_range: tuple[float, float] | None = None
    value_encoding: bool = True
    risk_inversion: bool = True
    risk_modulation: bool = True
    orthogonal_subspaces: bool = True
    alpha_gate: bool = True
    _cache: dict = field(default_factory=dict, init=False, compare=False, repr=False)

    def members(self) -> list[Oracle]:
        """One controller for each basis; a single one is its own only member."""
        if self.bases == 1:
            return [self]
        if "members" not in self._cache:
            seeds = range(self.seed, self.seed + self.bases)
            self._cache["members"] = [replace(self, seed=seed, bases=1) for seed in seeds]
        return self._cache["members"]

    def q(self) -> np.ndarray:
        """The basis of a single controller."""
        assert self.bases == 1
        return qr_basis(self.seed, self.dim) if self.basis is None else self.basis

    def encode(self, s):
        """v(s) = s·1 + Σ_i exp(−(s−c_i)²/2σ²) e_i."""
        s = np.asarray(s, dtype=np.float64)[..., None]
        linear = s * np.ones(self.dim)
        if not self.value_encoding:
            return linear
        centres = np.linspace(0.0, 1.0, self.dim)
        return linear + np.exp(-((s - centres) ** 2) / (2 * self.sigma**2))

    def weights(self) -> list[np.ndarray]:
        """W_k = s_k Π_k + ε_c Σ_{j≠k} Π_j (Eq. 1)."""
        if "weights" not in self._cache:
            if not self.orthogonal_subspaces:
                self._cache["weights"] = [g * np.eye(self.dim) for g in self.gains]
            else:
                pi = projectors(self.q(), self.dims)
                self._cache["weights"] = [
                    self.gains[k] * pi[k] + self.leakage * sum(pi[j] for j in range(3) if j != k) for k in range(3)
                ]
        return self._cache["weights"]

    def channels(self, relevance, risk):
        """v_wm, v_a and the gain g_A = 0.5 + 0.5⟨v_a⟩."""
        v_wm = self.encode(np.clip(relevance, 0.0, 1.0))
        risk = np.asarray(risk, dtype=np.float64)
        v_a = self.encode(1.0 - risk if self.risk_inversion else risk)
        g0, g1 = self.risk_gain
        gain = g0 + g1 * v_a.mean(axis=-1) if self.risk_modulation else np.ones(v_a.shape[:-1])
        return v_wm, v_a, gain

    def fuse(self, relevance, reliability, risk):
        """v_meta = tanh(g_A W_wm v_wm + W_r v_r + W_a v_a + b); returns v_wm, v_meta, g_A."""
        v_wm, v_a, gain = self.channels(relevance, risk)
        v_r = self.encode(reliability)
        w_wm, w_r, w_a = self.weights()
        z = gain[..., None] * (v_wm @ w_wm.T) + v_r @ w_r.T + v_a @ w_a.T + self.bias
        return v_wm, np.tanh(z), gain

    def norm(self, relevance, reliability, risk):
        """‖v_meta‖."""
        signals = relevance, reliability, risk
        return np.mean([np.linalg.norm(one.fuse(*signals)[1], axis=-1) for one in self.members()], axis=0)

    def exact_range(self) -> tuple[float, float]:
        """Smallest and largest norm on a 41-point grid of the cube."""
        assert self.bases == 1
        if "range" not in self._cache:
            axis = np.linspace(0.0, 1.0, 41)
            norms = self.norm(*np.meshgrid(axis, axis, axis, indexing="ij"))
            self._cache["range"] = (norms.min(), norms.max())
        return self._cache["range"]

    def head(self, relevance, reliability, risk):
        """C, α and C_final (Eq. 2 and the gate)."""
        if self.bases > 1:
            return tuple(np.mean([one.head(relevance, reliability, risk) for one in self.members()], axis=0))
        v_wm, v_meta, _ = self.fuse(relevance, reliability, risk)
        norm = np.linalg.norm(v_meta, axis=-1)
        low, high = self.norm_range or self.exact_range()
        confidence = np.clip((norm - low) / (high - low), 0.0, 1.0)
        length = np.linalg.norm(v_wm, axis=-1) * norm
        alpha = np.divide((v_wm * v_meta).sum(-1), length, out=np.zeros_like(length), where=length > 0)
        ga, gb = self.gate
        return confidence, alpha, confidence * (ga + gb * alpha) if self.alpha_gate else confidence

    def action(self, gated):
        """C_final ≥ θ0 Active, ≥ θ1 Supp, ≥ θ2 Silent, else Opt-Out."""
        t0, t1, t2 = self.thresholds
        return np.where(gated >= t0, ACTIVE, np.where(gated >= t1, SUPP, np.where(gated >= t2, SILENT, OPT_OUT)))

    def decide(self, relevance, reliability, risk):
        """(C, α, C_final, action)."""
        confidence, alpha, gated = self.head(relevance, reliability, risk)
        return confidence, alpha, gated, self.action(gated)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """cos(a, b); 0 where one has no length."""
    length = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / length) if length > 0 else 0.0


def signals(query, memories, conflicts=None, relevant_above: float = 0.3):
    """(M raw, R, s̄_rel, φ, similarities) of one store, pair by pair (Section 3.2).

    ``conflicts[i][j]``: whether memories i and j conflict.
    """
    similarity = [cosine(query, m) for m in memories]
    if not similarity:
        return 0.0, 0.5, 0.0, 0.0, []
    relevant = [j for j, s in enumerate(similarity) if s > relevant_above]
    pairs = [(a, b) for i, a in enumerate(relevant) for b in relevant[i + 1 :]]
    if not pairs:
        return max(similarity), 0.5, 0.0, 0.0, similarity
    agreement = float(np.mean([cosine(memories[a], memories[b]) for a, b in pairs]))
    phi = float(np.mean([bool(conflicts[a][b]) for a, b in pairs])) if conflicts is not None else 0.0
    return max(similarity), float(np.clip(agreement * (1 - phi) ** 2, 0, 1)), agreement, phi, similarity


def smallest_change(oracle: Oracle, point, threshold: float, steps: int = 10_000) -> list[float]:
    """For M, R and A, each alone: the signed way to the nearest of evenly spaced values of [0, 1] across a threshold.

    NaN for a signal with none.
    """
    values = np.linspace(0.0, 1.0, steps + 1)
    above = oracle.head(*point)[2] >= threshold
    changes = []
    for k in range(3):
        signals = list(point)
        signals[k] = values
        across = values[(oracle.head(*signals)[2] >= threshold) != above]
        changes.append(float(min(across - point[k], key=abs)) if len(across) else float("nan"))
    return changes


NEGATION = re.compile(r"\b(?:not|no|never|none|nothing|nobody|cannot)\b|n['’]t\b", re.IGNORECASE)
"""A reader's first take on negation, for the timing baseline only."""
