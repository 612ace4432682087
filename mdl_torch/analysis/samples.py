"""The records of a run as columns, with what the oracles say of them (Section 5.3): every analysis begins here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mdl_torch.evaluation.oracle import PairedOracle, oracle_adopts, paired_oracle, signals_of
from mdl_torch.evaluation.scoring import Outcome
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

POOLED = ("b1", "b2", "b3")
"""Systems whose answers the paper pools (Section 5.3)."""

FAVOURED = (
    "B3's labels follow from what the full controller did, which favours it, and whatever decides alike; those of B1"
    " and B2 do not."
)
"""What has to be said of every figure over pooled answers."""


@dataclass(frozen=True)
class Samples:
    """Answers that the paper's oracle labels, a row each.

    An answer is labelled by what came of it: where memories were injected, a hallucination says that they should have
    been rejected and anything else that they could be adopted; where none were, the other way round. Empty outputs and
    answers that were not scored are no rows.

    Attributes:
        questions: Ids, text ``(n,)``.
        seeds: Of the answers, int ``(n,)``.
        systems: Names, text ``(n,)``.
        categories: Of the questions, text ``(n,)``; empty where there is none.
        signals: M, R and A that were decided on, float64 ``(n, 3)`` in [0, 1].
        injected: Whether memories were in the prompt, bool ``(n,)``.
        hallucinated: Whether the answer is a hallucination, bool ``(n,)``.
        correct: Whether it says what a correct reference says, bool ``(n,)``.
        abstained: Whether it is an abstention, of the gate or in the model's words, bool ``(n,)``.
        adopt: The paper's oracle, bool ``(n,)``.
        actions: Of the gate that the record names, ``Action`` values, int8 ``(n,)``: its system's own, or the paper's.
    """

    questions: NDArray[np.str_]
    seeds: NDArray[np.int64]
    systems: NDArray[np.str_]
    categories: NDArray[np.str_]
    signals: Floats
    injected: Bools
    hallucinated: Bools
    correct: Bools
    abstained: Bools
    adopt: Bools
    actions: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.questions)

    def where(self, chosen: Bools | NDArray[np.int64]) -> Self:
        """The rows that a mask or a list of places chooses."""
        return replace(self, **{name: column[chosen] for name, column in vars(self).items()})

    def of(self, *systems: str) -> Self:
        """The rows of some systems."""
        return self.where(np.isin(self.systems, systems))

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]], systems: tuple[str, ...] = POOLED) -> Self:
        """The labelled answers of some systems, in the order of the records.

        Args:
            records: Of ``mdl evaluate``.
            systems: Names.

        Example:
            >>> decision = {"relevance": 0.8, "reliability": 0.5, "risk": 0.2, "action": "active"}
            >>> record = {"system": "b2", "question_id": "q", "seed": 0, "category": None, "decision": decision,
            ...           "injected": True, "outcome": "hallucination"}
            >>> found = Samples.from_records([record, {**record, "outcome": "empty"}])
            >>> found.adopt.tolist(), found.signals.tolist()
            ([False], [[0.8, 0.5, 0.2]])
        """
        rows = []
        for record in records:
            if record["system"] not in systems or record["outcome"] is None:
                continue
            adopt = oracle_adopts(Outcome(record["outcome"]), injected=bool(record["injected"]))
            if adopt is not None:
                rows.append((record, adopt))
        outcomes = [Outcome(record["outcome"]) for record, _ in rows]
        return cls(
            questions=np.array([record["question_id"] for record, _ in rows], np.str_),
            seeds=np.array([record["seed"] for record, _ in rows], np.int64),
            systems=np.array([record["system"] for record, _ in rows], np.str_),
            categories=np.array([record.get("category") or "" for record, _ in rows], np.str_),
            signals=np.array([signals_of(record) for record, _ in rows], np.float64).reshape(-1, 3),
            injected=np.array([bool(record["injected"]) for record, _ in rows], np.bool_),
            hallucinated=np.array([outcome is Outcome.HALLUCINATION for outcome in outcomes], np.bool_),
            correct=np.array([outcome is Outcome.CORRECT for outcome in outcomes], np.bool_),
            abstained=np.array([outcome is Outcome.ABSTENTION for outcome in outcomes], np.bool_),
            adopt=np.array([adopt for _, adopt in rows], np.bool_),
            actions=np.array([Action[record["decision"]["action"].upper()] for record, _ in rows], np.int8),
        )


@dataclass(frozen=True)
class Pairs:
    """Questions that B1 and B2 both answered at a seed, with what the two outcomes tell together.

    Attributes:
        questions: Ids, text ``(n,)``.
        seeds: int ``(n,)``.
        signals: M, R and A, float64 ``(n, 3)``.
        oracle: What the pair tells, ``(n,)``.
    """

    questions: NDArray[np.str_]
    seeds: NDArray[np.int64]
    signals: Floats
    oracle: tuple[PairedOracle, ...]

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def telling(self) -> Bools:
        """Where the pair makes a difference, bool ``(n,)``."""
        return np.array([found.adopt is not None for found in self.oracle], np.bool_)

    @property
    def adopt(self) -> Bools:
        """Whether only B2 was safe, bool ``(n,)``; to be read where the pair is ``telling``."""
        return np.array([found is PairedOracle.ONLY_B2 for found in self.oracle], np.bool_)

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> Self:
        """The pairs of a run, in the order of B1's records."""
        sides: dict[str, dict[tuple[str, int], Mapping[str, Any]]] = {"b1": {}, "b2": {}}
        for record in records:
            if record["system"] in sides and record["outcome"] is not None:
                sides[record["system"]][record["question_id"], record["seed"]] = record
        rows = []
        for slot, first in sides["b1"].items():
            if (second := sides["b2"].get(slot)) is not None:
                told = paired_oracle(Outcome(first["outcome"]), Outcome(second["outcome"]))
                if told is not None:
                    rows.append((slot, first, told))
        return cls(
            questions=np.array([question for (question, _), _, _ in rows], np.str_),
            seeds=np.array([seed for (_, seed), _, _ in rows], np.int64),
            signals=np.array([signals_of(first) for _, first, _ in rows], np.float64).reshape(-1, 3),
            oracle=tuple(told for _, _, told in rows),
        )
