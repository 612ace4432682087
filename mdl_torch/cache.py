"""A bounded cache by content, shared by threads: for what is computed once per text."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
