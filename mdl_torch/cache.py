"""Bounded caches by content, shared by threads: for what is computed once per text."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from mdl_torch.stance import ConflictDetector, TextFeatures

T = TypeVar("T")


class ContentCache(Generic[T]):
    """Values by the content of texts; the least recently used go first. Safe to use from many threads.

    Example:
        >>> cache = ContentCache(1)
        >>> a, b = content_key("a"), content_key("b")
        >>> cache.put({a: 1}); cache.put({b: 2})
        >>> cache.get([a, b]) == {b: 2}
        True
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[bytes, T] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, keys: Iterable[bytes]) -> dict[bytes, T]:
        """The values of those keys that are there."""
        found = {}
        with self._lock:
            for key in keys:
                if key in self._values:
                    self._values.move_to_end(key)
                    found[key] = self._values[key]
        return found

    def put(self, values: Mapping[bytes, T]) -> None:
        """Remember values, and forget the oldest beyond the size."""
        with self._lock:
            self._values.update(values)
            while len(self._values) > self._size:
                self._values.popitem(last=False)


def content_key(text: str, kind: str = "") -> bytes:
    """A digest instead of the text, so that texts of a megabyte do not fill a cache. Takes lone surrogates.

    Args:
        text: The content.
        kind: What else the value depends on, at most 16 bytes.
    """
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=kind.encode()).digest()


class FeatureCache:
    """The features of a conflict detector, whatever their fields, computed once per text.

    Args:
        detector: Computes them.
        size: Texts to remember.

    Attributes:
        padding: The features ``(1,)`` of the empty text, which conflicts with nothing.

    Example:
        >>> from mdl_torch.stance import detector
        >>> FeatureCache(detector("lexical"), 100).of(["The shop is open.", "Not today."]).negated
        tensor([False,  True])
    """

    def __init__(self, detector: ConflictDetector, size: int) -> None:
        self._detector = detector
        self._rows: ContentCache[Tensor] = ContentCache(size)
        self.padding = detector.features([""])

    def of(self, texts: Sequence[str]) -> TextFeatures:
        """The features ``(N,)`` of N >= 1 texts.

        Raises:
            ValueError: Their class, or the dtype or shape of a field, is not that of the other texts.
        """
        keys = [content_key(text) for text in texts]
        known = self._rows.get(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            features = self._detector.features(list(missing.values()))
            _check_alike(features, self.padding)
            packed = _packed(features)
            fresh = {key: row.clone() for key, row in zip(missing, packed, strict=True)}  # a view would keep all rows
            self._rows.put(fresh)
            known |= fresh
        return _unpacked(torch.stack([known[key] for key in keys]), self.padding)


def _columns(features: TextFeatures) -> dict[str, Tensor]:
    return {field.name: getattr(features, field.name) for field in dataclasses.fields(features)}


def _check_alike(features: TextFeatures, like: TextFeatures) -> None:
    """Refuse features ``(N,)`` that do not go into one table with others."""
    got, expected = (
        (type(each).__name__, {name: (column.dtype, column.shape[1:]) for name, column in _columns(each).items()})
        for each in (features, like)
    )
    if got != expected:
        raise ValueError(f"features must be alike for all texts, expected {expected} as of the empty text, got {got}")


def _packed(features: TextFeatures) -> Tensor:
    """Features ``(N,)`` as bytes, uint8 ``(N, bytes)``: a text costs one tensor, however many fields there are."""
    columns = _columns(features).values()
    return torch.cat([_rows(column).view(torch.uint8) for column in columns], dim=-1)


def _unpacked(packed: Tensor, like: TextFeatures) -> TextFeatures:
    """The features ``(N,)`` of rows of ``_packed``, with the fields, dtypes and shapes of others."""
    columns = _columns(like)
    parts = torch.split(packed, [_rows(column[:1]).nbytes for column in columns.values()], dim=-1)
    return type(like)(
        **{
            name: _dense(part).view(column.dtype).reshape(len(packed), *column.shape[1:])
            for (name, column), part in zip(columns.items(), parts, strict=True)
        }
    )


def _rows(column: Tensor) -> Tensor:
    return _dense(column.detach().reshape(len(column), -1))


def _dense(rows: Tensor) -> Tensor:
    """A copy whose bytes lie side by side; of a single row ``contiguous`` would keep any stride."""
    return rows.clone(memory_format=torch.contiguous_format)
