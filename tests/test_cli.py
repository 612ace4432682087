"""The command line, as a user meets it: real runs of ``mdl``."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mdl_torch import __version__, cli
from mdl_torch.data import read_text, resource
from tests.cases import mdl

SCHEMA = jsonschema.Draft202012Validator(json.loads(read_text("output.schema.json")))
READY = '{"id": "r", "signals": {"relevance": 0.9, "reliability": 0.8, "risk": 0.2}}\n'
BAD = '{"id": "b", "query": "q", "memories": [], "risk": 2}\n'
ERROR_LINE = '{"schema_version": 1, "id": "b", "line": 13, "error": "risk must be in [0, 1], got 2"}\n'
SAMPLE = str(resource("sample.jsonl"))
MDL = [sys.executable, "-m", "mdl_torch"]


def process(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """``mdl`` in a process of its own."""
    return subprocess.run(
        [*MDL, *arguments], input=stdin, capture_output=True, timeout=300, env={**os.environ, **environment}
    )


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(READY * 3)
    return path


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decisions on the sample, by a real process."""
    path = tmp_path_factory.mktemp("decisions") / "out.jsonl"
    done = process("score", SAMPLE, "-o", str(path), "--table", "--rows", "3")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert "med-01" in text
    assert "77 more lines are not shown" in text
    assert "lines" in text
    return path


def output(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for line in found:
        SCHEMA.validate(line)
    return found


def test_the_sample_is_scored_and_every_line_is_of_the_schema(decisions: Path) -> None:
    found = output(decisions)
    assert [line["id"] for line in found] == [json.loads(line)["id"] for line in Path(SAMPLE).read_text().splitlines()]
    assert all(line["calibration"].startswith("reference:") for line in found)


def test_help_is_fast_and_has_examples_and_exit_statuses(capfd: pytest.CaptureFixture[str]) -> None:
    status, top, _ = mdl(capfd, "--help")
    assert status == 0
    assert "exit status" in top
    for command in cli.COMMANDS:
        assert command.split()[0] in top
        status, text, _ = mdl(capfd, *command.split(), "--help")
        assert status == 0
        assert f"example:\n  mdl {command} " in text
        for option in ("--config", "--print_config", "--json", "--debug"):
            assert option in text


def test_help_does_not_load_torch() -> None:
    code = "import sys, mdl_torch.cli as c; c._parser(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False"], done.stderr


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert mdl(capfd, "--version")[:2] == (0, f"mdl_torch {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["scor"], "did you mean score?"),
        (["score", "x", "--outptu", "y"], "did you mean --output?"),
        (["score", "x", "--gate.encodr", "y"], "did you mean --gate.encoder?"),
        (["score", "x", "--gate.config.sgima", "1"], "did you mean sigma?"),
        (["score", "x", "--gate.layer", "papr"], "did you mean 'paper'?"),
        (["score", "x", "--gate.detector", "lexcal"], "did you mean 'lexical'?"),
        (["explain", "x", "--verfy"], "did you mean --verify?"),
        (["score", "x", "--gate.long_text", "poo"], "'pool', 'truncate'"),
        (["score", "x", "--batch_size", "0"], "batch_size"),
        (["score", "x", "--table", "yes"], "unrecognized arguments: yes"),
        (["score"], "IN"),
        ([], "{score,explain,certify,evaluate,"),
        (["bench", "conflict"], "did you mean conflicts?"),
        (["bench", "conflicts"], "--pairs"),
        (["bench"], "{conflicts}"),
        (["bench", "conflicts", "--pairs", "x", "--detectr", "y"], "did you mean --detector?"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_nearest_name(
    capfd: pytest.CaptureFixture[str], arguments: Sequence[str], hint: str
) -> None:
    status, out, err = mdl(capfd, *arguments)
    assert (status, out) == (2, "")
    assert hint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ("gate: {encodr: x}", "did you mean gate.encoder?"),
        ("gate: {config: {sgima: 1}}", "did you mean sigma?"),
        ("outptu: x", "did you mean output?"),
        ("gate: {encoder: [x", "config"),
        ("- a", "config"),
        ("batch_size: many", "batch_size"),
        ("table: nope", "table must be true or false, got 'nope'"),
        ("\udcff\udcfe", "utf-8"),
    ],
)
def test_a_bad_configuration_is_one_line(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, lines: Path, config: str, hint: str
) -> None:
    (tmp_path / "run.yaml").write_bytes(config.encode("utf-8", "surrogateescape"))
    status, _, err = mdl(capfd, "score", str(lines), "--config", str(tmp_path / "run.yaml"))
    assert (status, err.count("\n")) == (2, 1)
    assert hint in err


def test_a_printed_configuration_can_be_fed_back(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, lines: Path
) -> None:
    given = ["--gate.require_relevant", "false", "--gate.config.thresholds", "[0.9, 0.5, 0.1]", "--batch_size", "2"]
    status, printed, _ = mdl(capfd, "score", str(lines), "-o", str(tmp_path / "out.jsonl"), *given, "--print_config")
    assert status == 0
    values = yaml.safe_load(printed)
    assert values["gate"]["require_relevant"] is False
    assert values["gate"]["config"]["thresholds"] == [0.9, 0.5, 0.1]
    (tmp_path / "run.yaml").write_text(printed)
    assert mdl(capfd, "score", "--config", str(tmp_path / "run.yaml"), "--print_config")[1] == printed
    assert mdl(capfd, "score", "--config", str(tmp_path / "run.yaml"))[0] == 0
    assert output(tmp_path / "out.jsonl")[0]["thresholds"] == [0.9, 0.5, 0.1]
    override = ["--gate.config.thresholds", "[0.8, 0.5, 0.1]"]
    assert mdl(capfd, "score", "--config", str(tmp_path / "run.yaml"), *override)[0] == 0
    assert output(tmp_path / "out.jsonl")[0]["thresholds"] == [0.8, 0.5, 0.1]


def test_the_calibration_is_an_option(capfd: pytest.CaptureFixture[str], tmp_path: Path, lines: Path) -> None:
    for value, label in (("auto", "reference:"), ("null", "exact-range")):
        out = tmp_path / "out.jsonl"
        assert mdl(capfd, "score", str(lines), "-o", str(out), "--gate.calibration", value)[0] == 0
        assert output(out)[0]["calibration"].startswith(label)


def test_bad_lines_set_the_exit_status_and_json_reports_them(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, lines: Path
) -> None:
    lines.write_text(READY + BAD + READY)
    status, out, _ = mdl(capfd, "score", str(lines), "-o", str(tmp_path / "out.jsonl"), "--json")
    summary = json.loads(out)
    assert (status, summary["lines"], summary["errors"], summary["decisions"]) == (1, 3, 1, 2)
    assert summary["first_errors"][0]["error"].startswith("risk must be in [0, 1], got 2")
    assert [line.get("line") for line in output(tmp_path / "out.jsonl")] == [None, 2, None]


def test_standard_streams_carry_lines_and_nothing_else() -> None:
    done = process("score", "-", "-o", "-", "--table", stdin=(READY + BAD).encode())
    assert done.returncode == 1
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["r", "b"]
    assert b"lines" in done.stderr


def test_json_and_decisions_do_not_share_standard_output(capfd: pytest.CaptureFixture[str], lines: Path) -> None:
    status, out, err = mdl(capfd, "score", str(lines), "--json")
    assert (status, out) == (2, "")
    assert "-o" in err


def test_what_cannot_run_says_so_in_one_line(capfd: pytest.CaptureFixture[str], tmp_path: Path, lines: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text('{"query": "q", "memories": ["m"], "risk": 0.2}\n')
    (tmp_path / "cal.json").write_text("{}")
    out = str(tmp_path / "out.jsonl")
    for arguments, message in (
        (["score", str(tmp_path / "nope.jsonl")], f"No such file or directory: {tmp_path / 'nope.jsonl'}"),
        (["score", str(tmp_path)], f"Is a directory: {tmp_path}"),
        (["score", str(lines), "-o", str(tmp_path)], f"Is a directory: {tmp_path}"),
        (["score", str(lines), "-o", str(lines)], "would overwrite the input"),
        (["score", str(lines), "-o", "/dev/full"], "No space left on device"),
        (["score", str(text), "-o", out, "--gate.encoder", str(tmp_path / "no-model")], "cannot load the encoder"),
        (["score", str(lines), "-o", out, "--gate.calibration", str(tmp_path / "no.json")], "no.json"),
        (["score", str(lines), "-o", out, "--gate.calibration", str(tmp_path / "cal.json")], "not a calibration file"),
        (["score", str(lines), "-o", out, "--gate.layer", str(tmp_path / "no" / "layer")], "no such folder"),
        (["score", str(lines), "-o", out, "--gate.risk_policy", str(tmp_path / "no.yaml")], "No such file"),
        (["score", str(lines), "-o", out, "--gate.config.sigma", "-1"], "sigma must be greater than 0"),
        (
            ["score", str(lines), "-o", out, "--gate.config.sigma", "0.3", "--gate.calibration", "reference"],
            "was fitted for configuration",
        ),
        (["explain", str(tmp_path / "nope.jsonl")], "No such file"),
        (["explain", str(lines), "--line", "1"], "schema_version"),
    ):
        status, _, err = mdl(capfd, *arguments)
        assert (status, err.count("\n")) == (2, 1), (arguments, err)
        assert message in err
    assert not (tmp_path / "out.jsonl").exists()


def test_debug_shows_the_traceback(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" in mdl(capfd, "score", "/nope.jsonl", "--debug")[2]
    assert "Traceback" not in mdl(capfd, "score", "/nope.jsonl")[2]
    monkeypatch.setenv("MDL_DEBUG", "1")
    assert "Traceback" in mdl(capfd, "score", "/nope.jsonl")[2]


def test_a_reader_that_has_enough_ends_the_run_quietly(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(READY * 3_000)
    command = [*MDL, "score", str(tmp_path / "in.jsonl"), "--batch_size", "5", "--audits", "false"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()
    assert running.stderr is not None
    with running.stderr:
        assert running.stderr.read() == b""
    assert running.wait(timeout=60) == 0


def test_an_interrupted_run_says_how_far_it_got(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    command = [*MDL, "score", "-", "-o", str(out), "--batch_size", "1", "--audits", "false"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdin is not None
    running.stdin.write(READY.encode() * 3)
    running.stdin.flush()
    partial = out.with_name("out.jsonl.partial")
    for _ in range(600):
        if partial.exists() and partial.read_bytes().count(b"\n") >= 2:
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"mdl score: interrupted; stopped after " in err
    assert b"Traceback" not in err
    assert not out.exists()


def test_gzip_by_name(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(READY.encode()))
    assert mdl(capfd, "score", str(tmp_path / "in.jsonl.gz"), "-o", str(tmp_path / "out.jsonl.gz"))[0] == 0
    assert json.loads(gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()))["id"] == "r"
    assert "decision r" in mdl(capfd, "explain", str(tmp_path / "out.jsonl.gz"))[1]


def test_a_bar_is_shown_on_request(capfd: pytest.CaptureFixture[str], tmp_path: Path, lines: Path) -> None:
    out = str(tmp_path / "out.jsonl")
    assert "mdl score" not in mdl(capfd, "score", str(lines), "-o", out)[2]
    err = mdl(capfd, "score", str(lines), "-o", out, "--progress", "true")[2]
    assert "100%" in err
    assert "lines=3" in err


def test_explain_shows_a_card(capfd: pytest.CaptureFixture[str], decisions: Path) -> None:
    status, text, _ = mdl(capfd, "explain", str(decisions), "--id", "med-02", "--source", SAMPLE)
    assert status == 0
    assert "decision med-02" in text
    assert "Query: Do antibiotics help against the common cold?" in text
    assert mdl(capfd, "explain", str(decisions), "--line", "2")[1].startswith(text[:60])


def test_explain_gives_the_stored_line_as_json(capfd: pytest.CaptureFixture[str], decisions: Path) -> None:
    status, text, _ = mdl(capfd, "explain", str(decisions), "--line", "2", "--json")
    assert (status, json.loads(text)) == (0, output(decisions)[1])


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--id", "med-2"], "did you mean 'med-02'?"),
        (["--line", "99"], "has no line 99"),
        ([], "choose one by its id"),
        (["--line", "0"], "line"),
    ],
)
def test_explain_helps_to_choose(
    capfd: pytest.CaptureFixture[str], decisions: Path, arguments: Sequence[str], hint: str
) -> None:
    status, _, err = mdl(capfd, "explain", str(decisions), *arguments)
    assert status == 2
    assert hint in err


def test_verification_sets_the_exit_status(capfd: pytest.CaptureFixture[str], tmp_path: Path, decisions: Path) -> None:
    line = output(decisions)[1]
    altered = tmp_path / "altered.jsonl"
    altered.write_text(json.dumps({**line, "action": "active"}))
    one = ["--line", "2", "--verify"]
    assert mdl(capfd, "explain", str(decisions), *one)[0] == 0
    assert mdl(capfd, "explain", str(decisions), *one, "--source", SAMPLE)[0] == 0
    status, text, _ = mdl(capfd, "explain", str(altered), "--line", "1", "--verify", "--json")
    assert (status, json.loads(text)["verification"]["differing"]) == (1, ["injected", "action"])
    status, text, _ = mdl(capfd, "explain", str(decisions), *one, "--gate.calibration", "null")
    assert status == 2
    assert "CANNOT BE VERIFIED" in text


def test_a_whole_file_is_verified(capfd: pytest.CaptureFixture[str], tmp_path: Path, decisions: Path) -> None:
    head = tmp_path / "head.jsonl"
    stored = output(decisions)[:12]
    head.write_text("".join(json.dumps(line) + "\n" for line in stored) + ERROR_LINE)
    source = tmp_path / "source.jsonl"
    source.write_text("".join(Path(SAMPLE).read_text("utf-8").splitlines(keepends=True)[:12]) + BAD)
    for given, scope in (([], "line"), (["--source", str(source)], "line_and_source")):
        status, text, _ = mdl(capfd, "explain", str(head), "--verify", "--json", *given)
        assert status == 0, text
        counts = {"verified": 12, "differs": 0, "not_verifiable": 0, "no_decision": 1, "malformed": 0, "mismatched": 0}
        assert json.loads(text) == {**counts, "scope": scope, "failed": []}
    assert "the texts were not (give --source)" in mdl(capfd, "explain", str(head), "--verify")[1]
    assert "give --source" not in mdl(capfd, "explain", str(head), "--verify", "--source", str(source))[1]
    stored[4]["confidence"] = 0.123
    head.write_text("".join(json.dumps(line) + "\n" for line in stored))
    status, text, _ = mdl(capfd, "explain", str(head), "--verify", "--json")
    values = json.loads(text)
    assert (status, values["differs"], values["failed"][0]["line"]) == (1, 1, 5)
    assert "differs: 1" in mdl(capfd, "explain", str(head), "--verify")[1]


def without(line: dict[str, Any], *path: str) -> str:
    line = json.loads(json.dumps(line))
    inner = line
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return json.dumps(line)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda line: json.dumps(line)[:-40], "not valid JSON"),
        (lambda line: "", "the line is empty"),
        (lambda line: "[]", "an output line must be an object"),
        (lambda line: without(line, "gain"), "lacks gain"),
        (lambda line: without(line, "audit", "energy", "risk"), "audit.energy lacks risk"),
        (lambda line: json.dumps({**line, "confidence": "0.5"}), "confidence must be a finite number, got '0.5'"),
        (lambda line: json.dumps({**line, "thresholds": [0.6]}), "thresholds must have 3 entries, got 1"),
        (lambda line: json.dumps({**line, "status": 0.5}), "status must be a whole number"),
        (lambda line: json.dumps({**line, "error": "bad"}), "unknown field"),
        (lambda line: json.dumps({**line, "surplus": 1}), "unknown field"),
        (lambda line: '{"error": "bad"}', "schema_version"),
    ],
    ids=range(11),
)
def test_a_damaged_line_is_found_and_stops_no_other(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, decisions: Path, damage: Any, message: str
) -> None:
    first, second, third = output(decisions)[:3]
    path = tmp_path / "damaged.jsonl"
    path.write_text("\n".join([json.dumps(first), damage(second), json.dumps(third)]) + "\n")
    status, text, _ = mdl(capfd, "explain", str(path), "--verify", "--json")
    values = json.loads(text)
    assert (status, values["verified"], values["malformed"], values["no_decision"]) == (1, 2, 1, 0)
    (failed,) = values["failed"]
    assert (failed["line"], failed["outcome"]) == (2, "malformed")
    assert message in failed["error"]
    shown = " ".join(mdl(capfd, "explain", str(path), "--verify")[1].split())
    assert "line 2: MALFORMED: " in shown
    assert "malformed: 1" in shown


def test_nothing_to_verify_is_an_error(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    status, _, err = mdl(capfd, "explain", str(tmp_path / "empty.jsonl"), "--verify")
    assert (status, err.count("\n")) == (2, 1)
    assert "holds no line" in err


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (lambda lines: lines[:-1], 3, "the file has this line, the source has not"),
        (lambda lines: [*lines, lines[0]], 4, "the source has this line, the file has not"),
        (lambda lines: [lines[0], lines[2], lines[2]], 2, "the id is 'med-02', that of the source is 'med-03'"),
        (lambda lines: [lines[0], BAD.replace('"b"', '"med-02"'), lines[2]], 2, "the line of the source is bad"),
    ],
    ids=["shorter", "longer", "another", "bad"],
)
def test_a_source_that_is_not_of_these_decisions_is_found(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, decisions: Path, change: Any, line: int, message: str
) -> None:
    file, source = tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(stored) + "\n" for stored in output(decisions)[:3]))
    lines = Path(SAMPLE).read_text("utf-8").splitlines()[:3]
    source.write_text("\n".join(one.strip() for one in change(lines)) + "\n")
    status, text, _ = mdl(capfd, "explain", str(file), "--verify", "--source", str(source), "--json")
    values = json.loads(text)
    assert (status, values["mismatched"]) == (1, 1)
    assert [(one["line"], one["outcome"]) for one in values["failed"]] == [(line, "mismatched")]
    assert message in values["failed"][0]["error"]


@pytest.mark.parametrize("verify", [[], ["--verify"], ["--line", "1", "--verify"]])
def test_one_standard_input_is_not_two_files(capfd: pytest.CaptureFixture[str], verify: list[str]) -> None:
    status, _, err = mdl(capfd, "explain", "-", "--source", "-", *verify)
    assert (status, err.count("\n")) == (2, 1)
    assert "cannot both be standard input" in err


def test_bench_conflicts_prints_rates_by_kind(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pair = {"source": "mine", "kind": "negation", "a": "It is open.", "b": "It is not open.", "conflict": True}
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps(pair) + "\n")
    status, text, _ = mdl(capfd, "bench", "conflicts", "--pairs", str(pairs), "--json")
    assert status == 0
    assert json.loads(text)["kinds"] == [{"source": "mine", "kind": "negation", "conflict": True, "rate": 1.0, "n": 1}]
    assert "negation" in mdl(capfd, "bench", "conflicts", "--pairs", str(pairs))[1]
    assert "did you mean" in mdl(capfd, "bench", "conflicts", "--pairs", str(pairs), "--detector", "literl")[2]
    pairs.write_text("{}")
    status, _, err = mdl(capfd, "bench", "conflicts", "--pairs", str(pairs))
    assert (status, err.count("\n")) == (2, 1)
