"""What comes in: a query with its retrieved memories, as an object and as a line of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import NamedTuple, Self

import torch
from torch import Tensor

from mdl_torch.errors import check_keys
from mdl_torch.layer import RELEVANCE_SLACK


class ReadySignals(NamedTuple):
    """M, R and A that somebody else computed."""

    relevance: float
    reliability: float
    risk: float

    def check(self) -> None:
        """Refuse values that no signal can have.

        Raises:
            ValueError: Reliability or risk is not in [0, 1], or relevance not a cosine.

        Example:
            >>> ReadySignals(0.9, 0.5, 1.5).check()
            Traceback (most recent call last):
            ValueError: signals.risk must lie in [0.0, 1.0], got 1.5
        """
        for name, value, low, high in zip(
            self._fields, self, (-1 - RELEVANCE_SLACK, 0.0, 0.0), (1 + RELEVANCE_SLACK, 1.0, 1.0), strict=True
        ):
            if not low <= value <= high:  # also true of a NaN
                raise ValueError(f"signals.{name} must lie in [{low}, {high}], got {value}")


@dataclass(frozen=True)
class Memory:
    """One retrieved memory: a text, an embedding, or both.

    Attributes:
        text: What it says. Without a text it takes no part in the conflict test.
        id: Its name in outputs; its position in the store if None.
        source: Where it comes from; kept for the reader, without influence.
        timestamp: When it was written; without influence on the paper's equations.
        score: The retriever's own score; without influence.
        embedding: A ready embedding, ``(d,)``, from a tensor, an array or a list; computed from the text if None.

    Raises:
        TypeError: A field is of the wrong kind; the message names it.
        ValueError: There is neither a text nor an embedding, or the embedding is not one vector.

    Example:
        >>> Memory("Parcels can be returned.", id=7, embedding=[0.6, 0.8]).embedding
        tensor([0.6000, 0.8000])
    """

    text: str | None = None
    id: str | int | None = None
    source: str | None = None
    timestamp: str | float | None = None
    score: float | None = None
    embedding: Tensor | None = None

    def __post_init__(self) -> None:
        _check("text", self.text, str)
        _check("id", self.id, str, Integral)
        _check("source", self.source, str)
        _check("timestamp", self.timestamp, str, Real)
        _check("score", self.score, Real)
        object.__setattr__(self, "embedding", _embedding("embedding", self.embedding))
        if self.text is None and self.embedding is None:
            raise ValueError("text and embedding are both missing: a memory needs one of them")

    @classmethod
    def parse(cls, value: object, where: str) -> Self:
        """A memory from a text, a mapping of its fields, or a ``Memory``.

        Args:
            value: What to read.
            where: What to call it in errors.

        Raises:
            TypeError: ``value``, or a field of it, is of the wrong kind.
            ValueError: A field is unknown or invalid, or there is neither a text nor an embedding.

        Example:
            >>> Memory.parse({"txet": "Parcels can be returned."}, "memories[0]")
            Traceback (most recent call last):
            ValueError: unknown field of memories[0] 'txet'; did you mean 'text'? Known: embedding, id, ...
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(text=value)
        if not isinstance(value, Mapping):
            raise TypeError(f"{where} must be a text or an object, got {_kind(value)}")
        check_keys(f"field of {where}", value, [f.name for f in fields(cls)])
        try:
            return cls(**value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}.{error}") from error


@dataclass(frozen=True)
class Retrieval:
    """A query with its retrieved memories and what is known of the risk; or ready signals instead.

    Attributes:
        query: The query's text.
        memories: The store, most similar first or in any order; may be empty. Texts and mappings become ``Memory``.
        id: Its name in outputs.
        query_embedding: A ready embedding, ``(d,)``; computed from the query if None.
        risk: Explicit A in [0, 1]; wins over ``category``. Whether it lies there is for the gate to say.
        category: A category of the risk policy.
        signals: Ready (M, R, A); query and memories are then not looked at.

    Raises:
        TypeError: A field is of the wrong kind; the message names it.
        ValueError: A field is invalid, or there is neither a query nor ready signals.

    Example:
        >>> Retrieval("Can I return it?", ["Yes, for 30 days."], risk=0.2).memories[0].text
        'Yes, for 30 days.'
    """

    query: str | None = None
    memories: tuple[Memory, ...] = ()
    id: str | int | None = None
    query_embedding: Tensor | None = None
    risk: float | None = None
    category: str | None = None
    signals: ReadySignals | None = None

    def __post_init__(self) -> None:
        _check("query", self.query, str)
        _check("id", self.id, str, Integral)
        _check("category", self.category, str)
        if isinstance(self.memories, str | bytes | Mapping) or not isinstance(self.memories, Sequence):
            raise TypeError(f"memories must be a list, got {_kind(self.memories)}")
        memories = tuple(Memory.parse(memory, f"memories[{i}]") for i, memory in enumerate(self.memories))
        object.__setattr__(self, "memories", memories)
        object.__setattr__(self, "query_embedding", _embedding("query_embedding", self.query_embedding))
        object.__setattr__(self, "risk", None if self.risk is None else _number("risk", self.risk))
        object.__setattr__(self, "signals", _signals(self.signals))
        if self.signals is None and self.query is None and self.query_embedding is None:
            raise ValueError("query is missing: a retrieval needs a query, a query_embedding or signals")

    @classmethod
    def parse(cls, value: object) -> Self:
        """A retrieval from a mapping in the format of ``mdl score`` (``data/input.schema.json``).

        Raises:
            TypeError: ``value``, or a field of it, is of the wrong kind.
            ValueError: A field is unknown, missing or invalid. Messages name the field.

        Example:
            >>> Retrieval.parse({"query": "Can I return it?", "memories": ["Yes, for 30 days."], "risk": 0.2}).risk
            0.2
        """
        if not isinstance(value, Mapping):
            raise TypeError(f"a retrieval must be an object, got {_kind(value)}")
        check_keys("field of retrieval", value, [*(f.name for f in fields(cls)), "meta"])
        _check("meta", value.get("meta"), Mapping)
        given = {name: found for name, found in value.items() if name != "meta" and found is not None}
        if "memories" not in given and "signals" not in given:
            raise ValueError("memories is missing; an empty store is an empty list")
        return cls(**given)


_NAMES: dict[type, str] = {str: "a string", Integral: "an integer", Real: "a number", Mapping: "an object"}


def _check(name: str, value: object, *kinds: type) -> None:
    """Refuse what is neither None nor of one of these kinds; a truth value is no number.

    Raises:
        TypeError: It is not.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        raise TypeError(f"{name} must be {' or '.join(_NAMES[kind] for kind in kinds)}, got {_shown(value)}")


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {_shown(value)}")
    try:
        return float(value)
    except OverflowError as error:  # an integer of hundreds of digits
        raise ValueError(f"{name} is too large, got {_shown(value)}") from error


def _embedding(name: str, value: object) -> Tensor | None:
    """A vector in float32 on the CPU, free of gradients; whether its values are finite is for the gate to say."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
            raise TypeError(f"{name} must be a list of numbers, got {_kind(value)}")
        try:
            value = torch.tensor(value, dtype=None if hasattr(value, "dtype") else torch.float32)  # arrays keep theirs
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise TypeError(f"{name} must be a list of numbers: {error}") from error
    if value.is_complex():
        raise TypeError(f"{name} must be a list of real numbers, got {value.dtype}")
    if value.ndim != 1 or not value.numel():
        raise ValueError(f"{name} must be one vector of at least one number, got shape {tuple(value.shape)}")
    return value.detach().to("cpu", torch.float32)


def _signals(value: object) -> ReadySignals | None:
    if value is None:
        return None
    given = value._asdict() if isinstance(value, ReadySignals) else value
    if not isinstance(given, Mapping):
        raise TypeError(f"signals must be an object, got {_kind(value)}")
    check_keys("field of signals", given, ReadySignals._fields)
    if missing := [name for name in ReadySignals._fields if given.get(name) is None]:
        raise ValueError(f"signals must have {', '.join(ReadySignals._fields)}; missing: {', '.join(missing)}")
    return ReadySignals(*(_number(f"signals.{name}", given[name]) for name in ReadySignals._fields))
