"""What comes in: a query with its retrieved memories, as an object and as a line of JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from mdl_torch.errors import unknown_name
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
        embedding: A ready embedding, ``(d,)``; computed from the text if None.

    Example:
        >>> Memory.parse("Parcels can be returned.", "memories[0]").text
        'Parcels can be returned.'
    """

    text: str | None = None
    id: str | int | None = None
    source: str | None = None
    timestamp: str | float | None = None
    score: float | None = None
    embedding: Tensor | None = None

    @classmethod
    def parse(cls, value: object, where: str) -> Self:
        """A memory from a text, a mapping of its fields, or a ``Memory``.

        Args:
            value: What to read.
            where: What to call it in errors.

        Raises:
            TypeError: ``value``, or a field of it, is of the wrong kind.
            ValueError: A field is unknown, or there is neither a text nor an embedding.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(text=value)
        if not isinstance(value, Mapping):
            raise TypeError(f"{where} must be a text or an object, got {type(value).__name__}")
        _known_keys(value, cls.__dataclass_fields__, where)
        memory = cls(
            text=_optional(value, "text", str, where),
            id=_optional(value, "id", str | int, where),
            source=_optional(value, "source", str, where),
            timestamp=_optional(value, "timestamp", str | int | float, where),
            score=_optional(value, "score", int | float, where),
            embedding=_embedding(value.get("embedding"), f"{where}.embedding"),
        )
        if memory.text is None and memory.embedding is None:
            raise ValueError(f"{where} must have a text or an embedding, got neither")
        return memory


@dataclass(frozen=True)
class Retrieval:
    """A query with its retrieved memories and what is known of the risk; or ready signals instead.

    Attributes:
        query: The query's text.
        memories: The store, most similar first or in any order; may be empty.
        id: Its name in outputs.
        query_embedding: A ready embedding, ``(d,)``; computed from the query if None.
        risk: Explicit A in [0, 1]; wins over ``category``.
        category: A category of the risk policy.
        signals: Ready (M, R, A); query and memories are then not looked at.

    Example:
        >>> Retrieval.parse({"query": "Can I return it?", "memories": ["Yes, for 30 days."], "risk": 0.2}).risk
        0.2
    """

    query: str | None = None
    memories: tuple[Memory, ...] = ()
    id: str | int | None = None
    query_embedding: Tensor | None = None
    risk: float | None = None
    category: str | None = None
    signals: ReadySignals | None = None

    @classmethod
    def parse(cls, value: object) -> Self:
        """A retrieval from a mapping in the format of ``mdl score`` (``data/input.schema.json``).

        Raises:
            TypeError: ``value``, or a field of it, is of the wrong kind.
            ValueError: A field is unknown or missing, or a value out of range. Messages name the field.
        """
        if not isinstance(value, Mapping):
            raise TypeError(f"a retrieval must be an object, got {_kind(value)}")
        _known_keys(value, [*cls.__dataclass_fields__, "meta"], "retrieval")
        _optional(value, "meta", Mapping, "")
        memories = value.get("memories")
        if memories is not None and (isinstance(memories, str | Mapping) or not isinstance(memories, Sequence)):
            raise TypeError(f"memories must be a list, got {_kind(memories)}")
        retrieval = cls(
            query=_optional(value, "query", str, ""),
            memories=tuple(Memory.parse(m, f"memories[{i}]") for i, m in enumerate(memories or ())),
            id=_optional(value, "id", str | int, ""),
            query_embedding=_embedding(value.get("query_embedding"), "query_embedding"),
            risk=_optional(value, "risk", int | float, ""),
            category=_optional(value, "category", str, ""),
            signals=_signals(value.get("signals")),
        )
        if retrieval.signals is None:
            if retrieval.query is None and retrieval.query_embedding is None:
                raise ValueError("a retrieval must have query, query_embedding or signals, got none of them")
            if memories is None:
                raise ValueError("memories is missing; an empty store is an empty list")
        return retrieval


def _known_keys(value: Mapping[Any, Any], known: Sequence[str] | Mapping[str, Any], where: str) -> None:
    for key in value:
        if key not in known:
            raise ValueError(unknown_name(f"field of {where}", key, known))


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _optional(value: Mapping[str, Any], key: str, kind: Any, where: str) -> Any:
    found = value.get(key)
    name = f"{where}.{key}" if where else key
    if found is not None and (isinstance(found, bool) or not isinstance(found, kind)):
        expected = getattr(kind, "__name__", None) or str(kind)
        raise TypeError(f"{name} must be {expected}, got {found!r:.60}")
    if isinstance(found, float) and not math.isfinite(found):
        raise ValueError(f"{name} must be finite, got {found}")
    return found


def _embedding(value: object, where: str) -> Tensor | None:
    """A flat float32 (or given float dtype) tensor; values are checked by the gate, on request."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        if isinstance(value, str | Mapping) or not hasattr(value, "__len__"):
            raise TypeError(f"{where} must be a list of numbers, got {_kind(value)}")
        try:
            value = torch.as_tensor(value, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{where} must be a list of numbers: {error}") from error
    if value.ndim != 1 or not value.numel():
        raise ValueError(f"{where} must be one vector of at least one number, got shape {tuple(value.shape)}")
    return value.detach()


def _signals(value: object) -> ReadySignals | None:
    if value is None:
        return None
    if isinstance(value, ReadySignals):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"signals must be an object, got {_kind(value)}")
    _known_keys(value, ReadySignals._fields, "signals")
    missing = [name for name in ReadySignals._fields if value.get(name) is None]
    if missing:
        raise ValueError(f"signals must have {', '.join(ReadySignals._fields)}; missing: {', '.join(missing)}")
    numbers = {}
    for name in ReadySignals._fields:
        number = value[name]
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"signals.{name} must be a number, got {number!r:.60}")
        numbers[name] = float(number)
    return ReadySignals(**numbers)
