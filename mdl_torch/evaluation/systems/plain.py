"""The paper's own three, B1, B2 and B3, and the one that never answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdl_torch.evaluation.systems.base import ABSTENTION, Answer, System
from mdl_torch.generation.prompts import ask, background, inject
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    from mdl_torch.evaluation.systems.base import Item, Steps


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
