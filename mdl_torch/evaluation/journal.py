"""A file of JSON lines that survives a kill: appended to, synced, locked against a second writer, and repaired."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from io import BufferedWriter
    from types import TracebackType

ANSWER_FIELDS = (
    *("key", "system", "seed", "question_id", "revision", "condition", "model", "sampling", "gate", "decision"),
    *("answer", "injected", "calls", "prompt_tokens", "completion_tokens", "seconds", "outcome"),
)
"""What the record of an answer holds at least: a line without is damaged."""


class DirectoryInUseError(OSError):
    """Another process is writing in this directory."""


class DirectoryLock:
    """Keeps a second process out of a directory, until it is released or the process ends, however it ends.

    Raises:
        DirectoryInUseError: Another process has it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, DirectoryLock(folder):
        ...     DirectoryLock(folder)
        Traceback (most recent call last):
        mdl_torch.evaluation.journal.DirectoryInUseError: ... is in use by another run (process ...)
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        import fcntl

        self.path = Path(directory) / ".lock"
        self._file = self.path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            raise DirectoryInUseError(f"{directory} is in use by another run (process {owner})") from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Let others in."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Journal:
    """Records that are kept once they were appended: each is on the disk when ``append`` returns.

    A line that was cut by a kill, or that holds anything but a JSON object, is taken out when the file is opened, put
    aside in a file named ``.damaged``, and warned of; nothing else is lost.

    Args:
        path: The file; made where there is none.
        needed: Fields that every record has; one that lacks any counts as damaged.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "records.jsonl"
        >>> with Journal(path) as journal:
        ...     journal.append([{"key": "a"}, {"key": "b"}])
        >>> with Journal(path) as journal:
        ...     [record["key"] for record in journal.records]
        ['a', 'b']
    """

    def __init__(self, path: str | os.PathLike[str], needed: Sequence[str] = ()) -> None:
        self.path = Path(path)
        self.needed = tuple(needed)
        self.records: list[dict[str, Any]] = self._read()
        self._file: BufferedWriter = self.path.open("ab")

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Write records and wait until they are on the disk.

        A write that fails, as on a full disk, leaves the file as it was before it.

        Raises:
            OSError: They could not be written.
            ValueError: A record holds what JSON cannot: NaN, for one.
        """
        kept = list(records)
        lines = b"".join(_line(record) for record in kept)
        before = self._file.tell()
        try:
            self._file.write(lines)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._file = self._reopened(before)
            raise
        self.records += kept

    def _reopened(self, size: int) -> BufferedWriter:
        """The file, cut back to what was whole."""
        import contextlib

        with contextlib.suppress(OSError):
            self._file.close()  # tries to write what is left in the buffer
        os.truncate(self.path, size)
        return self.path.open("ab")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        whole: list[dict[str, Any]] = []
        damaged: list[bytes] = []
        kept: list[bytes] = []
        for line in re.findall(rb"[^\n]*\n|[^\n]+", self.path.read_bytes()):
            record = _parsed(line)
            if record is None or not all(name in record for name in self.needed):
                damaged.append(line)
            else:
                whole.append(record)
                kept.append(line)
        if damaged:
            self._put_aside(damaged, kept)
        return whole

    def _put_aside(self, damaged: list[bytes], kept: list[bytes]) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged")
        with aside.open("ab") as file:
            file.writelines(line if line.endswith(b"\n") else line + b"\n" for line in damaged)
        repaired = self.path.with_name(f"{self.path.name}.repaired")
        with repaired.open("wb") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        repaired.replace(self.path)
        message = f"{self.path}: {len(damaged)} damaged lines were put aside in {aside.name}; {len(kept)} are whole"
        warnings.warn(message, RuntimeWarning, stacklevel=4)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The record of a whole line; None for anything else."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
