"""Bounded caches by content, shared by threads: for what is computed once per text."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from mdl_torch.stance import ConflictDetector, StanceFeatures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

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
    """The stance features of a conflict detector, computed once per text.

    Args:
        detector: Computes them.
        size: Texts to remember.

    Example:
        >>> from mdl_torch.stance import detector
        >>> FeatureCache(detector("lexical"), 100).of(["The shop is open.", "Not today."]).negated
        tensor([False,  True])
    """

    def __init__(self, detector: ConflictDetector, size: int) -> None:
        self._detector = detector
        self._rows: ContentCache[Tensor] = ContentCache(size)

    def of(self, texts: Sequence[str]) -> StanceFeatures:
        """The features ``(N,)`` of N >= 1 texts."""
        keys = [content_key(text) for text in texts]
        known = self._rows.get(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            packed = _packed(self._detector.features(list(missing.values())))
            fresh = {key: row.clone() for key, row in zip(missing, packed, strict=True)}  # a view would keep all rows
            self._rows.put(fresh)
            known |= fresh
        return _unpacked(torch.stack([known[key] for key in keys]))


def _packed(features: StanceFeatures) -> Tensor:
    """Features ``(N,)`` as one row of int32 a text."""
    columns = [getattr(features, field.name) for field in dataclasses.fields(StanceFeatures)]
    return torch.cat([column.reshape(len(column), -1).to(torch.int32) for column in columns], dim=-1)


def _unpacked(packed: Tensor) -> StanceFeatures:
    """The features ``(N,)`` of rows of ``_packed``."""
    none = StanceFeatures.empty((1,))
    like = {field.name: getattr(none, field.name) for field in dataclasses.fields(StanceFeatures)}
    parts = torch.split(packed, [column.numel() for column in like.values()], dim=-1)
    return StanceFeatures(
        **{
            name: part.reshape(len(packed), *column.shape[1:]).to(column.dtype)
            for (name, column), part in zip(like.items(), parts, strict=True)
        }
    )
