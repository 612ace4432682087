"""Synthetic answers, pairs and runs of which every figure is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mdl_torch.analysis.samples import Pairs, Samples
from mdl_torch.analysis.study import Study
from mdl_torch.evaluation.oracle import PairedOracle
from mdl_torch.evaluation.results import Run
from mdl_torch.outputs import Action


def samples(
    signals,
    adopt,
    questions=None,
    seeds=None,
    systems=None,
    *,
    categories=None,
    injected=None,
    abstained=None,
    actions=None,
) -> Samples:
    """Answers with these labels; unless said otherwise of B2, each to a question of its own, none an abstention.

    The rest follows: memories are in all prompts but B1's, and an answer hallucinates where its label says so.
    """
    adopt = np.asarray(adopt, np.bool_).reshape(-1)
    n = len(adopt)
    systems = np.full(n, "b2") if systems is None else np.asarray(systems, np.str_)
    injected = systems != "b1" if injected is None else np.asarray(injected, np.bool_)
    abstained = np.zeros(n, np.bool_) if abstained is None else np.asarray(abstained, np.bool_)
    actions = np.where(injected, Action.ACTIVE, Action.SILENT) if actions is None else actions
    hallucinated = injected != adopt
    return Samples(
        questions=np.array([f"q{i}" for i in range(n)] if questions is None else questions, np.str_),
        seeds=np.zeros(n, np.int64) if seeds is None else np.asarray(seeds, np.int64),
        systems=systems,
        categories=np.full(n, "") if categories is None else np.asarray(categories, np.str_),
        signals=np.asarray(signals, np.float64).reshape(-1, 3),
        injected=injected,
        hallucinated=hallucinated,
        correct=~hallucinated & ~abstained,
        abstained=abstained,
        adopt=adopt,
        actions=np.asarray(actions, np.int8),
    )


def pairs(signals, oracle, questions=None, seeds=None) -> Pairs:
    """Pairs of which these are told, by name or member; unless said otherwise each of a question of its own."""
    n = len(oracle)
    return Pairs(
        questions=np.array([f"q{i}" for i in range(n)] if questions is None else questions, np.str_),
        seeds=np.zeros(n, np.int64) if seeds is None else np.asarray(seeds, np.int64),
        signals=np.asarray(signals, np.float64).reshape(-1, 3),
        oracle=tuple(PairedOracle(told) for told in oracle),
    )


def study(samples, split=None, layers=None, pairs=None, records=()) -> Study:
    """A run with these; without a split, layers, pairs or records unless they are given."""
    questions, systems, seeds = (
        list(dict.fromkeys(column.tolist())) for column in (samples.questions, samples.systems, samples.seeds)
    )
    description = {
        "experiment": {
            "data": "synthetic",
            "systems": systems,
            "seeds": seeds,
            "model": {"kind": "synthetic"},
            "calibration": "fit",
        },
        "backend": "synthetic",
        "label": "00000000",
        "gates": {name: {} for name in layers or {}},
        "evaluated_questions": questions,
        "calibration_keys": [],
    }
    nothing = samples.where(np.zeros(len(samples), np.bool_))
    return Study(
        run=Run(folder=Path("synthetic"), description=description, environment={}, records=tuple(records)),
        samples=samples,
        pairs=Pairs.from_records([]) if pairs is None else pairs,
        split=nothing if split is None else split,
        layers=dict(layers or {}),
    )
