"""Write the seeded bases that ship, D = 16: Q(42) of the ``paper`` preset, and those of the ``ensemble`` preset.

Each is Q of the QR decomposition in float64 of a seeded Gaussian matrix. A golden test compares.
"""

from pathlib import Path

import numpy as np

from mdl_torch.config import PRESETS, MDLConfig

DATA = Path(__file__).parents[1] / "mdl_torch" / "data"


def basis(seed: int) -> np.ndarray:
    """Q of a seed."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((MDLConfig.dim, MDLConfig.dim)))[0]


if __name__ == "__main__":
    ensemble = PRESETS["ensemble"]
    np.save(DATA / "basis-seed42-dim16.npy", basis(MDLConfig.seed))
    np.save(DATA / "basis-ensemble-dim16.npy", np.stack([basis(ensemble.seed + i) for i in range(ensemble.bases)]))
    print(f"wrote Q({MDLConfig.seed}) and the {ensemble.bases} bases of the ensemble to {DATA}")
