"""Frozen dataclasses from JSON values: strictly, naming what is wrong and where."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from mdl_torch.errors import check_keys, unknown_name
from mdl_torch.outputs import Action

MAX_WHOLE = 2**31 - 1
"""Largest integer that is read."""

T = TypeVar("T")


def read(kind: type[T], value: Any, *, name: str, keys: Mapping[str, tuple[str, ...]] | None = None) -> T:
    """A dataclass of a JSON object that has its fields, all of them and no other, each of its declared type.

    Args:
        kind: The dataclass; its fields are numbers, text, ``Literal``, ``Action``, dataclasses, and tuples and mappings
            of these, or None.
        value: The JSON object.
        name: What it is called in messages.
        keys: Of the mappings in it, by their path, such as ``audit.energy``; one that is not listed may have any.

    Raises:
        ValueError: A field is missing, unknown, or of another type or length; the message names it.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Pair:
        ...     a: float
        ...     b: tuple[int, ...] | None
        >>> read(Pair, {"a": 1, "b": [2, 3]}, name="the pair")
        Pair(a=1.0, b=(2, 3))
        >>> read(Pair, {"a": 1, "b": ["x"]}, name="the pair")
        Traceback (most recent call last):
        ValueError: b[0] must be a whole number from 0 to 2147483647, got 'x'
    """
    found: T = _Reader(name, keys or {}).object(kind, value, "")
    return found


@dataclasses.dataclass(frozen=True)
class _Reader:
    name: str
    keys: Mapping[str, tuple[str, ...]]

    def object(self, kind: Any, value: Any, path: str) -> Any:
        kinds = _types(kind)
        self.expect_keys(value, tuple(kinds), path)
        return kind(
            **{name: self.value(kinds[name], value[name], f"{path}.{name}" if path else name) for name in kinds}
        )

    def value(self, kind: Any, value: Any, path: str) -> Any:
        origin, inner = get_origin(kind), get_args(kind)
        if origin is types.UnionType:  # X | None
            return None if value is None else self.value(inner[0], value, path)
        if origin is Literal:
            if value not in inner:
                raise ValueError(unknown_name(path, value, inner))
            return value
        if origin is tuple:
            return self.list(inner, value, path)
        if origin is dict:
            self.expect_keys(value, self.keys.get(path), path)
            return {key: self.value(inner[1], item, f"{path}.{key}") for key, item in value.items()}
        if kind is Any:
            return value
        if kind is Action:
            labels = {action.label: action for action in Action}
            if not isinstance(value, str) or value not in labels:
                raise ValueError(unknown_name(path, value, labels))
            return labels[value]
        if dataclasses.is_dataclass(kind):
            return self.object(kind, value, path)
        return _scalar(kind, value, path)

    def list(self, inner: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path} must be a list, got {value!r:.60}")
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        if len(value) != len(kinds):
            raise ValueError(f"{path} must have {len(kinds)} entries, got {len(value)}")
        return tuple(
            self.value(kind, v, f"{path}[{place}]") for place, (kind, v) in enumerate(zip(kinds, value, strict=True))
        )

    def expect_keys(self, value: Any, keys: tuple[str, ...] | None, path: str) -> None:
        where = path or self.name
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} must be an object, got {value!r:.60}")
        if keys is None:
            return
        check_keys(f"field of {where}", value, keys)
        if missing := [key for key in keys if key not in value]:
            raise ValueError(f"{where} lacks {', '.join(missing)}")


@functools.cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _scalar(kind: type, value: Any, path: str) -> Any:
    if kind in (str, bool):
        if isinstance(value, kind):
            return value
        raise ValueError(f"{path} must be {'a string' if kind is str else 'true or false'}, got {value!r:.60}")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        if number and 0 <= value <= MAX_WHOLE and value == int(value):
            return int(value)
        raise ValueError(f"{path} must be a whole number from 0 to {MAX_WHOLE}, got {value!r:.60}")
    if number and abs(value) <= sys.float_info.max:
        return float(value)
    raise ValueError(f"{path} must be a finite number, got {value!r:.60}")
