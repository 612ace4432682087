"""What is compared: ways from a question and its memory store to an answer (the paper's Table 3).

A system is a small class with a name and one generator: it yields prompts, gets the model's completions, and returns
its answer. How prompts are batched, sampled, stored and resumed is no concern of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mdl_torch.generation.prompts import Prompt, ask, background, inject
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    from mdl_torch.evaluation.questions import Question
    from mdl_torch.generation.backend import Completion
    from mdl_torch.records import DecisionRecord
    from mdl_torch.retrieval import Retrieval

ABSTENTION = "I don't know."
"""What a system says that abstains without asking the model."""


@dataclass(frozen=True)
class Item:
    """What a system answers: a question, its memory store, and the decision of the system's gate.

    Attributes:
        question: The question, with its references, which a system must not look at.
        store: The retrieval that was decided on.
        decision: Of the system's own gate, or of the paper's for a system without one, which ignores it.
    """

    question: Question
    store: Retrieval
    decision: DecisionRecord

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
        notes: Anything to count: grades, regenerations, parse failures.
    """

    text: str
    injected: bool
    notes: dict[str, str | int | float] = field(default_factory=dict)


Steps = Generator[Prompt, "Completion", Answer]
"""Yields prompts, is sent their completions, and returns the answer."""


class System(ABC):
    """A way to an answer.

    Attributes:
        name: In tables and records.
        gate: Name of the gate whose decision it follows: a key of the experiment's gates; None if it follows none.
    """

    name: str
    gate: str | None = None

    @abstractmethod
    def answer(self, item: Item) -> Steps:
        """The steps to an answer."""


class NoMemory(System):
    """B1: the model alone."""

    name = "b1"

    def answer(self, item: Item) -> Steps:
        """One prompt, the question alone."""
        completion = yield ask(item.question.text)
        return Answer(completion.text, injected=False)


class StandardRAG(System):
    """B2: every memory of the store goes into the prompt."""

    name = "b2"

    def answer(self, item: Item) -> Steps:
        """One prompt with all memories."""
        completion = yield inject(item.question.text, item.memories)
        return Answer(completion.text, injected=bool(item.memories))


class MemoryDecision(System):
    """B3: the controller decides whether the memories go in, as background, not at all, or whether to abstain.

    Args:
        name: In tables and records.
        gate: Name of its gate.
    """

    def __init__(self, name: str = "b3", gate: str = "paper") -> None:
        self.name, self.gate = name, gate

    def answer(self, item: Item) -> Steps:
        """One prompt, or none if it abstains."""
        action = item.decision.action
        if action == Action.OPT_OUT:
            return Answer(ABSTENTION, injected=False)
        if action == Action.SILENT or not item.memories:
            completion = yield ask(item.question.text)
            return Answer(completion.text, injected=False)
        prompt = inject if action == Action.ACTIVE else background
        completion = yield prompt(item.question.text, item.memories)
        return Answer(completion.text, injected=True)


class AlwaysAbstain(System):
    """No answer at all: what a hallucination rate of zero costs."""

    name = "abstain"

    def answer(self, item: Item) -> Steps:
        """No prompt."""
        return Answer(ABSTENTION, injected=False)
        yield  # a generator, though it asks nothing


SYSTEMS: dict[str, Callable[[], System]] = {
    "b1": NoMemory,
    "b2": StandardRAG,
    "b3": MemoryDecision,
    "certified": lambda: MemoryDecision("certified", "certified"),
    "ensemble": lambda: MemoryDecision("ensemble", "ensemble"),
    "abstain": AlwaysAbstain,
}
"""Every system by its name. See CONTRIBUTING.md for how to add one."""
