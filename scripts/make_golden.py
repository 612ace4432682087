"""Write tests/golden/decisions.json: the oracle on a grid of signals, as the paper and with every ablation."""

from __future__ import annotations

import dataclasses
import json
import sys
from itertools import product
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from oracle import Oracle  # noqa: E402  (tests are no package)

AXIS = (0.0, 0.35, 0.7, 0.97, 1.0)
"""Few and uneven: between and on the centres, and on the last stretch, where the encoder's norm falls."""

ABLATIONS = ("alpha_gate", "risk_modulation", "orthogonal_subspaces", "risk_inversion", "value_encoding")


def variant(oracle: Oracle, signals: np.ndarray) -> dict[str, list[float]]:
    """What one variant makes of all signals."""
    confidence, consistency, gated, action = oracle.decide(*signals)
    return {
        "norm_range": [float(n) for n in oracle.exact_range()],
        "gain": oracle.channels(signals[0], signals[2])[2].tolist(),
        "norm": oracle.norm(*signals).tolist(),
        "confidence": confidence.tolist(),
        "consistency": consistency.tolist(),
        "gated_confidence": gated.tolist(),
        "action": action.tolist(),
    }


if __name__ == "__main__":
    rows = list(product(AXIS, repeat=3))
    signals = np.array(rows).T
    variants = {"paper": Oracle(), **{name: dataclasses.replace(Oracle(), **{name: False}) for name in ABLATIONS}}
    golden = {"signals": rows, "variants": {name: variant(oracle, signals) for name, oracle in variants.items()}}
    target = TESTS / "golden" / "decisions.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(golden, separators=(",", ":")) + "\n", "utf-8")
    print(f"wrote {target}: {len(rows)} signals, {len(variants)} variants")
