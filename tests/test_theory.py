"""Section 4 of the paper: what is proved is a property test, what is claimed is measured and pinned.

Figures are shares of the steps between neighbours of a 41³ grid of (M, R, A), paper preset, exact range, float64.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import configs, grid, signal_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mdl_torch import MDLConfig, MemoryDecisionLayer
from mdl_torch.encoding import ValueEncoder
from mdl_torch.head import consistency
from mdl_torch.subspace import projectors, seeded_basis

POINTS = 41


@pytest.fixture(scope="module")
def layer():
    return MemoryDecisionLayer()


@pytest.fixture(scope="module")
def cube():
    return tuple(s.reshape([POINTS] * 3) for s in grid(POINTS))


@pytest.fixture(scope="module")
def z(layer, cube):
    """The fused signal before tanh."""
    return layer.represent(*cube).channels.sum(-2)


def steps(values: torch.Tensor) -> list[torch.Tensor]:
    """Differences along rising M, R and -A: a monotone quantity has none below 0."""
    return [values.diff(dim=0), values.diff(dim=1), -values.diff(dim=2)]


def falling(values: torch.Tensor) -> list[float]:
    """Share of the steps along M, R and -A on which the value falls."""
    return [(step < 0).double().mean().item() for step in steps(values)]


# --- Lemma 1 ---------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(seed=st.integers(0, 2**63), dims=st.tuples(*[st.integers(1, 12)] * 3), data=st.data())
def test_lemma_1_orthogonality_and_energy(seed, dims, data):
    """Π_k are symmetric, idempotent, mutually orthogonal, complete; ‖v‖² = Σ ‖Π_k v‖² for every v."""
    dim = sum(dims)
    pi = projectors(seeded_basis(seed, dim), dims)
    zero, eye = torch.zeros(dim, dim, dtype=torch.float64), torch.eye(dim, dtype=torch.float64)
    exact = {"rtol": 0, "atol": 1e-12}
    for k in range(3):
        torch.testing.assert_close(pi[k], pi[k].mT, **exact)
        assert pi[k].trace().item() == pytest.approx(dims[k], abs=1e-12)
        for j in range(3):
            torch.testing.assert_close(pi[k] @ pi[j], pi[k] if j == k else zero, **exact)
    torch.testing.assert_close(pi.sum(0), eye, **exact)
    v = torch.from_numpy(data.draw(hnp.arrays(np.float64, dim, elements=st.floats(-1e3, 1e3))))
    energy = (pi @ v).square().sum()
    assert energy.item() == pytest.approx(v.square().sum().item(), rel=1e-12, abs=1e-12)


def test_lemma_1_for_encoded_vectors():
    """As the lemma says it: for any encoded vector."""
    v = ValueEncoder()(torch.linspace(0, 1, 101, dtype=torch.float64))
    pi = projectors(seeded_basis(42, 16), (5, 5, 6))
    parts = torch.einsum("kde,ne->nkd", pi, v)
    torch.testing.assert_close(parts.square().sum((-1, -2)), v.square().sum(-1), rtol=1e-13, atol=0)


# --- Corollary 1 -----------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(config=configs(), signals=signal_batches(), half=st.booleans())
def test_corollary_1_consistency_is_a_cosine(config, signals, half):
    if half:
        signals = tuple(s.clamp(0, 1).half() for s in signals)
    alpha = MemoryDecisionLayer(config)(*signals).consistency
    assert ((alpha >= -1) & (alpha <= 1)).all()


@given(
    v=hnp.arrays(np.float32, (2, 16), elements=st.floats(-1e3, 1e3, width=32)),
    scale=st.floats(1e-3, 1e3),
)
def test_corollary_1_for_any_vectors(v, scale):
    """Bounded also where rounding carries a cosine beyond 1: parallel vectors."""
    a, b = torch.from_numpy(v)
    for other in (b, a * scale, -a * scale):
        assert -1 <= consistency(a, other).item() <= 1
    if a.norm() > 1e-3:
        assert consistency(a, a * scale).item() == pytest.approx(1, abs=1e-6)
        assert consistency(a, -a * scale).item() == pytest.approx(-1, abs=1e-6)


def test_consistency_of_a_vector_without_length_is_zero():
    zero, one = torch.zeros(16), torch.ones(16)
    assert consistency(zero, one).item() == consistency(one, zero).item() == consistency(zero, zero).item() == 0


# --- Assumption 1 ----------------------------------------------------------------------------------------------------


def test_assumption_1_fails_on_the_last_four_percent():
    """‖Enc(s)‖ rises up to s = 0.961 and falls by 0.0077 from there to 1."""
    s = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    norms = ValueEncoder()(s).norm(dim=-1)
    falls = norms.diff() < 0
    assert s[:-1][falls].min().item() == pytest.approx(0.9613, abs=1e-3)
    assert not falls[: int(0.96 * 10_000)].any()
    assert falls[int(0.963 * 10_000) :].all()
    assert (norms.max() - norms[-1]).item() == pytest.approx(0.00773, abs=1e-4)


# --- Theorem 1: where in the cube it holds ---------------------------------------------------------------------------


def test_theorem_1_holds_everywhere_for_the_principal_gains(layer, cube, z):
    """As worded, "increasing in the principal gain of each signal": ∂‖v_meta‖/∂s_k > 0 on the whole cube."""
    meta = torch.tanh(z)
    m, r, a = cube
    vectors = layer.encoder(torch.stack((m, r, 1 - a), dim=-1))
    pi = projectors(layer.projection.basis, layer.projection.dims)
    slopes = torch.einsum("...d,kde,...ke->...k", meta * (1 - meta**2), pi, vectors)
    assert slopes.min().item() > 0


@pytest.mark.parametrize(("k", "gain"), list(enumerate((1.0, 0.7, 0.5))))
def test_theorem_1_by_finite_differences(layer, cube, k, gain):
    """The same without its derivative: the gain one percent up, the norm rises at every point of the cube."""
    gains = tuple(g * 1.01 if j == k else g for j, g in enumerate((1.0, 0.7, 0.5)))
    raised = MemoryDecisionLayer(MDLConfig(subspace_gains=gains))
    rise = raised.represent(*cube).meta.norm(dim=-1) - layer.represent(*cube).meta.norm(dim=-1)
    assert rise.min().item() > 0


def test_theorem_1_fails_for_the_signals(layer, cube):
    """Read as "C increases as the signals strengthen" it fails, mostly along M."""
    d = layer(*cube)
    assert falling(d.confidence) == pytest.approx([0.2501, 0.0129, 0.0005], abs=5e-4)
    assert falling(d.gated_confidence) == pytest.approx([0.2766, 0.0168, 0.0006], abs=5e-4)


def test_the_fall_is_of_a_size_that_matters(layer, cube):
    """Largest fall of C_final in one step of 1/40; the rise along the same step is up to 0.033."""
    worst = [step.min().item() for step in steps(layer(*cube).gated_confidence)]
    assert worst == pytest.approx([-0.00373, -0.00065, -0.00032], abs=1e-5)


def test_saturation_is_not_the_cause(z):
    """Without tanh the norm still falls with rising M on 26.5% of the steps: the subspaces are, not the compression."""
    assert falling(z.norm(dim=-1)) == pytest.approx([0.2654, 0.0123, 0.0], abs=5e-4)


def test_how_much_of_the_cube_is_saturated(z):
    """No point has all components within |z| < 0.8, so none lies in a band where tanh is linear to better than 18%."""
    largest = z.abs().amax(-1)
    assert (largest.min().item(), largest.max().item()) == pytest.approx((0.8001, 2.3094), abs=1e-3)
    shares = [(z.abs() > bound).double().mean().item() for bound in (0.5, 1.0, 1.5, 2.0)]
    assert shares == pytest.approx([0.795, 0.337, 0.061, 0.010], abs=1e-3)
    halved = (1 - torch.tanh(z) ** 2 < 0.5).double().mean().item()
    assert halved == pytest.approx(0.448, abs=1e-3)


@pytest.mark.parametrize(
    ("bound", "share", "fails"),
    [(1.0, 0.0369, [0.0083, 0, 0]), (1.5, 0.5271, [0.0988, 0.0091, 0]), (2.0, 0.8615, [0.1756, 0.0150, 0.0001])],
)
def test_within_a_band_of_tanh(layer, cube, z, bound, share, fails):
    """Of steps with both ends in max|z| < bound. A narrower band has rarer falls of ‖v_meta‖, and less of the cube."""
    inside = z.abs().amax(-1) < bound
    norm = layer.represent(*cube).meta.norm(dim=-1)
    assert inside.double().mean().item() == pytest.approx(share, abs=1e-3)
    rates = []
    for dim, step in enumerate(steps(norm)):
        both = inside.narrow(dim, 1, POINTS - 1) & inside.narrow(dim, 0, POINTS - 1)
        rates.append(((step < 0) & both).sum().item() / both.sum().item())
    assert rates == pytest.approx(fails, abs=5e-4)


def test_along_risk_the_layer_is_nearly_monotone(layer, cube):
    """What users lean on most: more risk, less confidence. It rises on 0.06% of the steps, by at most 0.0003."""
    rises = layer(*cube).gated_confidence.diff(dim=2)
    assert (rises > 0).double().mean().item() == pytest.approx(0.00055, abs=1e-4)
    assert rises.max().item() < 0.00033
