"""Synthetic answers, pairs and runs of which every figure is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

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


RIGHT = {
    0: ("111", "110", "000", "100"),
    1: ("111", "111", "111", "101"),
    2: ("000", "100", "110", "100"),
}
"""Whether a decision by each signal is right, of three answers to each of four questions."""

RIGHT_TOGETHER = {0: ("11", "10", "11"), 1: ("00", "11", "01"), 2: ("00", "11", "10")}
"""The same of two pairs to each of three questions."""


def adopts_by(column: int):
    """A layer that is Active where one signal is above a half, and else Silent."""

    def layer(*signals):
        return SimpleNamespace(action=torch.where(signals[column] > 0.5, Action.ACTIVE, Action.SILENT).to(torch.int8))

    return layer


def three_answers_a_question(layers=None) -> Study:
    """Four questions with an answer each of B1, B2 and B3, and three with pairs at two seeds, as ``RIGHT`` says.

    Labels of answers are adopt, reject, adopt, …; those of pairs too. Each question has a pair that tells nothing, too.
    """
    adopt, adopt_together = np.arange(12) % 2 == 0, np.arange(6) % 2 == 0
    flags, flags_together = (
        np.array([[letter == "1" for letter in "".join(right[column])] for column in range(3)]).T
        for right in (RIGHT, RIGHT_TOGETHER)
    )
    names = [f"q{i}" for i in range(4)]
    told = samples(
        np.where(flags == adopt[:, None], 0.9, 0.1),
        adopt,
        questions=np.repeat(names, 3),
        systems=["b1", "b2", "b3"] * 4,
    )
    both = pairs(
        np.vstack([np.where(flags_together == adopt_together[:, None], 0.9, 0.1), np.full((3, 3), 0.9)]),
        ["only_b2", "only_b1"] * 3 + ["neither", "both_safe", "neither"],
        questions=[*np.repeat(names[:3], 2), *names[:3]],
        seeds=[0, 1] * 3 + [2] * 3,
    )
    return study(told, split=told, layers=layers, pairs=both)
