"""Fit the reference calibration: the range of ‖v_meta‖ over the stores of 80 TruthfulQA questions (Section 3.4).

Usage: python scripts/make_reference_calibration.py PATH/TO/TruthfulQA.csv

The thresholds stay the paper's (0.6, 0.4, 0.2), since oracle actions need generated answers. The questions are drawn
with a fixed seed and not looked at. How much hangs on the draw is in the file: the action mix on all other questions,
over 200 random draws, overall and at A = 0.85.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sys
from pathlib import Path

import numpy as np

from mdl_torch.calibration import (
    Calibration,
    Shares,
    bootstrap_action_mix,
    config_digest,
    fit_norm_range,
    split_action_mix,
)
from mdl_torch.config import MDLConfig
from mdl_torch.evaluation.stores import truthfulqa_retrievals
from mdl_torch.gate import MemoryGate

TARGET = Path(__file__).parents[1] / "mdl_torch" / "data" / "calibration-reference.json"
SAMPLES, SPLITS, SEED = 80, 200, 0
TOP_RISK = 0.85


def reference_calibration(path: str | Path) -> Calibration:
    """The calibration that ships, fitted anew on a TruthfulQA CSV."""
    every = list(truthfulqa_retrievals(path, seed=SEED))
    drawn = sorted(random.Random(SEED).sample(range(len(every)), SAMPLES))
    gate = MemoryGate.from_pretrained(calibration=None)
    decision = gate.decide_batch(
        [r.query or "" for r in every], [r.memories for r in every], category=[r.category for r in every]
    )
    config = MDLConfig()
    norms = decision.norm.double().numpy()
    factors = config.gate[0] + config.gate[1] * decision.consistency.double().numpy()
    top = np.isclose(decision.risk.double().numpy(), TOP_RISK, rtol=0, atol=1e-6)
    low, high = fit_norm_range(norms[drawn])
    bootstrap = functools.partial(bootstrap_action_mix, norms[drawn], factors[drawn], config.thresholds)
    splits = functools.partial(
        split_action_mix, norms, factors, config.thresholds, samples=SAMPLES, splits=SPLITS, seed=SEED
    )
    return Calibration(
        name="reference",
        norm_range=(round(low, 7), round(high, 7)),
        thresholds=config.thresholds,
        range_method="minmax",
        threshold_method="the paper's default (Fig. 4)",
        config=config_digest(config),
        basis=gate.layer.basis,
        encoder=gate.encoder.identity,
        detector=gate.detector.identity,
        dataset=f"{Path(path).name} sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}",
        samples=SAMPLES,
        action_mix=rounded(bootstrap()),
        action_mix_top_risk=rounded(bootstrap(within=top[drawn])),
        provenance={
            "script": "scripts/make_reference_calibration.py",
            "seed": SEED,
            "stores": "all correct and incorrect answers and two distractors",
            "questions": [every[place].id for place in drawn],
            "samples at the top risk": int(top[drawn].sum()),
            "signals": {
                name: [round(v, 4) for v in (t.min().item(), t.mean().item(), t.max().item())]
                for name, t in (("relevance", decision.relevance[drawn]), ("reliability", decision.reliability[drawn]))
            },
            "splits": {
                "what": f"2.5%, 50% and 97.5% of the action mix on the questions that are not among {SAMPLES} drawn",
                "count": SPLITS,
                "questions": len(every),
                "questions at the top risk": int(top.sum()),
                "all": rounded(splits()),
                f"risk {TOP_RISK}": rounded(splits(within=top)),
            },
        },
        signals=tuple(
            (round(m, 7), round(r, 7), round(a, 7))
            for m, r, a in zip(
                decision.relevance[drawn].tolist(),
                decision.reliability[drawn].tolist(),
                decision.risk[drawn].tolist(),
                strict=True,
            )
        ),
    )


def rounded(shares: Shares) -> Shares:
    """Four decimals are plenty for shares of so few."""
    return {action: (round(a, 4), round(b, 4), round(c, 4)) for action, (a, b, c) in shares.items()}


def main(path: str) -> None:
    calibration = reference_calibration(path)
    calibration.save(TARGET)
    print(f"wrote {TARGET}: range {calibration.norm_range}, splits {calibration.provenance['splits']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
