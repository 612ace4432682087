"""The prompts of all systems, word for word (Sections 4 and 5.1, Table 3).

B1, B2 and MDL differ in their memories and in nothing else; CRAG and Self-RAG ask for grades besides.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mdl_torch.generation.forms import Field, Form

if TYPE_CHECKING:
    from collections.abc import Sequence

INSTRUCTION = 'Answer the question in one short sentence. If you do not know, say "I don\'t know."'
MEMORIES = "Memories:"
BACKGROUND = (
    "Background memories, which may be wrong or contradict each other (rely on your own knowledge first and take them "
    "with caution):"
)
EXAMPLE = "Question: What is the opposite of hot?\nAnswer: The opposite of hot is cold.\n\n"
"""The one shot that shows a base model, which follows no instructions, what an answer looks like."""
CUE = "\nAnswer:"
COMPLETION_STOP = "\n"
"""A base model goes on with questions of its own: its answer ends with its line."""

# ------------------------------------------------------------------------------------------------ CRAG and Self-RAG

GRADE = Form((Field("Grade", ("Correct", "Incorrect", "Ambiguous")),))
"""What CRAG's evaluator says of a memory."""
GRADE_INSTRUCTION = (
    "Grade whether the memory can be used to answer the question. Reply with one word: Correct if it answers the "
    "question rightly, Incorrect if it is wrong or has nothing to do with the question, Ambiguous if you cannot tell."
)
GRADE_EXAMPLE = (
    "Question: What is the opposite of hot?\nMemory: Some say that it is ice.\nGrade: Ambiguous\n\n"
    "Question: How many legs does a horse have?\nMemory: A horse has four legs.\nGrade: Correct\n\n"
    "Question: Which month comes after May?\nMemory: Bananas grow in bunches.\nGrade: Incorrect\n\n"
)
GRADE_CUE = "\nGrade:"
OWN_ANSWER = "Answer from your own knowledge:"

CRITIQUE = Form(
    (
        Field("ISREL", ("Relevant", "Irrelevant")),
        Field("ISSUP", ("Fully supported", "Partially supported", "No support")),
        Field("ISUSE", ("5", "4", "3", "2", "1")),
    )
)
"""Self-RAG's reflection tokens on a draft: relevant memories, support by them, usefulness."""
CRITIQUE_INSTRUCTION = (
    "Check an answer that was drafted with memories. Reply in one line of three fields, such as "
    '"ISREL: Relevant; ISSUP: Partially supported; ISUSE: 3". ISREL: Relevant if the memories bear on the question, '
    "else Irrelevant. ISSUP: Fully supported, Partially supported or No support, by how far the memories bear out the "
    "draft. ISUSE: from 5, the draft is a perfect answer, to 1, it is useless."
)
CRITIQUE_EXAMPLE = (
    "Memories:\n- Some people like their tea cold.\n- Cold is what is not hot.\n\n"
    "Question: What is the opposite of hot?\nDraft: It may be cold.\n"
    "Critique: ISREL: Relevant; ISSUP: Partially supported; ISUSE: 3\n\n"
    "Memories:\n- A horse has four legs.\n\n"
    "Question: How many legs does a horse have?\nDraft: A horse has four legs.\n"
    "Critique: ISREL: Relevant; ISSUP: Fully supported; ISUSE: 5\n\n"
    "Memories:\n- Bananas grow in bunches.\n\n"
    "Question: Which month comes after May?\nDraft: The month after May is Banana.\n"
    "Critique: ISREL: Irrelevant; ISSUP: No support; ISUSE: 1\n\n"
)
CRITIQUE_CUE = "\nCritique:"


@dataclass(frozen=True)
class Segment:
    """A piece of a prompt that is tokenised by itself where memories are hidden or weighed one by one.

    Attributes:
        part: What it is.
        text: Its text, with the line breaks that belong to it.
    """

    part: Literal["instruction", "example", "heading", "memory", "draft", "question", "cue"]
    text: str


@dataclass(frozen=True)
class Prompt:
    r"""What a system asks.

    Attributes:
        instruction: The system turn of a chat; the same wherever an answer is asked for.
        segments: The user's turn in pieces: a heading, the memories in their order, the question.
        example: What shows a base model the form of the answer.
        cue: What a base model goes on from.
        form: What the answer has to fill in, if it is not free.

    Example:
        >>> prompt = inject("What is tea?", ["Tea is a drink.", "Tea is a metal."])
        >>> print(prompt.user)
        Memories:
        - Tea is a drink.
        - Tea is a metal.
        <BLANKLINE>
        Question: What is tea?
        >>> [segment.text for segment in prompt.segments if segment.part == "memory"]
        ['- Tea is a drink.\n', '- Tea is a metal.\n']
    """

    instruction: str
    segments: tuple[Segment, ...]
    example: str = EXAMPLE
    cue: str = CUE
    form: Form | None = None

    @property
    def user(self) -> str:
        """The user's turn."""
        return _join(self.segments)

    @property
    def completion(self) -> tuple[Segment, ...]:
        """The whole prompt as a base model reads it, in pieces; joined they are ``completion_text``."""
        return (
            Segment("instruction", f"{self.instruction}\n\n"),
            Segment("example", self.example),
            *self.segments,
            Segment("cue", self.cue),
        )

    @property
    def digest(self) -> str:
        """First 16 hex digits of a SHA-256: the same on every machine, another for any other prompt."""
        if (self.example, self.cue, self.form) == (EXAMPLE, CUE, None):
            return _digest(self.instruction, self.user)
        labels = [] if self.form is None else [[field.name, *field.labels] for field in self.form.fields]
        return _digest(self.instruction, self.user, self.example, self.cue, labels)


def ask(question: str) -> Prompt:
    """The question alone: B1, and MDL when it is Silent.

    Example:
        >>> ask("What is tea?").user
        'Question: What is tea?'
    """
    return _answering(_question(question))


def inject(question: str, memories: Sequence[str]) -> Prompt:
    """All memories, then the question: B2, and MDL when it is Active. Without memories the same as ``ask``.

    Example:
        >>> inject("What is tea?", []) == ask("What is tea?")
        True
    """
    return _with_memories(question, MEMORIES, memories)


def background(question: str, memories: Sequence[str]) -> Prompt:
    """The same memories, with caution: MDL when it is Supp. Without memories the same as ``ask``.

    Example:
        >>> background("What is tea?", ["Tea is a drink."]).user.split(",")[0]
        'Background memories'
    """
    return _with_memories(question, BACKGROUND, memories)


def grade(question: str, memory: str) -> Prompt:
    """CRAG's evaluator on one memory.

    Example:
        >>> print(grade("What is tea?", "Tea is a metal.").user)
        Question: What is tea?
        Memory: Tea is a metal.
    """
    asked = (_question(question), Segment("memory", f"\nMemory: {_line(memory)}"))
    return Prompt(GRADE_INSTRUCTION, asked, GRADE_EXAMPLE, GRADE_CUE, GRADE)


def combine(question: str, memories: Sequence[str], own: str) -> Prompt:
    """CRAG in doubt: memories with caution, beside what the model says without them.

    Example:
        >>> print(combine("What is tea?", ["Tea is a metal."], "A drink.").user.split(":", 1)[1])
        <BLANKLINE>
        - Tea is a metal.
        <BLANKLINE>
        Answer from your own knowledge: A drink.
        <BLANKLINE>
        Question: What is tea?
    """
    prompt = background(question, memories)
    draft = Segment("draft", f"{chr(10) if memories else ''}{OWN_ANSWER} {_line(own)}\n")
    return _answering(*prompt.segments[:-1], draft, _question(question, after="\n"))


def critique(question: str, memories: Sequence[str], draft: str) -> Prompt:
    """Self-RAG's reflection on a draft.

    Example:
        >>> print(critique("What is tea?", ["Tea is a metal."], "A metal.").user)
        Memories:
        - Tea is a metal.
        <BLANKLINE>
        Question: What is tea?
        Draft: A metal.
    """
    drafted = Segment("draft", f"\nDraft: {_line(draft)}")
    segments = (*inject(question, memories).segments, drafted)
    return Prompt(CRITIQUE_INSTRUCTION, segments, CRITIQUE_EXAMPLE, CRITIQUE_CUE, CRITIQUE)


def completion_text(instruction: str, user: str, example: str = EXAMPLE, cue: str = CUE) -> str:
    """One prompt of both turns, for base models without a chat template; its answer ends at ``COMPLETION_STOP``.

    Example:
        >>> prompt = ask("What is tea?")
        >>> print(completion_text(prompt.instruction, prompt.user))
        Answer the question in one short sentence. If you do not know, say "I don't know."
        <BLANKLINE>
        Question: What is the opposite of hot?
        Answer: The opposite of hot is cold.
        <BLANKLINE>
        Question: What is tea?
        Answer:
    """
    return f"{instruction}\n\n{example}{user}{cue}"


def wording_digest(*prompts: Prompt) -> str:
    """Names the wording of prompts, by default of those that B1, B2 and MDL share: it changes when any word does.

    Example:
        >>> wording_digest() == wording_digest(ask("q"), inject("q", ["m"]), background("q", ["m"]))
        True
    """
    chosen = prompts or (ask("q"), inject("q", ["m"]), background("q", ["m"]))
    whole = (completion_text(one.instruction, one.user, one.example, one.cue) for one in chosen)
    forms = [repr(one.form) for one in chosen if one.form is not None]
    return _digest("", "".join([*whole, *forms]))


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _with_memories(question: str, heading: str, memories: Sequence[str]) -> Prompt:
    if isinstance(memories, str):
        raise TypeError(f"memories must be a list of texts, got one text {memories[:40]!r}")
    if not memories:
        return ask(question)
    listed = (Segment("memory", f"- {_line(memory)}\n") for memory in memories)
    return _answering(Segment("heading", f"{heading}\n"), *listed, _question(question, after="\n"))


def _answering(*segments: Segment) -> Prompt:
    return Prompt(INSTRUCTION, segments, EXAMPLE, CUE)


def _question(question: str, after: str = "") -> Segment:
    return Segment("question", f"{after}Question: {_line(question)}")


def _line(text: str) -> str:
    """The text on one line, so that no memory can pass for the next question; lone surrogates become U+FFFD."""
    return " ".join(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").split())


def _join(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)
