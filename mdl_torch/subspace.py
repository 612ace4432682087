"""Stage 2b: each channel's vector is projected with its own subspace weights (Eq. 1)."""

from __future__ import annotations

import functools
import hashlib
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mdl_torch.config import ENSEMBLE_BASES, NAMED_BASES, MDLConfig
from mdl_torch.data import resource
from mdl_torch.stage import Stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHIPPED_BASES: dict[tuple[int, int], tuple[str, int | None]] = {
    **{(MDLConfig.seed + i, MDLConfig.dim): ("basis-ensemble-dim16.npy", i) for i in range(ENSEMBLE_BASES)},
    (42, 16): ("basis-seed42-dim16.npy", None),
}
"""(seed, D) whose Q ships as data, since NumPy does not promise its random stream for ever: the file, and its place."""


@functools.cache
def _shipped(name: str) -> NDArray[np.float64]:
    """The bases of a data file, read once; handed out as copies only."""
    array: NDArray[np.float64] = np.load(BytesIO(resource(name).read_bytes()), allow_pickle=False)
    return array


def seeded_basis(seed: int, dim: int) -> Tensor:
    """Q of the QR decomposition of a seeded Gaussian matrix, float64 ``(D, D)``, in its columns (Algorithm 1, line 5).

    Example:
        >>> q = seeded_basis(42, 16)
        >>> torch.allclose(q.T @ q, torch.eye(16, dtype=torch.float64))
        True
    """
    if (seed, dim) in SHIPPED_BASES:
        name, place = SHIPPED_BASES[seed, dim]
        return torch.from_numpy((_shipped(name) if place is None else _shipped(name)[place]).copy())
    gaussian = np.random.default_rng(seed).standard_normal((dim, dim))
    return torch.from_numpy(np.linalg.qr(gaussian)[0])


def configured_basis(config: MDLConfig) -> Tensor:
    """Q of a configuration, by name or by seed: float64 ``(D, D)``, or ``(n, D, D)`` with n > 1 bases.

    Example:
        >>> configured_basis(MDLConfig()).shape, configured_basis(MDLConfig(bases=3)).shape
        (torch.Size([16, 16]), torch.Size([3, 16, 16]))
    """
    if config.basis is not None:
        return torch.from_numpy(_shipped(NAMED_BASES[config.basis]).copy())
    seeded = [seeded_basis(config.seed + i, config.dim) for i in range(config.bases)]
    return seeded[0] if config.bases == 1 else torch.stack(seeded)


def projectors(basis: Tensor, dims: tuple[int, int, int]) -> Tensor:
    """Π_k = P_k P_kᵀ, with P_k the k-th block of columns of Q: ``(*, D, D)`` to ``(*, 3, D, D)``.

    They are symmetric, idempotent, mutually orthogonal, and add up to I (Lemma 1).

    Example:
        >>> projectors(torch.eye(3), (1, 1, 1)).sum(0)
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
    """
    return torch.stack([block @ block.mT for block in basis.split(dims, dim=-1)], dim=-3)


def subspace_weights(basis: Tensor, dims: tuple[int, int, int], gains: Tensor, leakage: Tensor | float) -> Tensor:
    """W_k = s_k Π_k + ε_c Σ_{j≠k} Π_j (Eq. 1): ``(*, 3, D, D)``.

    Args:
        basis: Q, ``(*, D, D)``.
        dims: Dimensions of the three subspaces.
        gains: s, ``(3,)``.
        leakage: ε_c.

    Example:
        >>> subspace_weights(torch.eye(3), (1, 1, 1), torch.tensor([1.0, 0.7, 0.5]), 0.1)[1].diagonal()
        tensor([0.1000, 0.7000, 0.1000])
    """
    pi = projectors(basis, dims)
    return gains[:, None, None] * pi + leakage * (pi.sum(-3, keepdim=True) - pi)


def _rebuild(module: SubspaceProjection, _: object) -> None:
    """The load hook; a function, since a lambda would keep the module from being pickled to worker processes."""
    module.rebuild()


class SubspaceProjection(Stage):
    """The three channel vectors, each times its weights: W_k v_k.

    The basis Q is the state; the weights follow from it and are rebuilt when a state is loaded. With
    ``orthogonal_subspaces`` off it is the ablation W_k = s_k·I. With several bases each projects all of the vectors.

    Example:
        >>> SubspaceProjection()(torch.ones(2, 3, 16)).shape
        torch.Size([2, 3, 16])
        >>> SubspaceProjection(MDLConfig(bases=4))(torch.ones(2, 1, 3, 16)).shape
        torch.Size([2, 4, 3, 16])
    """

    basis: Tensor
    gains: Tensor
    leakage: Tensor
    weights: Tensor

    def __init__(self, config: MDLConfig | None = None) -> None:
        super().__init__()
        config = config or MDLConfig()
        self.dims = config.subspace_dims
        self.orthogonal = config.orthogonal_subspaces
        self.fixed("basis", configured_basis(config))
        self.fixed("gains", config.subspace_gains)
        self.fixed("leakage", config.cross_leakage)
        self.fixed("weights", self.weights_of_basis(), persistent=False)
        self.register_load_state_dict_post_hook(_rebuild)

    def weights_of_basis(self) -> Tensor:
        """The weights that follow from basis, gains and leakage as they are now."""
        if self.orthogonal:
            return subspace_weights(self.basis, self.dims, self.gains, self.leakage)
        eye = torch.eye(self.basis.shape[-1], dtype=self.basis.dtype, device=self.basis.device)
        return self.gains[:, None, None] * eye.expand_as(self.basis).unsqueeze(-3)

    def rebuild(self) -> None:
        """Recompute the weights from basis, gains and leakage, after one of them was changed in place."""
        self.weights = self.weights_of_basis()

    def forward(self, vectors: Tensor) -> Tensor:
        """``(*, 3, D)`` channel vectors to ``(*, 3, D)`` projected ones; ``(*, 1, 3, D)`` to ``(*, n, 3, D)``."""
        return torch.einsum("...kd,...ked->...ke", vectors, self.weights.to(vectors.dtype))

    def fingerprint(self) -> str:
        """Eight hex digits that name the basis or bases, the same wherever its QR decomposition was computed.

        Taken from the projectors, which do not depend on the signs that a QR decomposition happens to choose.
        """
        pi = projectors(self.basis.detach().cpu(), self.dims)
        rounded = np.round(pi.numpy(), 8) + 0.0  # no negative zero
        return hashlib.sha256(rounded.tobytes()).hexdigest()[:8]
