"""A backend that says what it is told to, and fails where it is told to: for tests of whatever asks one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mdl_torch.generation.backend import Backend, Completion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdl_torch.generation.backend import Request, Sampling

Script = Callable[["Request"], "str | Completion | Exception"] | Mapping[str, str]


class ScriptedBackend(Backend):
    """Answers from a function or a mapping.

    A mapping answers the first of its keys that occurs in the user's turn; where none does, with its key ``""`` if it
    has one. A function may return an exception, which stands in the request's place, or raise one, which ends the
    batch. Tokens are counted as words.

    Args:
        answers: The script.
        name: What to call it; two of one name claim to answer alike.
        batch_size: What the evaluation plans its batches by.

    Attributes:
        requests: All that it was asked, in order.
        batches: How many it was given at a time.

    Example:
        >>> from mdl_torch.generation.backend import Request, Sampling
        >>> backend = ScriptedBackend({"capital of France": "Paris.", "": "I don't know."})
        >>> asked = [Request("a", "", "The capital of France?"), Request("b", "", "Who knows?")]
        >>> [completion.text for completion in backend.generate(asked, Sampling())]
        ['Paris.', "I don't know."]
    """

    def __init__(self, answers: Script, *, name: str = "scripted", batch_size: int = 1) -> None:
        if not callable(answers) and not (
            isinstance(answers, Mapping) and all(isinstance(text, str) for text in answers.values())
        ):
            raise TypeError(f"answers must be a function or a mapping of texts to texts, got {answers!r:.60}")
        self.answers = answers
        self.name = name
        self.batch_size = batch_size
        self.requests: list[Request] = []
        self.batches: list[int] = []

    @property
    def identity(self) -> str:
        """Its name, and the script where that is a mapping."""
        script = json.dumps(dict(self.answers), sort_keys=True) if isinstance(self.answers, Mapping) else ""
        return f"{self.name} {script}".strip()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion | Exception]:
        """Answer by the script; see ``Backend.generate``. At most ``max_new_tokens`` words of an answer are given."""
        self.batches.append(len(requests))
        self.requests += requests
        return [self._answer(request, sampling) for request in requests]

    def _answer(self, request: Request, sampling: Sampling) -> Completion | Exception:
        answer = self._lookup(request.user) if isinstance(self.answers, Mapping) else self.answers(request)
        if not isinstance(answer, str):
            return answer
        words = answer.split()
        fits = len(words) <= sampling.max_new_tokens
        return Completion(
            text=answer if fits else " ".join(words[: sampling.max_new_tokens]),
            finish="stop" if fits else "length",
            prompt_tokens=len(request.instruction.split()) + len(request.user.split()),
            completion_tokens=min(len(words), sampling.max_new_tokens),
            seconds=0.0,
            model=self.name,
        )

    def _lookup(self, user: str) -> str | Exception:
        assert isinstance(self.answers, Mapping)
        found = next((answer for part, answer in self.answers.items() if part and part in user), self.answers.get(""))
        return KeyError(f"no answer for {user!r}") if found is None else found
