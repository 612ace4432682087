"""Self-RAG, prompt-based: draft with the memories, check the draft, and answer without them if it fails (Table 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdl_torch.evaluation.systems.base import Answer, System
from mdl_torch.generation.forms import READING
from mdl_torch.generation.prompts import ask, critique, inject, wording_digest

if TYPE_CHECKING:
    from mdl_torch.evaluation.systems.base import Item, Steps


class SelfRAG(System):
    """Self-reflective RAG on the same model and store: two calls, and a third where the draft is thrown away.

    The model drafts an answer with all memories (B2's prompt), then fills in the reflection tokens ISREL (do the
    memories bear on the question?), ISSUP (do they bear out the draft?) and ISUSE (is it useful, 5 to 1?). A draft
    whose memories are Irrelevant, or that has No support, is thrown away, and the model answers from its own knowledge.
    ISUSE is counted and decides nothing, since there is one draft and none to rank it against. A token that cannot be
    read is counted and condemns nothing. Without memories the draft, B1's answer, stands unchecked.

    The method's authors grade each passage by itself, draft with each, and rank the drafts by the three tokens; here,
    as in the paper, one critique is of the one draft and the whole store.
    """

    name = "self_rag"

    @property
    def identity(self) -> str:
        """The wording of its prompts."""
        return f"{wording_digest(critique('q', ['m'], 'a'))} {READING}"

    def answer(self, item: Item) -> Steps:
        """Draft, critique, and regeneration where it fails."""
        question, memories = item.question.text, item.memories
        draft = yield inject(question, memories)
        if not memories:
            return Answer(draft.text, injected=False, notes={"regenerated": False})
        checked = yield critique(question, memories, draft.text)
        tokens = checked.choices
        regenerated = tokens["ISREL"] == "Irrelevant" or tokens["ISSUP"] == "No support"
        notes = {
            **tokens,
            "tokens not read": sum(label is None for label in tokens.values()),
            "regenerated": regenerated,
        }
        if regenerated:
            final = yield ask(question)
            return Answer(final.text, injected=False, notes=notes)
        return Answer(draft.text, injected=True, notes=notes)
