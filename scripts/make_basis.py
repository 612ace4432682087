"""Write the shipped basis Q(42), D = 16: QR in float64 of a seeded Gaussian matrix. A golden test compares."""

from pathlib import Path

import numpy as np

target = Path(__file__).parents[1] / "mdl_torch" / "data" / "basis-seed42-dim16.npy"
np.save(target, np.linalg.qr(np.random.default_rng(42).standard_normal((16, 16)))[0])
print(f"wrote {target}")
