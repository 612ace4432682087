"""Retrievals in, decisions out, line by line: the engine of ``mdl score``."""

from __future__ import annotations

import contextlib
import difflib
import gzip
import itertools
import json
import math
import os
import re
import stat
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from mdl_torch.errors import CalibrationMismatchError
from mdl_torch.outputs import Action
from mdl_torch.records import DecisionRecord, error_line
from mdl_torch.retrieval import Retrieval

if TYPE_CHECKING:
    from mdl_torch.calibration import Shares
    from mdl_torch.evaluation.questions import Question
    from mdl_torch.gate import MemoryGate

MAX_BATCH_BYTES = 8_000_000
"""Input that is decided on at a time, unless a single line is longer."""

MAX_BATCH_MEMORIES = 8_192
"""Memories that are decided on at a time, unless a single store is larger."""

MAX_HINTS = 10_000
"""Ids among which the nearest to a mistyped one is looked for."""

SHOWN_ERRORS = 5
"""Bad lines that a summary quotes; it counts all of them."""


class Item(NamedTuple):
    """One input line: its number from 1, its length, its id if it could be read, and the retrieval or its fault."""

    number: int
    size: int
    id: str | None
    retrieval: Retrieval | Exception


Observer = Callable[[Item, DecisionRecord | Exception], None]
"""What ``score`` calls with every line and what became of it, in order."""


@dataclass
class Summary:
    """What a run did.

    Attributes:
        lines: Lines read and written.
        errors: How many of them could not be decided.
        actions: How many got each action.
        reasons: How many carry each reason.
        first_errors: The first ``SHOWN_ERRORS`` error lines.
        seconds: Wall-clock time.
        calibrated: The action mix that the gate's calibration has seen, as (share, low, high); empty without one.
    """

    lines: int = 0
    errors: int = 0
    actions: dict[str, int] = field(default_factory=lambda: {action.label: 0 for action in Action})
    reasons: Counter[str] = field(default_factory=Counter)
    first_errors: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    calibrated: Shares = field(default_factory=dict)

    def drift(self) -> dict[str, tuple[float, float, float]]:
        """Actions whose share is outside of the calibration's interval, widened by what chance does to so few lines.

        Returns:
            Of each such action its share here, and the interval: (share, low, high).

        Example:
            >>> seen = {action: (0.25, 0.2, 0.3) for action in ("active", "supp", "silent", "opt_out")}
            >>> mix = {"active": 900, "supp": 50, "silent": 25, "opt_out": 25}
            >>> Summary(lines=1000, actions=mix, calibrated=seen).drift()["active"]
            (0.9, 0.2, 0.3)
        """
        decided = self.lines - self.errors
        found = {}
        for action, (_, low, high) in self.calibrated.items():
            share = self.actions[action] / decided if decided else low
            slack = [1.96 * math.sqrt(end * (1 - end) / max(1, decided)) for end in (low, high)]
            if not low - slack[0] - 1 / max(1, decided) <= share <= high + slack[1] + 1 / max(1, decided):
                found[action] = (share, low, high)
        return found

    def add(self, item: Item, outcome: DecisionRecord | Exception) -> dict[str, Any]:
        """Count a line and return what is written for it.

        Example:
            >>> Summary().add(read_item(b"[]", 3), TypeError("a retrieval must be an object, got list"))["line"]
            3
        """
        self.lines += 1
        if isinstance(outcome, DecisionRecord):
            self.actions[outcome.action.label] += 1
            self.reasons.update(outcome.reasons)
            return outcome.to_dict()
        self.errors += 1
        line = error_line(item.number, outcome, item.id)
        if len(self.first_errors) < SHOWN_ERRORS:
            self.first_errors.append(line)
        return line

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values.

        Example:
            >>> Summary(lines=3, errors=1).to_dict()["decisions"]
            2
        """
        return {
            "lines": self.lines,
            "decisions": self.lines - self.errors,
            "errors": self.errors,
            "actions": self.actions,
            "reasons": dict(self.reasons.most_common()),
            "first_errors": self.first_errors,
            "seconds": round(self.seconds, 3),
            "drift": {action: list(values) for action, values in self.drift().items()},
        }


def score(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    gate: MemoryGate,
    *,
    batch_size: int = 256,
    audits: bool = True,
    progress: bool = False,
    observe: Observer | None = None,
) -> Summary:
    r"""Decide on every line of a file, in memory that does not grow with it.

    One output line for each input line, in order; a bad line becomes an error line and stops no other. A file is
    written as ``TARGET.partial`` and gets its name when it is whole. An exception that ends the run early carries a
    note of how far it got.

    Args:
        source: JSON lines (``data/input.schema.json``), gzip if named ``.gz``; the CSV of TruthfulQA if named ``.csv``;
            HaluEval QA, known by the ``question`` and ``right_answer`` of its first line; ``-`` is standard input. The
            two data sets are read as a whole, since stores take distractors from each other, and one bad line of
            theirs ends the run before it begins.
        target: Where decisions go, gzip if named ``.gz``; ``-`` is standard output.
        gate: What decides.
        batch_size: Lines that are decided on together; fewer where they are long or their stores are large.
        audits: Whether to account for each decision.
        progress: Whether to show a progress bar on standard error.
        observe: Called with every line and what became of it.

    Raises:
        ValueError: ``batch_size`` is less than 1, source and target are the same file, or a data set has a bad line.
        OSError: A file cannot be read or written, or the gate's model is not there.
        CalibrationMismatchError: The gate's calibration is for another encoder.
        RuntimeError: Every line of the first batch failed with it.

    Example:
        >>> import tempfile
        >>> from mdl_torch import MemoryGate
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"signals": {"relevance": 0.9, "reliability": 0.8, "risk": 0.2}}\n')
        >>> score(folder / "in.jsonl", folder / "out.jsonl", MemoryGate()).actions["active"]
        1
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    _refuse_overwriting(source, target)
    calibration = gate.layer.calibration
    summary = Summary(calibrated=dict(calibration.action_mix) if calibration else {})
    start = time.perf_counter()
    with _Source(source) as lines, _Target(target) as out, _progress_bar(lines, progress) as bar:
        try:
            for batch in batches(lines.items(), batch_size):
                outcomes = decide(gate, batch, audits=audits)
                if not summary.lines:
                    _raise_if_all_failed_alike([o for o, item in zip(outcomes, batch, strict=True) if _is_read(item)])
                for item, outcome in zip(batch, outcomes, strict=True):
                    out.write(json_line(summary.add(item, outcome)))
                    if observe is not None:
                        observe(item, outcome)
                out.flush()
                bar(summary)
        except BaseException as error:
            left = out.remainder(summary.lines)
            if summary.lines:
                error.add_note(f"stopped after {summary.lines} lines{left}")
            raise
    summary.seconds = time.perf_counter() - start
    return summary


def decide(gate: MemoryGate, batch: Sequence[Item], *, audits: bool = True) -> list[DecisionRecord | Exception]:
    """The decision on each line of a batch, or its fault.

    A batch that fails as a whole, such as for want of memory, is halved until the line at fault stands alone. An error
    of a kind that no line can cause, such as an AttributeError of a detector, is raised.

    Raises:
        OSError: The gate's model is not there.
        CalibrationMismatchError: The gate's calibration is for another encoder.

    Example:
        >>> from mdl_torch import MemoryGate
        >>> line = b'{"signals": {"relevance": 0.9, "reliability": 0.8, "risk": 0.2}}'
        >>> decide(MemoryGate(), [read_item(line, 1)])[0].action.label
        'active'
    """
    good = [item.retrieval for item in batch if not isinstance(item.retrieval, Exception)]
    decided = iter(_isolated(gate, good, audits))
    return [item.retrieval if isinstance(item.retrieval, Exception) else next(decided) for item in batch]


def _is_read(item: Item) -> bool:
    return not isinstance(item.retrieval, Exception)


class LineError(RuntimeError):
    """What went wrong in deciding on one line, with its kind.

    Args:
        error: What went wrong.

    Example:
        >>> LineError(MemoryError("12 GB"))
        LineError('MemoryError: 12 GB')
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


_OF_A_LINE = (MemoryError, RuntimeError, ValueError, TypeError)
"""Errors that the values or the size of a line can cause; torch.OutOfMemoryError is a RuntimeError."""


def _raise_if_all_failed_alike(outcomes: Sequence[DecisionRecord | Exception]) -> None:
    """Several lines with one and the same RuntimeError, such as that of a lost device, are no bad lines.

    Raises:
        RuntimeError: That error.
    """
    errors = [outcome.error for outcome in outcomes if isinstance(outcome, LineError)]
    alike = len({(type(error), str(error)) for error in errors}) == 1
    if alike and len(errors) == len(outcomes) > 1 and isinstance(errors[0], RuntimeError):
        raise errors[0]


def _isolated(gate: MemoryGate, retrievals: list[Retrieval], audits: bool) -> list[DecisionRecord | Exception]:
    try:
        return gate.records(retrievals, errors="return", audits=audits)
    except CalibrationMismatchError:  # a ValueError, but the gate is at fault
        raise
    except _OF_A_LINE as error:
        if len(retrievals) == 1:
            return [LineError(error)]
    half = len(retrievals) // 2
    return _isolated(gate, retrievals[:half], audits) + _isolated(gate, retrievals[half:], audits)


def batches(items: Iterable[Item], lines: int) -> Iterator[list[Item]]:
    """Consecutive items, at most ``lines``, ``MAX_BATCH_BYTES`` and ``MAX_BATCH_MEMORIES`` at a time, at least one.

    Example:
        >>> [len(batch) for batch in batches((read_item(b"", n) for n in range(5)), 2)]
        [2, 2, 1]
    """
    batch: list[Item] = []
    size = memories = 0
    for item in items:
        store = 0 if isinstance(item.retrieval, Exception) else len(item.retrieval.memories)
        full = len(batch) == lines or size + item.size > MAX_BATCH_BYTES or memories + store > MAX_BATCH_MEMORIES
        if batch and full:
            yield batch
            batch, size, memories = [], 0, 0
        batch.append(item)
        size += item.size
        memories += store
    if batch:
        yield batch


def read_items(source: str | os.PathLike[str]) -> Iterator[Item]:
    """The lines of an input of ``score``, one at a time.

    Raises:
        OSError: It cannot be read.

    Example:
        >>> from mdl_torch.data import resource
        >>> next(read_items(str(resource("sample.jsonl")))).id
        'med-01'
    """
    with _Source(source) as lines:
        yield from lines.items()


def read_decisions(path: str | os.PathLike[str]) -> Iterator[tuple[int, str | None, DecisionRecord | Exception]]:
    """The stored decisions of an output of ``score``: number of the line, id, and the decision or why there is none.

    That of an error line is a ``NoDecisionError``; any other error means that the line is damaged.

    Raises:
        OSError: It cannot be read.
    """
    with _Source(path) as source:
        for number, raw in source.lines():
            yield number, *_read_decision(raw)


def find_decision(
    path: str | os.PathLike[str], *, id: str | None = None, line: int | None = None
) -> tuple[int, DecisionRecord]:
    """A stored decision by its id, or by the number of its line; without either, the only one there is.

    Returns:
        The number of its line, and the decision.

    Raises:
        OSError: The file cannot be read.
        ValueError: There is no such decision, more than one, or the line is an error line.
    """
    found: list[tuple[int, bytes]] = []
    ids: set[str] = set()  # to hint at the nearest
    with _Source(path) as source:
        last = line if line is not None else 2 if id is None else None  # two show that there is more than one
        for number, raw in itertools.islice(source.lines(), last):
            if _is_wanted(number, raw, id, line):
                found.append((number, raw))
            elif id is not None and len(ids) < MAX_HINTS and source.name != "-":
                ids |= _glimpsed_id(raw)
    wanted = f"line {line}" if line is not None else f"line with id {id!r}" if id is not None else "line"
    if not found:
        raise ValueError(f"{path} has no {wanted}{_nearest(id, ids)}")
    if len(found) > 1:
        if id is None:
            raise ValueError(f"{path} has several lines: choose one by its id or by the number of its line")
        numbers = ", ".join(str(number) for number, _ in found[:10])
        raise ValueError(f"{path} has more than one {wanted}, choose by the number of the line: {numbers}")
    number, raw = found[0]
    _, record = _read_decision(raw)
    if isinstance(record, Exception):
        raise ValueError(f"{path}, line {number}: {record}") from record
    return number, record


def find_source(path: str | os.PathLike[str], record: DecisionRecord, number: int) -> Retrieval:
    """The retrieval that a stored decision was made from: of the same id, and on the same line if several have it.

    Raises:
        OSError: The file cannot be read.
        ValueError: There is none, or its line is bad.
    """
    found = None
    for item in read_items(path):
        if (str(item.number) if item.id is None else item.id) == record.id and (found is None or item.number == number):
            found = item
    if found is None:
        raise ValueError(f"{path} has no line with id {record.id!r}")
    if isinstance(found.retrieval, Exception):
        raise ValueError(f"{path}, line {found.number}: {found.retrieval}") from found.retrieval
    return found.retrieval


def _is_wanted(number: int, raw: bytes, id: str | None, line: int | None) -> bool:
    if line is not None:
        return number == line
    if id is None:
        return True
    if b"\\" not in raw and id.encode("utf-8", "surrogatepass") not in raw:
        return False  # spares most lines the parsing
    return _read_decision(raw)[0] == id


def _glimpsed_id(raw: bytes) -> set[str]:
    """The first id in a line, without parsing the rest of it; none if there is none."""
    found = re.search(rb'"id": ?("(?:[^"\\]|\\.)*")', raw)
    with contextlib.suppress(ValueError):
        return {json.loads(found[1])} if found else set()
    return set()


def _nearest(id: str | None, ids: Iterable[str]) -> str:
    near = difflib.get_close_matches(id, ids, n=1, cutoff=0.5) if id is not None else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _read_decision(raw: bytes) -> tuple[str | None, DecisionRecord | Exception]:
    id = None
    try:
        value = parse_json(raw)
        id = _id_of(value)
        return id, DecisionRecord.from_dict(value)
    except (TypeError, ValueError) as error:
        return id, error


def read_item(raw: bytes, number: int) -> Item:
    """Read one line of JSON. A retrieval without an id is named by the number of its line.

    Example:
        >>> read_item(b'{"query": "What is tea?", "memorys": []}', 7).retrieval
        ValueError("unknown field of retrieval 'memorys'; did you mean 'memories'? Known: ...")
    """
    id = None
    try:
        value = parse_json(raw)
        id = _id_of(value)
        retrieval = Retrieval.parse(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Item(number, len(raw), id, error)
    return Item(number, len(raw), id, _named(retrieval, number))


def parse_json(raw: bytes) -> Any:
    """The value of a line of JSON as the standard has it: UTF-8, no NaN, no key twice.

    Raises:
        ValueError: It is something else; the message says what and where.

    Example:
        >>> parse_json(b'{"risk": NaN}')
        Traceback (most recent call last):
        ValueError: not valid JSON: NaN is no number
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1}") from error
    if not text.strip():
        raise ValueError("the line is empty")
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_key_twice)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError("not valid JSON: nested too deeply") from error


def json_line(value: object) -> bytes:
    r"""One line of UTF-8 JSON. Readable where it can be: only a lone surrogate, which UTF-8 lacks, makes it escape.

    Example:
        >>> json_line({"id": "é"}).decode(), json_line({"id": "\ud800"})
        ('{"id": "é"}\n', b'{"id": "\\ud800"}\n')
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        text = json.dumps(value, allow_nan=False).encode()
    return text + b"\n"


def _no_constant(name: str) -> Any:
    raise ValueError(f"not valid JSON: {name} is no number")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"key {twice!r} occurs more than once in one object")
    return values


def _id_of(value: object) -> str | None:
    id = value.get("id") if isinstance(value, dict) else None
    return str(id) if isinstance(id, str | int) and not isinstance(id, bool) else None


def _named(retrieval: Retrieval, number: int) -> Retrieval:
    return replace(retrieval, id=str(number)) if retrieval.id is None else retrieval


class _Source:
    """Where lines come from, and how far it has been read."""

    def __init__(self, source: str | os.PathLike[str]) -> None:
        self.name = os.fspath(source)
        self.size: int | None = None
        self._closing = contextlib.ExitStack()
        self._raw: IO[bytes] | None = None
        self._handed_out: float | None = None

    def __enter__(self) -> _Source:
        if self.name == "-":
            self._raw = sys.stdin.buffer
        else:
            self._raw = self._closing.enter_context(Path(self.name).open("rb"))
            size = os.fstat(self._raw.fileno()).st_size
            self.size = size or None  # a pipe has no size
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def items(self) -> Iterator[Item]:
        """The retrievals, one at a time."""
        from mdl_torch.evaluation.questions import is_halueval, load_truthfulqa, read_halueval

        if self.name.lower().endswith(".csv"):
            yield from self._stores(load_truthfulqa(self.name))
            return
        lines = self.lines()
        first = next(lines, None)
        if first is None:
            return
        every = itertools.chain([first], lines)
        if is_halueval(first[1]):
            yield from self._stores(read_halueval(every, self.name))
        else:
            yield from (read_item(raw, number) for number, raw in every)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines as they are, numbered from 1."""
        assert self._raw is not None
        stream: Iterable[bytes] = self._raw
        if self.name.lower().endswith(".gz"):
            stream = self._closing.enter_context(gzip.GzipFile(fileobj=self._raw))
        try:
            for number, raw in enumerate(stream, start=1):
                yield number, raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(f"{self.name} is no whole gzip file: {error}") from error

    def position(self) -> int | None:
        """Bytes of the file read so far, compressed ones if it is compressed; None of what has no size.

        Of a data set, which is read before its first store goes out, as many as those stores are of all.
        """
        if self._raw is None or not self.size:
            return None
        return self._raw.tell() if self._handed_out is None else round(self._handed_out * self.size)

    def _stores(self, questions: Sequence[Question]) -> Iterator[Item]:
        from mdl_torch.evaluation.stores import stores

        for number, retrieval in enumerate(stores(questions), start=1):
            size = sum(len(memory.text or "") for memory in retrieval.memories)
            self._handed_out = number / len(questions)
            yield Item(number, size, None if retrieval.id is None else str(retrieval.id), _named(retrieval, number))


class _Target:
    """Where lines go. A file appears under its name when it is whole, until then under ``NAME.partial``."""

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.name = os.fspath(target)
        self._closing = contextlib.ExitStack()
        self._partial: Path | None = None
        self._out: Any = None

    def __enter__(self) -> _Target:
        if self.name == "-":
            self._out = sys.stdout.buffer
            return self
        path = Path(self.name)
        if _is_replaceable(path):
            self._partial = _partial(path)
            path = self._partial
        self._out = self._closing.enter_context(path.open("ab" if self._partial else "wb"))
        if self._partial:
            self._claim()
        if self.name.lower().endswith(".gz"):  # without name and time, so that equal decisions make equal files
            self._out = self._closing.enter_context(gzip.GzipFile("", "wb", fileobj=self._out, mtime=0))
        return self

    def _claim(self) -> None:
        """Keep a second run from writing the same file, then start afresh.

        Raises:
            ValueError: Another run is writing it.
        """
        if fcntl is not None:
            try:
                fcntl.flock(self._out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._closing.close()
                raise ValueError(f"another run is writing {self.name}: wait for it, or name another file") from error
        self._out.truncate(0)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._closing.close()
        except OSError:
            if kind is None:  # else the first failure is the one to report
                raise
        if kind is None and self._partial is not None:
            self._partial.replace(Path(self.name).resolve())

    def write(self, line: bytes) -> None:
        """Write one line."""
        self._out.write(line)

    def flush(self) -> None:
        """Hand on what was written, so that a reader of a pipe need not wait."""
        if not isinstance(self._out, gzip.GzipFile):  # where it would cost compression
            self._out.flush()

    def remainder(self, lines: int) -> str:
        """What a run that ended early leaves behind; nothing if it wrote nothing."""
        if self._partial is None:
            return ""
        if not lines:
            self._partial.unlink(missing_ok=True)
            return ""
        return f"; the decisions so far are in {self._partial}"


def _is_replaceable(path: Path) -> bool:
    """Whether a path is a regular file or none yet, and not a device or a pipe.

    Raises:
        IsADirectoryError: It is a folder.
    """
    if path.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    return not path.exists() or stat.S_ISREG(path.stat().st_mode)


def _partial(path: Path) -> Path:
    path = path.resolve()  # a link stays one: what it points to is replaced
    return path.with_name(path.name + ".partial")


def _refuse_overwriting(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    if os.fspath(target) == "-":
        return
    try:
        read = os.fstat(sys.stdin.fileno()) if os.fspath(source) == "-" else Path(source).stat()
    except (OSError, ValueError, AttributeError):  # a missing input is reported where it is opened
        return
    for written in (Path(target), _partial(Path(target))):
        if written.is_file() and os.path.samestat(written.stat(), read):
            raise ValueError(f"the output would overwrite the input {os.fspath(source)}")


@contextlib.contextmanager
def _progress_bar(lines: _Source, shown: bool) -> Iterator[Callable[[Summary], None]]:
    """A bar on standard error: in bytes where the size is known, which gives a remaining time, else in lines."""
    from tqdm import tqdm

    by_bytes = lines.size is not None
    unit = {"unit": "B", "unit_scale": True} if by_bytes else {"unit": " lines"}
    with tqdm(total=lines.size if by_bytes else None, desc="mdl score", disable=not shown, **unit) as bar:

        def update(summary: Summary) -> None:
            if shown:
                done = lines.position() if by_bytes else None
                bar.set_postfix(lines=summary.lines, errors=summary.errors, refresh=False)
                bar.update((summary.lines if done is None else done) - bar.n)

        yield update
