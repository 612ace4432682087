"""What is compared: ways from a question and its memory store to an answer (the paper's Table 3).

A system is a small class with a name and one generator: it yields a prompt, or several that are asked together, gets
the model's completions, and returns its answer. How prompts are batched, sampled, stored and resumed is no concern of
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from mdl_torch.generation.prompts import Prompt

if TYPE_CHECKING:
    from mdl_torch.evaluation.agreement import Likeness
    from mdl_torch.evaluation.questions import Question
    from mdl_torch.records import DecisionRecord
    from mdl_torch.retrieval import Retrieval

ABSTENTION = "I don't know."
"""What a system says that abstains without asking the model."""


Notes = dict[str, str | bool | int | float | None]
"""What a system counts of an answer."""


@dataclass(frozen=True)
class Item:
    """What a system answers: a question, its memory store, and the decision of the system's gate.

    Attributes:
        question: The question, with its references, which a system must not look at.
        store: The retrieval that was decided on.
        decision: Of the system's own gate, or of the paper's for a system without one: its signals are the same.
        compare: Which of several texts are alike, and which contradict each other, by the gate's encoder and detector.
    """

    question: Question
    store: Retrieval
    decision: DecisionRecord
    compare: Callable[[Sequence[str]], Likeness]

    @property
    def memories(self) -> list[str]:
        """The texts of the store, in its order."""
        return [memory.text or "" for memory in self.store.memories]


@dataclass(frozen=True)
class Answer:
    """What a system says in the end.

    Attributes:
        text: The answer.
        injected: Whether memories were in the prompt that it came from.
        notes: Anything to count. The report gives the share of each text and truth value, and the mean of each number.
    """

    text: str
    injected: bool
    notes: Notes = field(default_factory=dict)


Steps = Generator[Prompt | Sequence[Prompt], Any, Answer]
"""Yields a prompt and is sent its completion, or yields a list and is sent a list; returns the answer."""


class System(ABC):
    """A way to an answer.

    Attributes:
        name: In tables and records.
        gate: Name of the gate whose decision it follows: a key of the experiment's gates; None if it follows none.
        learns: Whether it has to be fitted to the outcomes of a calibration split before it can answer.
    """

    name: str
    gate: str | None = None
    learns: bool = False

    @property
    def identity(self) -> str:
        """Names what determines its answers besides its name, its gate and the common prompts; empty if nothing does.

        Prompts of its own, settings, what it was fitted to: records of another identity are not its own.
        """
        return ""

    def fit(self, records: Sequence[Mapping[str, Any]]) -> Self:
        """Fitted to records of B1 and B2 on a calibration split; itself if it does not learn."""
        return self

    def description(self) -> dict[str, Any]:
        """What it has learned, as plain JSON values; empty if it does not learn."""
        return {}

    @abstractmethod
    def answer(self, item: Item) -> Steps:
        """The steps to an answer."""
