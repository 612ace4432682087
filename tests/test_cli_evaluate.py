"""``mdl evaluate``, ``mdl calibrate`` and ``mdl report``, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mdl_torch.calibration import Calibration
from mdl_torch.evaluation.experiment import Experiment
from mdl_torch.evaluation.systems import SYSTEMS
from tests.cases import mdl
from tests.test_runner import QUESTIONS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _one_encoder(encoder, monkeypatch):
    monkeypatch.setattr("mdl_torch.encoder.SentenceEncoder.from_pretrained", lambda *_, **__: encoder)


@pytest.fixture
def config(tmp_path) -> Path:
    """A run on questions of our own, with a model that says what its memories say first, and else the truth."""
    data = tmp_path / "lucky.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    answers = {"emories": "Yes, that number is lucky there.", "Question": "Luck has nothing to do with numbers."}
    described = {
        "data": str(data),
        "model": {"kind": "scripted", "answers": answers},
        "questions": 10,
        "calibration_questions": 8,
        "seeds": [0, 1],
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"experiment": described, "output": str(tmp_path / "run")}))
    return path


@pytest.fixture
def done(capfd, config) -> Path:
    """The folder of a run."""
    status, out, _ = mdl(capfd, "evaluate", "--config", str(config))
    assert status == 0
    assert "100 of 100 answers, 100 of them new" in out
    return config.parent / "run"


def test_a_run_is_gone_on_with(capfd, config, done):
    status, out, _ = mdl(capfd, "evaluate", "--config", str(config), "--json")
    assert status == 0
    assert json.loads(out) == {
        "answers": 100,
        "expected": 100,
        "new": 0,
        "errors": 0,
        "complete": True,
        "run": str(done),
    }


def test_values_on_the_command_line_win(capfd, config, tmp_path):
    other = tmp_path / "other"
    arguments = ("--experiment.systems", '["b1"]', "--experiment.seeds", "[3]", "--output", str(other), "--json")
    status, out, _ = mdl(capfd, "evaluate", "--config", str(config), *arguments)
    assert (status, json.loads(out)["expected"]) == (0, 10)
    assert json.loads((other / "experiment.json").read_text())["experiment"]["seeds"] == [3]


def test_the_report_says_what_the_records_say(capfd, done):
    status, out, _ = mdl(capfd, "report", str(done), "--figures", "false")
    assert status == 0
    assert "20 of 20" in out
    text = (done / "report" / "report.md").read_text("utf-8")
    assert "B2 standard RAG" in text
    records = [json.loads(line) for line in (done / "answers.jsonl").read_text("utf-8").splitlines()]
    evaluated = json.loads((done / "experiment.json").read_text())["evaluated_questions"]
    b2 = [r["outcome"] == "hallucination" for r in records if r["system"] == "b2" and r["question_id"] in evaluated]
    (row,) = [line for line in text.splitlines() if line.startswith("| B2 standard RAG | 20 of 20")]
    assert f"{sum(b2) / len(b2):.3f}" in row.split("|")[3]


def test_several_runs_are_reported_together(capfd, config, done, tmp_path):
    mdl(
        capfd, "evaluate", "--config", str(config), "--experiment.store_seed", "1", "--output", str(tmp_path / "second")
    )
    status, _, _ = mdl(capfd, "report", str(done), str(tmp_path / "second"), "-o", str(tmp_path / "both"))
    assert status == 0
    assert (tmp_path / "both" / "combined.csv").is_file()
    assert list((tmp_path / "both").glob("fig3b.*"))


def test_answers_as_parquet(capfd, done):
    parquet = pytest.importorskip("pyarrow.parquet")
    mdl(capfd, "report", str(done), "--parquet", "--figures", "false")
    table = parquet.read_table(done / "answers.parquet")
    assert table.num_rows == 100
    assert {"system", "seed", "outcome", "decision_gated_confidence"} <= set(table.column_names)


def test_a_calibration_is_fitted_and_used(capfd, done, tmp_path):
    path = tmp_path / "calibration.json"
    status, out, _ = mdl(capfd, "calibrate", str(done), "-o", str(path))
    assert status == 0
    fitted = Calibration.load(path)
    assert fitted.label in out
    assert fitted.samples == 8
    assert "agreement with the oracle" in out
    (tmp_path / "in.jsonl").write_text('{"query": "Is it?", "memories": ["It is."], "risk": 0.2}\n')
    arguments = (
        "score",
        str(tmp_path / "in.jsonl"),
        "-o",
        str(tmp_path / "out.jsonl"),
        "--gate.calibration",
        str(path),
    )
    assert mdl(capfd, *arguments)[0] == 0
    assert json.loads((tmp_path / "out.jsonl").read_text())["calibration"] == fitted.label


def test_a_calibration_of_certified_keeps_the_exact_range(capfd, done, tmp_path):
    path = tmp_path / "calibration.json"
    status, out, _ = mdl(capfd, "calibrate", str(done), "-o", str(path), "--layer", "certified")
    assert status == 0
    assert "the exact range" in out
    assert Calibration.load(path).norm_range is None


def test_quantiles_narrow_the_range(capfd, done, tmp_path):
    for name, method in (("all", "minmax"), ("some", "quantile(0.2)")):
        mdl(capfd, "calibrate", str(done), "-o", str(tmp_path / f"{name}.json"), "--range", method)
    wide, narrow = (Calibration.load(tmp_path / f"{name}.json").norm_range for name in ("all", "some"))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configurations_that_ship_are_valid(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    values: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    experiment = Experiment.from_dict(values["experiment"])
    assert experiment.options["kind"] in ("local", "http")
    assert set(experiment.systems) <= set(SYSTEMS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"systems": ["b9"]}, "unknown system 'b9'"),
        ({"seeds": []}, "seeds must be one or more"),
        ({"model": {"kind": "oracle"}}, "unknown kind of backend 'oracle'"),
        ({"model": {}}, "model must name its kind"),
        ({"model": {"kind": "scripted", "answers": 5}}, "an option of the scripted backend is of the wrong kind"),
        ({"data": "/no/such/file.csv"}, "no such file: /no/such/file.csv"),
        ({"data": "truthfulqaa"}, "did you mean 'truthfulqa'"),
        ({"questions": 1000}, "questions and calibration_questions must be no more than the 24 questions of"),
        ({"sampling": {"temperature": 9}}, "temperature must be in [0, 2]"),
        ({"calibration": "/no/such/file"}, "calibration must be fit, reference or a file, got '/no/such/file'"),
    ],
)
def test_mistakes_are_one_line(capfd, config, changes, message):
    values = yaml.safe_load(config.read_text())
    values["experiment"] |= changes
    config.write_text(yaml.safe_dump(values))
    status, out, err = mdl(capfd, "evaluate", "--config", str(config))
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_what_is_no_run_is_named(capfd, tmp_path):
    for command in (("report", str(tmp_path)), ("calibrate", str(tmp_path), "-o", str(tmp_path / "c.json"))):
        status, _, err = mdl(capfd, *command)
        assert status == 2
        assert "holds no run" in err


def test_a_report_of_a_run_that_is_not_complete_says_so(capfd, done):
    path = done / "answers.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-5]) + "{ cut", "utf-8")
    with pytest.warns(RuntimeWarning, match="1 damaged lines were skipped"):
        status, out, _ = mdl(capfd, "report", str(done), "--figures", "false")
    assert status == 1
    assert "5 ARE MISSING" in out


def test_an_empty_file_is_called_empty(capfd, config, tmp_path):
    (tmp_path / "nothing.jsonl").touch()
    status, _, err = mdl(
        capfd, "evaluate", "--config", str(config), "--experiment.data", str(tmp_path / "nothing.jsonl")
    )
    assert (status, "nothing.jsonl is empty" in err) == (2, True)
