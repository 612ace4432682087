"""The prompts of all systems, word for word (Sections 4 and 5.1): they differ in their memories and in nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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


@dataclass(frozen=True)
class Segment:
    """A piece of a prompt that is tokenised by itself where memories are hidden or weighed one by one.

    Attributes:
        part: What it is.
        text: Its text, with the line breaks that belong to it.
    """

    part: Literal["instruction", "example", "heading", "memory", "question", "cue"]
    text: str


@dataclass(frozen=True)
class Prompt:
    r"""What a system asks.

    Attributes:
        instruction: The same for all systems; the system turn of a chat.
        segments: The user's turn in pieces: a heading, the memories in their order, the question.

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

    @property
    def user(self) -> str:
        """The user's turn."""
        return _join(self.segments)

    @property
    def completion(self) -> tuple[Segment, ...]:
        """The whole prompt as a base model reads it, in pieces; joined they are ``completion_text``."""
        return (
            Segment("instruction", f"{self.instruction}\n\n"),
            Segment("example", EXAMPLE),
            *self.segments,
            Segment("cue", CUE),
        )

    @property
    def digest(self) -> str:
        """See ``prompt_digest``."""
        return prompt_digest(self.instruction, self.user)


def ask(question: str) -> Prompt:
    """The question alone: B1, and MDL when it is Silent.

    Example:
        >>> ask("What is tea?").user
        'Question: What is tea?'
    """
    return Prompt(INSTRUCTION, (_question(question),))


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


def completion_text(instruction: str, user: str) -> str:
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
    return f"{instruction}\n\n{EXAMPLE}{user}{CUE}"


def prompt_digest(instruction: str, user: str) -> str:
    """First 16 hex digits of the SHA-256 of both turns: the same on every machine, another for any other prompt.

    Example:
        >>> prompt_digest("a", "b") == prompt_digest("ab", "")
        False
    """
    return hashlib.sha256(json.dumps([instruction, user]).encode()).hexdigest()[:16]


def wording_digest() -> str:
    """Names the wording of all prompts: it changes when any word of any of them does.

    Example:
        >>> len(wording_digest())
        16
    """
    prompts = (ask("q"), inject("q", ["m"]), background("q", ["m"]))
    return prompt_digest("", "".join(completion_text(prompt.instruction, prompt.user) for prompt in prompts))


def _with_memories(question: str, heading: str, memories: Sequence[str]) -> Prompt:
    if isinstance(memories, str):
        raise TypeError(f"memories must be a list of texts, got one text {memories[:40]!r}")
    if not memories:
        return ask(question)
    listed = (Segment("memory", f"- {_line(memory)}\n") for memory in memories)
    return Prompt(INSTRUCTION, (Segment("heading", f"{heading}\n"), *listed, _question(question, after="\n")))


def _question(question: str, after: str = "") -> Segment:
    return Segment("question", f"{after}Question: {_line(question)}")


def _line(text: str) -> str:
    """The text on one line, so that no memory can pass for the next question; lone surrogates become U+FFFD."""
    return " ".join(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").split())


def _join(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)
