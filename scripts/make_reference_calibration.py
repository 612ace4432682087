"""Fit the reference calibration: the range of ‖v_meta‖ over the stores of 80 TruthfulQA questions (Section 3.4).

Usage: python scripts/make_reference_calibration.py PATH/TO/TruthfulQA.csv

The thresholds stay the paper's (0.6, 0.4, 0.2), since oracle actions need generated answers. The questions are drawn
with a fixed seed and not looked at; the bootstrap interval in the file says how much hangs on the draw.
"""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

from mdl_torch.calibration import Calibration, bootstrap_action_mix, config_digest, fit_norm_range
from mdl_torch.config import MDLConfig
from mdl_torch.evaluation.questions import load_truthfulqa
from mdl_torch.evaluation.stores import stores
from mdl_torch.gate import MemoryGate

SAMPLES, SEED = 80, 0


def main(path: str) -> None:
    target = Path(__file__).parents[1] / "mdl_torch" / "data" / "calibration-reference.json"
    questions = load_truthfulqa(path)
    drawn = sorted(random.Random(SEED).sample(range(len(questions)), SAMPLES))
    every = list(stores(questions, seed=SEED))
    split = [every[place] for place in drawn]
    gate = MemoryGate.from_pretrained(calibration=None)
    decision = gate.decide_batch(
        [r.query or "" for r in split], [r.memories for r in split], category=[r.category for r in split]
    )
    config = MDLConfig()
    norms = decision.norm.double().numpy()
    factors = config.gate[0] + config.gate[1] * decision.consistency.double().numpy()
    low, high = fit_norm_range(norms)
    calibration = Calibration(
        name="reference",
        norm_range=(round(low, 7), round(high, 7)),
        thresholds=config.thresholds,
        range_method="minmax",
        threshold_method="the paper's default (Fig. 4)",
        config=config_digest(config),
        basis=gate.layer.basis,
        encoder=gate.encoder.identity,
        detector=gate.detector.name,
        dataset=f"{Path(path).name} sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}",
        samples=SAMPLES,
        action_mix={
            action: tuple(round(share, 4) for share in shares)
            for action, shares in bootstrap_action_mix(norms, factors, config.thresholds).items()
        },
        provenance={
            "script": "scripts/make_reference_calibration.py",
            "seed": SEED,
            "stores": "all correct and incorrect answers and two distractors",
            "questions": [retrieval.id for retrieval in split],
            "signals": {
                name: [round(v, 4) for v in (t.min().item(), t.mean().item(), t.max().item())]
                for name, t in (("relevance", decision.relevance), ("reliability", decision.reliability))
            },
        },
    )
    calibration.save(target)
    print(f"wrote {target}: range {calibration.norm_range}, action mix {calibration.action_mix}")


if __name__ == "__main__":
    main(*sys.argv[1:])
