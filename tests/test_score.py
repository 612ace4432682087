"""The streaming scorer: one output line for each input line, whatever the lines are."""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
import re
import string
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch import MemoryGate
from mdl_torch import score as score_module
from mdl_torch.calibration import Calibration
from mdl_torch.data import read_text, resource
from mdl_torch.encoder import SentenceEncoder
from mdl_torch.errors import CalibrationMismatchError
from mdl_torch.outputs import Action
from mdl_torch.records import DecisionRecord
from mdl_torch.retrieval import Retrieval
from mdl_torch.score import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MEMORIES,
    Item,
    Summary,
    batches,
    find_decision,
    find_source,
    json_line,
    parse_json,
    read_item,
    score,
)

SCHEMA = jsonschema.Draft202012Validator(json.loads(read_text("output.schema.json")))
GOOD = b'{"id": "good", "query": "What is tea?", "memories": ["Tea is a drink.", "Tea is drunk hot."], "risk": 0.2}'
READY = b'{"signals": {"relevance": 0.9, "reliability": 0.8, "risk": 0.2}}'


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def output(path: Path) -> list[dict[str, Any]]:
    """The lines of an output, each checked against the schema."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = [json.loads(line, parse_constant=no_constant) for line in raw.decode("utf-8").splitlines()]
    for line in lines:
        SCHEMA.validate(line)
    return lines


@pytest.fixture
def run(tmp_path: Path, gate: MemoryGate) -> Callable[..., tuple[list[dict[str, Any]], Any]]:
    def scored(*lines: bytes, end: bytes = b"\n", **options: Any) -> tuple[list[dict[str, Any]], Any]:
        (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines) + end)
        summary = score(tmp_path / "in.jsonl", tmp_path / "out.jsonl", options.pop("gate", gate), **options)
        return output(tmp_path / "out.jsonl"), summary

    return scored


def test_the_sample_comes_out_line_by_line_and_as_the_gate_decides(tmp_path: Path, gate: MemoryGate) -> None:
    source = Path(str(resource("sample.jsonl")))
    summary = score(source, tmp_path / "out.jsonl", gate, batch_size=7)
    lines = output(tmp_path / "out.jsonl")
    asked = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
    assert [line["id"] for line in lines] == [line["id"] for line in asked]
    assert {line["action"] for line in lines} == {action.label for action in Action}
    assert summary.lines == len(asked)
    assert summary.errors == 0
    assert sum(summary.actions.values()) == len(asked)
    again = [gate.records([Retrieval.parse(line)])[0].action.label for line in asked[:10]]
    assert [line["action"] for line in lines[:10]] == again


BAD = {
    "": "the line is empty",
    "   ": "the line is empty",
    "nope": "not valid JSON: Expecting value at character 1",
    '{"id": "x"': "not valid JSON",
    "[1]": "a retrieval must be an object, got list",
    "null": "a retrieval must be an object, got null",
    '{"query": "q", "memories": [], "risk": NaN}': "NaN is no number",
    '{"query": "q", "memories": [], "risk": -Infinity}': "-Infinity is no number",
    '{"query": "q", "memories": [], "risk": 1e999}': "risk must be in [0, 1], got inf",
    '{"query": "q", "memorys": []}': "did you mean 'memories'?",
    '{"query": "q", "memories": [{"txt": "a"}]}': "did you mean 'text'?",
    '{"query": 5, "memories": []}': "query must be a string",
    '{"query": "q", "memories": "text"}': "memories must be a list",
    '{"query": "q", "memories": [7]}': "memories[0] must be a text or an object",
    '{"query": "q"}': "memories is missing",
    '{"memories": []}': "query is missing",
    '{"query": "q", "memories": [], "risk": 1.5}': "risk must be in [0, 1], got 1.5",
    '{"query": "q", "memories": [], "risk": "0.5"}': "risk must be",
    '{"query": "q", "memories": [], "risk": true}': "risk must be",
    '{"query": "q", "memories": [], "category": "Helth"}': "did you mean 'health'?",
    '{"query": "q", "memories": [], "query": "r"}': "key 'query' occurs more than once",
    '{"query_embedding": [1, 2], "memories": [{"embedding": [1, 2, 3]}], "risk": 0.2}': "must have 2 numbers",
    '{"query_embedding": [1, 1e999], "memories": [{"embedding": [1, 2]}], "risk": 0.2}': "must be finite",
    '{"query_embedding": [], "memories": [], "risk": 0.2}': "at least one number",
    '{"signals": {"relevance": 0.5, "reliability": 2, "risk": 0}}': "signals.reliability must lie in [0.0, 1.0]",
    '{"signals": {"relevance": 0.5, "reliability": 1' + "0" * 400 + ', "risk": 0}}': "too large",
    "[" * 100_000: "nested too deeply",
}


def test_each_kind_of_bad_line_becomes_an_error_line_and_stops_no_other(run: Callable[..., Any]) -> None:
    lines, summary = run(*(line for bad in BAD for line in (bad.encode(), GOOD)), batch_size=10)
    assert len(lines) == 2 * len(BAD)
    for number, (bad, message) in enumerate(BAD.items()):
        wrong, right = lines[2 * number : 2 * number + 2]
        assert message in wrong["error"], bad[:80]
        assert wrong["line"] == 2 * number + 1
        assert right["action"] == "active"
    assert summary.errors == len(BAD)
    assert summary.actions["active"] == len(BAD)


def test_bytes_that_are_no_utf8_are_an_error_with_their_place(run: Callable[..., Any]) -> None:
    lines, _ = run(b'{"id": "a\xff"}', GOOD.decode().encode("utf-16"), GOOD)
    assert lines[0] == {"schema_version": 1, "id": None, "line": 1, "error": "not UTF-8: byte 0xff at position 10"}
    assert lines[-1]["action"] == "active"


def test_an_error_line_keeps_the_id_where_it_could_be_read(run: Callable[..., Any]) -> None:
    lines, _ = run(b'{"id": 12, "query": 1}', b'{"id": true, "query": 1}', b'{"id": [1], "query": 1}')
    assert [line["id"] for line in lines] == ["12", None, None]


def test_lines_are_named_by_their_number_across_batches(run: Callable[..., Any]) -> None:
    lines, _ = run(*[READY] * 5, batch_size=2)
    assert [line["id"] for line in lines] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_end_of_the_last_line_is_no_line_of_its_own(run: Callable[..., Any], end: bytes) -> None:
    assert len(run(READY, READY, end=end)[0]) == 2


def test_an_empty_file_gives_an_empty_file(run: Callable[..., Any]) -> None:
    lines, summary = run(end=b"")
    assert (lines, summary.lines) == ([], 0)


def test_a_byte_order_mark_is_no_part_of_the_first_line(run: Callable[..., Any]) -> None:
    assert run(b"\xef\xbb\xbf" + GOOD)[0][0]["id"] == "good"


def test_lone_surrogates_pass_and_the_output_is_utf8(run: Callable[..., Any]) -> None:
    line = rb'{"id": "\ud800", "query": "\udfff?", "memories": [{"id": "\ud801", "text": "\ud800 tea"}], "risk": 0.9}'
    lines, _ = run(line, rb'{"id": "\ud800", "qurey": 1}', '{"id": "é", "query": 1}'.encode())
    assert [line["id"] for line in lines] == ["\ud800", "\ud800", "é"]
    assert lines[0]["memories"][0]["id"] == "\ud801"
    with pytest.raises(ValueError, match="JSON"):
        json_line({"confidence": float("nan")})
    assert json_line({"id": "é"}) == '{"id": "é"}\n'.encode()


def test_large_memories_and_stores_are_decided(run: Callable[..., Any]) -> None:
    long = json.dumps({"query": "What is tea?", "memories": ["Tea is a drink. " * 65_000], "risk": 0.2}).encode()
    rng = random.Random(0)
    store = [{"embedding": [rng.gauss(0, 1) for _ in range(8)]} for _ in range(5_000)]
    many = json.dumps({"query_embedding": [1.0] * 8, "memories": store, "risk": 0.2}).encode()
    assert len(long) > 1_000_000
    lines, _ = run(GOOD, long, many, GOOD)
    assert lines[1]["truncated"] == ["0"]
    assert len(lines[2]["memories"]) == 5_000
    assert [line.get("error") for line in lines] == [None] * 4


def item(size: int, memories: int) -> Item:
    return Item(1, size, None, Retrieval.parse({"query": "q", "memories": ["m"] * memories}))


def test_batches_are_bounded_in_lines_bytes_and_memories() -> None:
    assert [len(b) for b in batches([item(1, 1)] * 5, 2)] == [2, 2, 1]
    assert [len(b) for b in batches([item(MAX_BATCH_BYTES // 2, 0)] * 5, 9)] == [2, 2, 1]
    assert [len(b) for b in batches([item(1, MAX_BATCH_MEMORIES // 2)] * 5, 9)] == [2, 2, 1]
    assert [len(b) for b in batches([item(1, 1), item(9 * MAX_BATCH_BYTES, 1), item(1, 1)], 9)] == [1, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 2 * MAX_BATCH_BYTES), st.integers(0, 3)), max_size=30), st.integers(1, 5))
def test_batches_keep_every_item_in_order(sizes: list[tuple[int, int]], lines: int) -> None:
    items = [item(*size) for size in sizes]
    assert [one for batch in batches(items, lines) for one in batch] == items


def test_input_is_read_as_it_is_needed() -> None:
    read = 0

    def endless() -> Iterator[Item]:
        nonlocal read
        while True:
            read += 1
            yield item(1, 1)

    next(batches(endless(), 10))
    assert read == 11


def test_memory_stays_flat(tmp_path: Path) -> None:
    def peak(lines: int) -> int:
        (tmp_path / "in.jsonl").write_bytes((READY + b"\n") * lines)
        tracemalloc.start()
        score(tmp_path / "in.jsonl", tmp_path / "out.jsonl", MemoryGate(), audits=False, batch_size=64)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(64)
    assert peak(1_000) < peak(100) + 500_000  # a thousand records that are kept would be several million


def test_gzip_in_and_out(tmp_path: Path, gate: MemoryGate) -> None:
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(GOOD + b"\n" + READY))
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        score(tmp_path / "in.jsonl.gz", tmp_path / name, gate)
    assert [line["id"] for line in output(tmp_path / "a.jsonl.gz")] == ["good", "2"]
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


@pytest.mark.parametrize("damaged", [b"no gzip", gzip.compress(GOOD * 50)[:-20], gzip.compress(GOOD)[:-8] + b"\0" * 8])
def test_a_damaged_gzip_file_is_an_error(tmp_path: Path, gate: MemoryGate, damaged: bytes) -> None:
    (tmp_path / "in.gz").write_bytes(damaged)
    with pytest.raises(OSError, match=r"in\.gz is no whole gzip file"):
        score(tmp_path / "in.gz", tmp_path / "out.jsonl", gate)
    assert not (tmp_path / "out.jsonl").exists()


def test_the_input_is_never_overwritten(tmp_path: Path, gate: MemoryGate) -> None:
    source, link = tmp_path / "in.jsonl", tmp_path / "link.jsonl"
    source.write_bytes(READY)
    link.symlink_to(source)
    partial = tmp_path / "out.jsonl.partial"
    partial.write_bytes(READY)
    for read, written in ((source, source), (source, link), (link, source), (partial, tmp_path / "out.jsonl")):
        with pytest.raises(ValueError, match="would overwrite the input"):
            score(read, written, gate)
    assert source.read_bytes() == READY


def test_a_run_that_ends_early_leaves_no_file_that_looks_whole(tmp_path: Path, gate: MemoryGate) -> None:
    (tmp_path / "in.jsonl").write_bytes((READY + b"\n") * 10)
    (tmp_path / "out.jsonl").write_text("of an earlier run")

    def interrupt(item: Item, _: object) -> None:
        if item.number == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        score(tmp_path / "in.jsonl", tmp_path / "out.jsonl", gate, batch_size=2, observe=interrupt)
    assert stopped.value.__notes__ == [
        f"stopped after 6 lines; the decisions so far are in {tmp_path / 'out.jsonl.partial'}"
    ]
    assert (tmp_path / "out.jsonl").read_text() == "of an earlier run"
    assert 5 <= len(output(tmp_path / "out.jsonl.partial")) <= 6


def test_a_run_that_fails_at_once_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(GOOD)
    with pytest.raises(OSError, match="cannot load the encoder"):
        score(tmp_path / "in.jsonl", tmp_path / "out.jsonl", MemoryGate(tmp_path / "no-such-model"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_calibration_of_another_encoder_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(GOOD)
    other = dataclasses.replace(Calibration.reference(), encoder="another-encoder@1")
    gate = MemoryGate.from_pretrained(calibration=other)
    with pytest.raises(CalibrationMismatchError, match="another-encoder"):
        score(tmp_path / "in.jsonl", tmp_path / "out.jsonl", gate)


def test_a_link_stays_a_link_and_what_it_points_to_is_replaced(tmp_path: Path, gate: MemoryGate) -> None:
    (tmp_path / "in.jsonl").write_bytes(READY)
    (tmp_path / "real.jsonl").write_text("old")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    score(tmp_path / "in.jsonl", tmp_path / "link.jsonl", gate)
    assert (tmp_path / "link.jsonl").is_symlink()
    assert len(output(tmp_path / "real.jsonl")) == 1


def test_a_device_is_written_to_directly(tmp_path: Path, gate: MemoryGate) -> None:
    (tmp_path / "in.jsonl").write_bytes(READY)
    assert score(tmp_path / "in.jsonl", "/dev/null", gate).lines == 1
    assert not Path("/dev/null.partial").exists()


class OutOfMemory(MemoryGate):
    """The real gate, on a machine too small for more than two lines, or for one that says poison."""

    def records(self, retrievals: Any, **options: Any) -> Any:
        if len(retrievals) > 2 or any(r.query == "poison" for r in retrievals):
            raise RuntimeError("out of memory")
        return super().records(retrievals, **options)


def test_a_batch_that_fails_as_a_whole_is_taken_apart(run: Callable[..., Any], encoder: SentenceEncoder) -> None:
    poison = GOOD.replace(b"What is tea?", b"poison")
    lines, summary = run(GOOD, GOOD, GOOD, poison, GOOD, gate=OutOfMemory(encoder))
    assert [line.get("error") for line in lines] == [None, None, None, "RuntimeError: out of memory", None]
    assert summary.errors == 1


class Broken(MemoryGate):
    """The real gate, of which a part fails with an error of ``kind`` on lines that say poison, or on all."""

    kind: type[Exception] = AttributeError
    everywhere = False

    def records(self, retrievals: Any, **options: Any) -> Any:
        if self.everywhere or any(r.query == "poison" for r in retrievals):
            raise self.kind("detector has no attribute 'conflcts'")
        return super().records(retrievals, **options)


def broken(encoder: SentenceEncoder, kind: type[Exception], *, everywhere: bool = False) -> Broken:
    gate = Broken(encoder)
    gate.kind, gate.everywhere = kind, everywhere
    return gate


@pytest.mark.parametrize("kind", [AttributeError, KeyError, IndexError, AssertionError, OSError, ImportError])
def test_a_programming_error_ends_the_run_with_its_message(
    run: Callable[..., Any], encoder: SentenceEncoder, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="has no attribute 'conflcts'"):
        run(GOOD, GOOD.replace(b"What is tea?", b"poison"), gate=broken(encoder, kind))


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError, RuntimeError, ValueError, TypeError])
def test_what_a_line_can_cause_stays_with_the_line(
    run: Callable[..., Any], encoder: SentenceEncoder, kind: type[Exception]
) -> None:
    lines, _ = run(GOOD, GOOD.replace(b"What is tea?", b"poison"), GOOD, gate=broken(encoder, kind))
    message = f"{kind.__name__}: detector has no attribute 'conflcts'"
    assert [line.get("error") for line in lines] == [None, message, None]


def test_a_first_batch_that_fails_alike_with_a_runtime_error_ends_the_run(
    run: Callable[..., Any], encoder: SentenceEncoder
) -> None:
    gate = broken(encoder, RuntimeError, everywhere=True)
    with pytest.raises(RuntimeError, match=r"^detector has no"):
        run(GOOD, b"bad", GOOD, gate=gate)
    assert run(GOOD, gate=gate)[1].errors == 1, "one line alone may be at fault"
    assert run(GOOD, GOOD, gate=broken(encoder, MemoryError, everywhere=True))[1].errors == 2


def test_audits_can_be_left_out(run: Callable[..., Any]) -> None:
    assert run(READY, audits=False)[0][0]["audit"] is None
    assert run(READY)[0][0]["audit"] is not None


@pytest.mark.parametrize("size", [0, -1])
def test_batch_size_is_checked(run: Callable[..., Any], size: int) -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        run(READY, batch_size=size)


def test_the_summary_counts_and_quotes(run: Callable[..., Any]) -> None:
    empty = b'{"query": "q", "memories": [], "risk": 0.2}'
    lines, summary = run(READY, empty, *[b"x"] * 7)
    values = summary.to_dict()
    assert (values["lines"], values["decisions"], values["errors"]) == (9, 2, 7)
    assert values["actions"] == {"active": 1, "supp": 0, "silent": 0, "opt_out": 1}
    assert values["reasons"]["no_memory"] == 1
    assert values["first_errors"] == [line for line in lines if "error" in line][:5]


@given(st.text(alphabet=string.printable + "é\u2028\ud800\U0001f600", max_size=40))
def test_any_text_survives_the_line_format(text: str) -> None:
    line = json_line({"id": text})
    assert line.count(b"\n") == 1
    line.decode("utf-8")
    assert parse_json(line) == {"id": text}


@given(st.binary(max_size=60))
def test_no_line_can_stop_the_reader(raw: bytes) -> None:
    assert read_item(raw, 3).number == 3


def test_truthfulqa_is_read_as_stores(tmp_path: Path, gate: MemoryGate, shared_data: Callable[[str], Path]) -> None:
    head = shared_data("TruthfulQA.csv").read_text("utf-8").splitlines(keepends=True)[:9]
    (tmp_path / "TruthfulQA.csv").write_text("".join(head), "utf-8")
    summary = score(tmp_path / "TruthfulQA.csv", tmp_path / "out.jsonl", gate)
    lines = output(tmp_path / "out.jsonl")
    assert summary.errors == 0
    assert len(lines) >= 5
    assert all(line["risk_rule"].startswith("category: ") for line in lines)


def halueval(*numbers: int, **changes: str) -> bytes:
    """Lines of HaluEval QA; by their keywords those with even numbers are of high risk."""
    records = [
        {
            "knowledge": f"Person {n} was born in Vienna.",
            "question": f"Where was person {n} born, who {'paints' if n % 2 else 'treats a disease'}?",
            "right_answer": f"in Vienna, {n}",
            "hallucinated_answer": f"Person {n} was born in Linz.",
            **changes,
        }
        for n in numbers
    ]
    return b"".join(json_line(record) for record in records)


def test_halueval_is_read_as_stores(tmp_path: Path, gate: MemoryGate) -> None:
    """Known by the keys of its first line, whatever its name: as JSON, compressed, and from standard input."""
    (tmp_path / "qa_data.json").write_bytes(halueval(*range(6)))
    (tmp_path / "qa.jsonl.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + halueval(*range(6))))
    summary = score(tmp_path / "qa_data.json", tmp_path / "out.jsonl", gate)
    assert (summary.lines, summary.errors) == (6, 0)
    lines = output(tmp_path / "out.jsonl")
    assert [line["id"] for line in lines] == [f"halueval-{n:05d}" for n in range(6)]
    for line in lines:
        kinds = sorted(memory["id"].split("-")[0] for memory in line["memories"])
        assert kinds == ["correct", "distractor", "distractor", "incorrect", "knowledge"]
    assert [line["risk"] for line in lines] == [0.85, 0.2] * 3
    assert all("category" not in line["risk_rule"] for line in lines)
    score(tmp_path / "qa.jsonl.gz", tmp_path / "again.jsonl", gate)
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def test_halueval_from_standard_input(tmp_path: Path, gate: MemoryGate, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qa_data.json").write_bytes(halueval(*range(4)))
    with (tmp_path / "qa_data.json").open(encoding="utf-8") as piped:
        monkeypatch.setattr(sys, "stdin", piped)
        summary = score("-", tmp_path / "out.jsonl", gate)
    assert summary.actions == score(tmp_path / "qa_data.json", tmp_path / "file.jsonl", gate).actions
    assert [line["id"] for line in output(tmp_path / "out.jsonl")] == [f"halueval-{n:05d}" for n in range(4)]


def test_a_stored_decision_on_halueval_is_found_in_its_source(tmp_path: Path, gate: MemoryGate) -> None:
    (tmp_path / "qa_data.json").write_bytes(halueval(*range(4)))
    score(tmp_path / "qa_data.json", tmp_path / "out.jsonl", gate)
    number, record = find_decision(tmp_path / "out.jsonl", id="halueval-00002")
    source = find_source(tmp_path / "qa_data.json", record, number)
    assert source.query == "Where was person 2 born, who treats a disease?"
    assert {memory.text for memory in source.memories} >= {"in Vienna, 2", "Person 2 was born in Vienna."}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (halueval(0, 1) + b"\n" + halueval(2, knowledge=" "), "line 4: empty knowledge"),
        (halueval(0, 1, 2) + GOOD, "line 4: no knowledge, question, right_answer, hallucinated_answer"),
        (b'{"question": "What is tea?", "right_answer": "A drink."}', "line 1: no knowledge, hallucinated_answer"),
        (halueval(0, 1), "questions must be more than 2"),
    ],
)
def test_a_bad_line_of_halueval_ends_the_run_before_it_begins(
    tmp_path: Path, gate: MemoryGate, content: bytes, message: str
) -> None:
    (tmp_path / "qa_data.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        score(tmp_path / "qa_data.json", tmp_path / "out.jsonl", gate)
    assert not list(tmp_path.glob("out*"))


def test_a_retrieval_with_keys_of_halueval_further_down_is_a_bad_line_as_ever(tmp_path: Path, gate: MemoryGate) -> None:
    (tmp_path / "in.jsonl").write_bytes(GOOD + b"\n" + halueval(0))
    summary = score(tmp_path / "in.jsonl", tmp_path / "out.jsonl", gate)
    assert (summary.lines, summary.errors) == (2, 1)


def test_the_bar_of_a_data_set_follows_its_stores(tmp_path: Path) -> None:
    """They all are read before the first is decided on."""
    path = tmp_path / "qa_data.json"
    path.write_bytes(halueval(*range(4)))
    with score_module._Source(path) as source:
        places = [source.position() for _ in source.items()]
    assert places == pytest.approx([path.stat().st_size * part for part in (0.25, 0.5, 0.75, 1)], abs=1)


@pytest.fixture
def decided(tmp_path: Path, gate: MemoryGate) -> Path:
    lines = [GOOD, READY, b"bad", GOOD, GOOD.replace(b"good", b"a/b \xc3\xa9")]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    score(tmp_path / "in.jsonl", tmp_path / "out.jsonl", gate)
    return tmp_path / "out.jsonl"


def test_a_stored_decision_is_found_by_id_or_line(decided: Path) -> None:
    assert find_decision(decided, line=2)[1].id == "2"
    assert find_decision(decided, id="a/b é")[0] == 5
    assert isinstance(find_decision(decided, line=1)[1], DecisionRecord)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"id": "good"}, "more than one line with id 'good', choose by the number of the line: 1, 4"),
        ({"id": "goood"}, "has no line with id 'goood'; did you mean 'good'?"),
        ({"line": 3}, "line 3: line 3 could not be decided: not valid JSON"),
        ({"line": 9}, "has no line 9"),
        ({}, "has several lines"),
    ],
)
def test_a_stored_decision_that_cannot_be_found_is_explained(
    decided: Path, wanted: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        find_decision(decided, **wanted)


def test_a_mistyped_id_reads_the_file_once(decided: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    enter = score_module._Source.__enter__
    monkeypatch.setattr(score_module._Source, "__enter__", lambda self: opened.append(self.name) or enter(self))
    with pytest.raises(ValueError, match="did you mean 'good'"):
        find_decision(decided, id="goood")
    assert opened == [str(decided)]
    monkeypatch.setattr(score_module, "MAX_HINTS", 0)
    with pytest.raises(ValueError, match=r"has no line with id 'goood'$"):
        find_decision(decided, id="goood")


def test_standard_input_gives_no_hint(decided: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with decided.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(ValueError, match=r"- has no line with id 'goood'$"):
            find_decision("-", id="goood")


def test_an_id_with_escapes_is_hinted_at(tmp_path: Path) -> None:
    for line, id in ((b'{"id": "a\\u00e9\\"b"}', 'aé"b'), (b'{"id":"good"}', "good")):
        (tmp_path / "out.jsonl").write_bytes(line)
        with pytest.raises(ValueError, match=re.escape(f"did you mean {id!r}?")):
            find_decision(tmp_path / "out.jsonl", id=id + "x")


def test_the_source_of_a_decision_is_the_line_of_its_id(decided: Path) -> None:
    source = decided.with_name("in.jsonl")
    number, record = find_decision(decided, line=2)
    assert find_source(source, record, number).signals is not None
    _, record = find_decision(decided, line=5)
    assert find_source(source, record, 1).query == "What is tea?"
    with pytest.raises(ValueError, match="has no line with id"):
        find_source(_other(source), record, 5)


def _other(source: Path) -> Path:
    path = source.with_name("other.jsonl")
    path.write_bytes(READY)
    return path


def test_standard_input_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"signals": {"relevance": 0.9, "reliability": 0.8, "risk": 0.2}}\n')
    before = path.read_bytes()
    with path.open("rb") as stdin:
        command = [sys.executable, "-m", "mdl_torch", "score", "-", "-o", str(path)]
        run = subprocess.run(command, stdin=stdin, capture_output=True, text=True)
    assert run.returncode == 2
    assert "would overwrite the input" in run.stderr
    assert path.read_bytes() == before


def test_a_second_run_on_the_same_output_is_refused(tmp_path: Path, gate: MemoryGate) -> None:
    fcntl = pytest.importorskip("fcntl", reason="no file locks on this system")
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"signals": {"relevance": 0.9, "reliability": 0.8, "risk": 0.2}}\n')
    partial = tmp_path / "out.jsonl.partial"
    with partial.open("wb") as other:
        other.write(b"of the other run\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another run is writing"):
            score(source, target, gate)
        assert partial.read_bytes() == b"of the other run\n"
    assert score(source, target, gate).lines == 1
    assert not partial.exists()


# --- drift ------------------------------------------------------------------------------------------------------------

SEEN = {"active": (0.5, 0.4, 0.6), "supp": (0.3, 0.2, 0.4), "silent": (0.2, 0.1, 0.3), "opt_out": (0.0, 0.0, 0.0)}


def mixed(**actions: int) -> Summary:
    every = {name: actions.get(name, 0) for name in SEEN}
    return Summary(lines=sum(every.values()), actions=every, calibrated=dict(SEEN))


def test_a_mix_like_that_of_the_calibration_is_no_drift() -> None:
    assert mixed(active=500, supp=300, silent=200).drift() == {}


def test_a_mix_outside_of_the_interval_is_drift() -> None:
    assert mixed(active=900, supp=100).drift() == {
        "active": (0.9, 0.4, 0.6),
        "supp": (0.1, 0.2, 0.4),
        "silent": (0.0, 0.1, 0.3),
    }
    assert mixed(active=500, supp=300, silent=190, opt_out=10).drift() == {"opt_out": (0.01, 0.0, 0.0)}


def test_few_lines_are_given_leeway() -> None:
    assert mixed(active=3, supp=1).drift() == {}
    assert mixed().drift() == {}


def test_errors_do_not_count_as_decisions() -> None:
    summary = mixed(active=500, supp=300, silent=200)
    summary.lines += 1000
    summary.errors = 1000
    assert summary.drift() == {}


def test_drift_is_reported(tmp_path: Path) -> None:
    lines = [json.dumps({"signals": {"relevance": 1.0, "reliability": 1.0, "risk": 0.0}}) for _ in range(200)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    summary = score(tmp_path / "in.jsonl", tmp_path / "out.jsonl", MemoryGate.from_pretrained())
    assert summary.calibrated == Calibration.reference().action_mix
    assert summary.to_dict()["drift"]["active"][0] == 1.0
    bare = score(tmp_path / "in.jsonl", tmp_path / "bare.jsonl", MemoryGate.from_pretrained(calibration=None))
    assert bare.drift() == {}
