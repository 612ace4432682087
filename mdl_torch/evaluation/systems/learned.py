"""Supervised controllers as systems: trained on the outcomes of a calibration split, they let memories in or not."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mdl_torch.errors import unknown_name
from mdl_torch.evaluation.controllers import CONTROLLERS
from mdl_torch.evaluation.oracle import ADOPT, REJECT, labelled, signals_of
from mdl_torch.evaluation.systems.base import Answer, System
from mdl_torch.generation.prompts import ask, inject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mdl_torch.evaluation.controllers import Controller
    from mdl_torch.evaluation.systems.base import Item, Notes, Steps


class LearnedDecision(System):
    """Adopts, and answers as B2, or rejects, and answers as B1: as its controller decides on (M, R, A).

    It has no Supp and does not abstain: the oracle's labels, which it learns from, know adopt and reject only. Adopting
    an empty store is asking the model alone.

    Args:
        name: Of the controller, in ``CONTROLLERS``; that of the system, too.

    Raises:
        ValueError: There is no such controller.

    Example:
        >>> signals = {"relevance": 0.8, "reliability": 0.5, "risk": 0.2}
        >>> b1 = {"system": "b1", "decision": signals, "outcome": "hallucination", "injected": False}
        >>> b2 = {"system": "b2", "decision": signals, "outcome": "correct", "injected": True}
        >>> fitted = LearnedDecision("majority_class").fit([b1, b2])
        >>> fitted.description()["learned"]
        {'constant': 1.0}
    """

    learns = True

    def __init__(self, name: str) -> None:
        if name not in CONTROLLERS:
            raise ValueError(unknown_name("controller", name, CONTROLLERS))
        self.name = name
        self._controller: Controller | None = None
        self._identity = "not fitted"
        self._description: dict[str, Any] = {}

    @property
    def identity(self) -> str:
        """Names settings, library and training rows, whose order does not matter."""
        return self._identity

    def fit(self, records: Sequence[Mapping[str, Any]]) -> Self:
        """Another one, fitted to what the oracle says of B1 and B2; records of other systems are left aside.

        Args:
            records: Of ``mdl evaluate`` on a calibration split. Those that the oracle says nothing of, as their answer
                is empty or not scored, are left out.

        Raises:
            ValueError: There are no records of B1 and B2, none with a label, or signals are not finite or out of range.
            ImportError: The controller's library is not installed.
        """
        used, labels = labelled(records)
        signals, adopt = [signals_of(record) for record in used], np.array(labels)
        controller = CONTROLLERS[self.name]().fit(signals, adopt)
        method = {"controller": self.name, "settings": controller.settings, "library": controller.library}
        fitted = copy.copy(self)
        fitted._controller = controller
        fitted._identity = _digest(method, sorted(zip(signals, adopt.tolist(), strict=True)))
        fitted._description = {
            **method,
            "rows": len(used),
            "share of adopt": round(float(adopt.mean()), 4),
            "agreement with the oracle": round(float(np.mean(controller.adopts(signals) == adopt)), 4),
            "parameters": controller.parameters,
            "learned": controller.learned,
        }
        return fitted

    def description(self) -> dict[str, Any]:
        """What it has learned: training rows, their share of adopt, the agreement on them, what was fitted."""
        return copy.deepcopy(self._description)

    def answer(self, item: Item) -> Steps:
        """One prompt.

        Raises:
            RuntimeError: It is not fitted.
        """
        if self._controller is None:
            raise RuntimeError(f"system {self.name!r} is not fitted: answer with what fit(records) returns")
        decision = item.decision
        signals = [(decision.relevance, decision.reliability, decision.risk)]
        adopt, probability = bool(self._controller.adopts(signals)[0]), float(self._controller.probability(signals)[0])
        return _answer(item, adopt=adopt, probability=probability)


def _answer(item: Item, *, adopt: bool, probability: float) -> Steps:
    memories = item.memories if adopt else []
    completion = yield inject(item.question.text, memories) if memories else ask(item.question.text)
    notes: Notes = {"decision": ADOPT if adopt else REJECT, "probability": round(probability, 6)}
    return Answer(completion.text, injected=bool(memories), notes=notes)


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
