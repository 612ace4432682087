"""CRAG, prompt-based: grade every memory, then use them, do without, or weigh them with caution (Table 3)."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Literal

from mdl_torch.errors import unknown_name
from mdl_torch.evaluation.systems.base import Answer, System
from mdl_torch.generation.forms import READING
from mdl_torch.generation.prompts import GRADE, ask, combine, grade, inject, wording_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdl_torch.evaluation.systems.base import Item, Notes, Steps
    from mdl_torch.generation.backend import Completion

Rule = Literal["any", "unanimous"]

_GRADE = GRADE.fields[0].name
CORRECT, INCORRECT, AMBIGUOUS = GRADE.fields[0].labels

STRIPS = 3
"""Fewest sentences of a memory that is taken apart."""


class CRAG(System):
    """Corrective RAG on the same model and store, with the model's own knowledge in the place of a web search.

    The evaluator grades every memory Correct, Incorrect or Ambiguous, one call each. From the grades follows what is
    done with the store:

    - **Correct**: refine and generate. Of the memories graded Correct, those of three sentences or more are taken
      apart and each sentence is graded; what is not Correct is left out (all of a memory stays if nothing of it would).
      The model answers with what remains.
    - **Incorrect**: the model answers from its own knowledge.
    - **Ambiguous**: the model answers from its own knowledge, and then again, with that answer and all memories but
      the Incorrect ones before it, and a caution.

    A store is Incorrect if every memory is. By the rule ``any``, that of the method's authors, it is Correct if at
    least one memory is; by ``unanimous``, if all are; else it is Ambiguous. A grade that cannot be read is neither
    Correct nor Incorrect: a store whose action hangs on it is handled as Ambiguous, but counted as undecided.

    Three things are not as the authors have them: grades ask whether a memory answers the question rightly, where their
    evaluator scores relevance; only memories graded Correct are refined; and two sentences are one strip, since most
    memories that seem to have two have an initial or an abbreviation.

    Args:
        name: In tables and records.
        rule: ``any`` or ``unanimous``.

    Raises:
        ValueError: The rule is unknown.

    Example:
        >>> CRAG("crag").action(["Correct", "Incorrect", None]), CRAG("crag", "unanimous").action(["Correct", None])
        ('Correct', 'Ambiguous')
    """

    def __init__(self, name: str = "crag", rule: Rule = "any") -> None:
        if rule not in ("any", "unanimous"):
            raise ValueError(unknown_name("rule", rule, ("any", "unanimous")))
        self.name, self.rule = name, rule

    @property
    def identity(self) -> str:
        """Its rule and the wording of its prompts."""
        return f"{self.rule} {wording_digest(grade('q', 'm'), combine('q', ['m'], 'a'))} {READING} {STRIPS}"

    def action(self, grades: Sequence[str | None]) -> str:
        """What is to be done with a store: one of the grades.

        Args:
            grades: Of its memories; None where one could not be read.
        """
        given = set(grades)
        if given == {CORRECT} or (self.rule == "any" and CORRECT in given):
            return CORRECT
        return INCORRECT if given <= {INCORRECT} else AMBIGUOUS

    def _certain(self, grades: Sequence[str | None]) -> bool:
        """Whether the action is the same whatever the grades are that could not be read."""
        filled = ([given or label for given in grades] for label in (CORRECT, INCORRECT, AMBIGUOUS))
        return {self.action(every) for every in filled} == {self.action(grades)}

    def answer(self, item: Item) -> Steps:
        """A grade a memory, then what the action asks for."""
        question, memories = item.question.text, item.memories
        graded: list[Completion] = yield [grade(question, memory) for memory in memories]
        grades = [_grade(completion) for completion in graded]
        counts = Counter(grades)
        action = self.action(grades)
        notes: Notes = {
            "action": action if self._certain(grades) else "undecided",
            **{f"memories graded {label}": counts[label] for label in (CORRECT, INCORRECT, AMBIGUOUS)},
            "grades not read": counts[None],
            "strips": 0,
        }
        if not memories:
            notes["action"] = "no memories"
        if known := [found.probabilities[_GRADE][CORRECT] for found in graded if found.probabilities]:
            notes["mean P(Correct)"] = round(sum(known) / len(known), 6)
        if action == CORRECT:
            kept = [memory for memory, given in zip(memories, grades, strict=True) if given == CORRECT]
            parts = [_sentences(memory) for memory in kept]
            strips = [strip for strips in parts if len(strips) >= STRIPS for strip in strips]
            judged: list[Completion] = yield [grade(question, strip) for strip in strips]
            good = {strip for strip, found in zip(strips, judged, strict=True) if _grade(found) == CORRECT}
            refined = [
                " ".join(s for s in strips if s in good) or memory for strips, memory in zip(parts, kept, strict=True)
            ]
            notes["grades not read"] = counts[None] + sum(_grade(found) is None for found in judged)
            completion = yield inject(question, refined)
            notes["strips"] = len(strips)
            return Answer(completion.text, injected=True, notes=notes)
        own = yield ask(question)
        if action == INCORRECT:
            return Answer(own.text, injected=False, notes=notes)
        doubtful = [memory for memory, given in zip(memories, grades, strict=True) if given != INCORRECT]
        completion = yield combine(question, doubtful, own.text)
        return Answer(completion.text, injected=True, notes=notes)


def _grade(completion: Completion) -> str | None:
    return completion.choices[_GRADE]


def _sentences(text: str) -> list[str]:
    """A memory in strips, a sentence each."""
    return [part for part in re.split(r"(?<=[.!?])\s+(?=\S)", text.strip()) if part]
