"""Journals: what was appended is there after any kill, and what is damaged costs nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl_torch.evaluation.journal import DirectoryInUseError, DirectoryLock, Journal

RECORDS = [{"key": str(i), "text": f"antwort {i} “ü”\u2028"} for i in range(20)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.jsonl"


def keys(path) -> list[str]:
    with Journal(path) as journal:
        return [record["key"] for record in journal.records]


def test_what_is_appended_is_read_again(path):
    with Journal(path) as journal:
        journal.append(RECORDS[:3])
        journal.append([])
        journal.append(RECORDS[3:])
        assert journal.records == RECORDS
    with Journal(path) as journal:
        assert journal.records == RECORDS


def test_it_is_on_the_disk_when_append_returns(path):
    with Journal(path) as journal:
        journal.append(RECORDS[:1])
        assert json.loads(path.read_text("utf-8")) == RECORDS[0]


@settings(max_examples=60)
@given(cut=st.integers(0, 10_000), data=st.data())
def test_a_file_cut_anywhere_keeps_what_is_whole(tmp_path_factory, cut, data):
    path = tmp_path_factory.mktemp("cut") / "records.jsonl"
    with Journal(path) as journal:
        journal.append(RECORDS)
    whole = path.read_bytes()
    cut %= len(whole) + 1
    path.write_bytes(whole[:cut])
    expected = whole[:cut].count(b"\n")
    if cut == 0 or whole[cut - 1 : cut] == b"\n":
        assert len(keys(path)) == expected
    else:
        with pytest.warns(RuntimeWarning, match="1 damaged lines were put aside"):
            assert len(keys(path)) == expected
    with Journal(path) as journal:  # goes on, on a line of its own
        journal.append([{"key": "next"}])
    assert keys(path) == [r["key"] for r in RECORDS[:expected]] + ["next"]


@pytest.mark.parametrize(
    "garbage", [b"\x00\xff\xfe\n", b"[1, 2]\n", b"not json\n", b"\n", b'"text"\n', b"[" * 9999 + b"\n"]
)
def test_garbage_is_put_aside_and_nothing_else_is_lost(path, garbage):
    with Journal(path) as journal:
        journal.append(RECORDS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], garbage, *lines[5:]]))
    with pytest.warns(RuntimeWarning, match="1 damaged lines were put aside in records.jsonl.damaged; 20 are whole"):
        assert keys(path) == [r["key"] for r in RECORDS]
    assert path.with_name("records.jsonl.damaged").read_bytes() == garbage
    assert keys(path) == [r["key"] for r in RECORDS]


def test_what_json_cannot_hold_is_refused_and_leaves_no_trace(path):
    with Journal(path) as journal:
        journal.append(RECORDS[:1])
        with pytest.raises(ValueError, match="JSON"):
            journal.append([{"key": "a"}, {"key": float("nan")}])
        journal.append(RECORDS[1:2])
    assert keys(path) == ["0", "1"]


def test_a_full_disk_loses_nothing(path):
    """The failed write is undone; a later one, with room again, goes through."""
    with Journal(path) as journal:
        journal.append(RECORDS[:2])
        real = journal._file
        journal._file = _Full(real)
        with pytest.raises(OSError, match="No space left"):
            journal.append(RECORDS[2:4])
        assert len(journal.records) == 2
        journal.append(RECORDS[4:5])
    assert keys(path) == ["0", "1", "4"]


class _Full:
    """A file whose disk fills up in the middle of a line."""

    def __init__(self, real):
        self.real = real

    def tell(self):
        return self.real.tell()

    def write(self, data):
        self.real.write(data[: len(data) // 2])
        self.real.flush()
        raise OSError(28, "No space left on device")

    def close(self):
        self.real.close()


def test_a_second_writer_is_refused(tmp_path):
    owner = f"in use by another run .process {os.getpid()}."
    with DirectoryLock(tmp_path), pytest.raises(DirectoryInUseError, match=owner):
        DirectoryLock(tmp_path)
    DirectoryLock(tmp_path).release()


def python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_killed_writer_leaves_no_lock(tmp_path):
    code = (
        "import time; from mdl_torch.evaluation.journal import DirectoryLock\n"
        f"lock = DirectoryLock({str(tmp_path)!r})\n"
        "print('has it', flush=True); time.sleep(60)"
    )
    with python(code) as child:
        assert child.stdout.readline() == "has it\n"
        with pytest.raises(DirectoryInUseError, match=str(child.pid)):
            DirectoryLock(tmp_path)
        child.send_signal(signal.SIGKILL)
    DirectoryLock(tmp_path).release()


def test_killed_at_any_moment_it_keeps_every_record_that_was_reported(path):
    code = (
        "import itertools; from mdl_torch.evaluation.journal import Journal\n"
        f"journal = Journal({str(path)!r})\n"
        "for i in itertools.count(len(journal.records)):\n"
        "    journal.append([{'key': str(i), 'text': 'x' * 5000}])\n"
        "    print(i, flush=True)\n"
    )
    for _ in range(4):
        with python(code) as child:
            child.stdout.readline()
            time.sleep(0.05)
            child.send_signal(signal.SIGKILL)
            reported = child.stdout.read().split()
        found = [json.loads(line)["key"] for line in path.read_bytes().splitlines() if line.endswith(b"}")]
        assert set(reported) <= set(found)
        assert found == [str(i) for i in range(len(found))]
