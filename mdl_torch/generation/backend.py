"""What the evaluation asks of a language model, and what it gets back; every backend keeps to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from mdl_torch.generation.prompts import CUE, EXAMPLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdl_torch.generation.forms import Form
    from mdl_torch.generation.prompts import Prompt


@dataclass(frozen=True)
class Sampling:
    """How text is drawn (Section 5.1: temperature 0.7, top-p 0.9, at most 150 new tokens).

    Attributes:
        temperature: 0 takes the likeliest token.
        top_p: Smallest set of tokens whose probability reaches this.
        max_new_tokens: Longest answer.
        stop: Texts that end an answer; they are not part of it.

    Raises:
        ValueError: A value is out of its range; the message names it.

    Example:
        >>> Sampling().temperature
        0.7
    """

    temperature: float = 0.7
    top_p: float = 0.9
    max_new_tokens: int = 150
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must be in [0, 2], got {self.temperature!r}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p!r}")
        if isinstance(self.max_new_tokens, bool) or not isinstance(self.max_new_tokens, int) or self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be an integer of at least 1, got {self.max_new_tokens!r}")
        if isinstance(self.stop, str) or not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(f"stop must be a list of texts, none empty, got {self.stop!r}")
        object.__setattr__(self, "stop", tuple(self.stop))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "stop": list(self.stop)}


FORM_SAMPLING = Sampling(temperature=0.0, top_p=1.0, max_new_tokens=64)
"""How a form is filled in where it is read from text: with what is likeliest. A model must not think before it."""


@dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes:
        key: Names the noise that its answer is drawn with: the same key gives the same draws, whatever it is batched
            with. The evaluation makes it of seed, data, question, prompt and how often the prompt was asked before, so
            that systems that ask the same get the same answer.
        instruction: What the model is to do; the system turn of a chat.
        user: What it is asked, memories included; the user's turn.
        example: What shows a base model, which gets one text instead of turns, the form of the answer.
        cue: What a base model goes on from.
        form: What the answer fills in, where it is given to ``Backend.choose``.
    """

    key: str
    instruction: str
    user: str
    example: str = EXAMPLE
    cue: str = CUE
    form: Form | None = None

    @classmethod
    def of(cls, prompt: Prompt, key: str) -> Self:
        """The request that asks a prompt.

        Example:
            >>> from mdl_torch.generation.prompts import ask
            >>> Request.of(ask("What is tea?"), "0:tea").user
            'Question: What is tea?'
        """
        return cls(key, prompt.instruction, prompt.user, prompt.example, prompt.cue, prompt.form)


@dataclass(frozen=True)
class Completion:
    """One answer.

    Attributes:
        text: Without stop texts, thinking and special tokens; may be empty.
        finish: ``stop``, or ``length`` if it was cut off.
        prompt_tokens: As the backend counts them.
        completion_tokens: The same, thinking included.
        seconds: From sending to having it; of a batch, its share.
        model: What the backend says has answered.
        notes: Anything that was not as asked, in words: a parameter the server ignored, thinking that was cut out.
        choices: The label of each field of the request's form; None where the answer does not give one.
        probabilities: Of the labels of each field, where the model's likelihoods can be had; they sum to 1.
    """

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    model: str
    notes: tuple[str, ...] = ()
    choices: dict[str, str | None] = field(default_factory=dict)
    probabilities: dict[str, dict[str, float]] = field(default_factory=dict)


class Backend(ABC):
    """Answers prompts.

    Attributes:
        batch_size: Requests that are best given together. The evaluation plans its batches by it, so that a batch is
            the same whenever it is run.
        batch_matters: Whether what a request is batched with may change its answer, if only by rounding. Then a batch
            that lacks an answer is run again as a whole.
    """

    batch_size: int = 1
    batch_matters: bool = True

    @property
    @abstractmethod
    def identity(self) -> str:
        """Names all that determines an answer but sampling and prompt: model, weights or endpoint, template, dtype.

        Two backends of one identity give answers that may stand in one table. Never holds a secret.
        """

    @abstractmethod
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion | Exception]:
        """Answer a batch, in order; the error of a request stands in its place.

        Raises:
            OSError: Nothing can be answered: the model is not there, the server cannot be reached at all.
        """

    def choose(self, requests: Sequence[Request]) -> list[Completion | Exception]:
        """Fill in the forms of a batch, in order; the error of a request stands in its place.

        A backend that cannot see likelihoods lets the model write, with ``FORM_SAMPLING``, and reads the labels from
        the text. A field that the text does not fill in is None: nothing is guessed.

        Raises:
            OSError: As ``generate``.
            ValueError: A request has no form.
        """
        forms = [required_form(request) for request in requests]
        answers = self.generate(requests, FORM_SAMPLING)
        return [
            found if isinstance(found, Exception) else replace(found, choices=form.choices(found.text, {}))
            for found, form in zip(answers, forms, strict=True)
        ]

    def close(self) -> None:  # noqa: B027 - there may be nothing to give back
        """Give back what the backend holds; it is not used afterwards."""


def required_form(request: Request) -> Form:
    """The form of a request that has to have one."""
    if request.form is None:
        raise ValueError(f"request {request.key!r} must have a form to fill in")
    return request.form


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first of the stop texts.

    Example:
        >>> cut_at_stop("Paris. Q: and", ["Q:", "."])
        'Paris'
    """
    return text[: min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))]
