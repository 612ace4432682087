"""Every analysis over a run, from Python and from the command line: the same numbers, and nothing left out."""

from __future__ import annotations

import csv
import json

import pytest
from test_runner import QUESTIONS, Echo, experiment

from mdl_torch.analysis.everything import ANALYSES, analyse, chosen, write_analyses
from mdl_torch.analysis.study import Study
from mdl_torch.evaluation.runner import run
from mdl_torch.evaluation.tables import shown
from tests.cases import mdl

SYSTEMS = ("b1", "b2", "b3", "certified", "ensemble", "abstain", "lr", "tree")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, encoder):
    path = tmp_path_factory.mktemp("analyses")
    data = path / "lucky.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mdl_torch.encoder.SentenceEncoder.from_pretrained", lambda *_, **__: encoder)
        assert run(experiment(data, seeds=(0, 1), questions=12, systems=SYSTEMS), path / "run", Echo()).complete
    return path / "run"


@pytest.fixture(autouse=True)
def _one_encoder(encoder, monkeypatch):
    monkeypatch.setattr("mdl_torch.encoder.SentenceEncoder.from_pretrained", lambda *_, **__: encoder)


def test_a_study_is_the_run_as_it_was(folder):
    study = Study.of(folder)
    assert (len(study.samples), len(study.pairs), len(study.split)) == (3 * 12 * 2, 12 * 2, 2 * 8)
    assert list(study.layers) == ["paper", "certified", "ensemble"]
    assert not set(study.samples.questions) & set(study.split.questions)
    for name in ("b3", "certified", "ensemble"):
        layer = study.layers["paper" if name == "b3" else name]
        for record in study.run.of(name):
            if record["decision"]["reasons"]:
                continue  # the guard had its say
            assert layer.digest() == record["gate"]["layer"]


def test_a_calibration_that_is_not_the_runs_is_refused(folder, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    (path,) = copy.glob("calibration-paper-*.json")
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "thresholds": [0.5, 0.4, 0.3]}))
    with pytest.raises(ValueError, match=r"the calibration of 'paper' in .* is not the one that the run had"):
        Study.of(copy)


def test_all_writes_every_table_and_figure(capfd, folder, tmp_path):
    out = tmp_path / "report"
    status, _, _ = mdl(capfd, "report", str(folder), "--all", "--latency_runs", "40", "-o", str(out))
    assert status == 0
    found = {path.name for path in out.iterdir()}
    study = Study.of(folder)
    tables = [table for several in analyse(study, latency_runs=40).values() for table in several]
    assert {f"{table.name}.csv" for table in tables} <= found
    assert len({table.name for table in tables}) == len(tables)
    figures = ("fig3a", "fig3b", "fig4", "fig5a", "fig5b", "fig5c", "seeds", "risk_coverage")
    assert {f"{name}{suffix}" for name in figures for suffix in (".png", ".svg")} <= found
    assert {"report.md", "report.json", "analyses.md", "cases.md", "cases.html"} <= found
    text = (out / "analyses.md").read_text("utf-8")
    assert all(f"## {table.title}" in text for table in tables)
    assert "nan" not in text.lower().replace("finance", "").replace("governance", "")


@pytest.mark.parametrize("name", [name for name in ANALYSES if name != "table8"])
def test_each_is_reachable_alone_with_the_same_numbers(capfd, folder, tmp_path, name):
    status, out, _ = mdl(
        capfd, "report", str(folder), "--only", f"[{name}]", "-o", str(tmp_path), "--json", "--figures", "false"
    )
    assert status == 0
    (told,) = json.loads(out)
    tables = analyse(Study.of(folder), [name])[name]
    assert told["tables"] == json.loads(json.dumps([table.to_dict() for table in tables]))
    for table in tables:
        heads, *rows = list(csv.reader((tmp_path / f"{table.name}.csv").read_text("utf-8").splitlines()))
        assert heads[0] == table.columns[0]
        assert [row[0] for row in rows] == [shown(row[0]) for row in table.rows]


def test_cases_alone(capfd, folder, tmp_path):
    question, text = Study.of(folder).run.questions[0], Study.of(folder).run.records[0]["question"]
    status, out, _ = mdl(capfd, "report", str(folder), "--cases", f"[{question}]", "-o", str(tmp_path))
    assert status == 0
    assert "wrote 2 files" in out
    assert text in (tmp_path / "cases.md").read_text("utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"cases.md", "cases.html"}
    status, _, err = mdl(capfd, "report", str(folder), "--cases", "[no-such-question]", "-o", str(tmp_path))
    assert status != 0
    assert "no-such-question" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "[table9]"], "unknown analysis 'table9'"),
        (["--only", "[]"], "--only must name one analysis or more"),
        (["--all", "--only", "[table6]"], "--all and --only exclude each other"),
    ],
)
def test_what_cannot_be_asked(capfd, folder, options, message):
    status, _, err = mdl(capfd, "report", str(folder), *options)
    assert status != 0
    assert message in err


def test_names_may_stand_without_brackets(capfd, folder, tmp_path):
    status, _, _ = mdl(
        capfd, "report", str(folder), "--only", "table7a,accuracy", "-o", str(tmp_path), "--figures", "false"
    )
    assert status == 0
    assert (tmp_path / "accuracy-table7a.md").is_file()


def test_an_output_that_is_no_folder_is_said_at_once(capfd, folder, tmp_path):
    (tmp_path / "file").write_text("mine")
    for value, message in ((str(tmp_path / "file"), "--output must be a folder"), ("", "--output must name a folder")):
        status, _, err = mdl(capfd, "report", str(folder), "--only", "accuracy", "-o", value)
        assert status != 0
        assert message in err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_given_twice_is_refused(capfd, folder):
    status, _, err = mdl(capfd, "report", str(folder), f"{folder}/", "--only", "accuracy")
    assert status != 0
    assert "runs must be folders, each once" in err


def test_the_help_names_every_analysis(capfd):
    _, out, _ = mdl(capfd, "report", "--help")
    assert set(ANALYSES) <= set(out.replace(",", " ").split())


def test_one_alone_leaves_the_report_of_all_as_it_was(folder, tmp_path):
    study = Study.of(folder)
    whole = dict.fromkeys(ANALYSES, ())
    write_analyses(study, whole, tmp_path, figures=False)
    before = (tmp_path / "analyses.md").read_bytes()
    write_analyses(study, analyse(study, ["accuracy"]), tmp_path, figures=False)
    assert (tmp_path / "analyses.md").read_bytes() == before
    assert "Decision accuracy" in (tmp_path / "accuracy.md").read_text("utf-8")


def test_names_come_in_their_order():
    assert chosen(None) == list(ANALYSES)
    assert chosen(["fig4", "accuracy", "fig4"]) == ["accuracy", "fig4"]


def test_a_run_without_most_of_it_is_analysed_all_the_same(tmp_path):
    """B1 alone, a calibration that was given: every analysis says what is missing, none fails."""
    data = tmp_path / "lucky.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    run(experiment(data, systems=("b1",), calibration="reference"), tmp_path / "run", Echo())
    study = Study.of(tmp_path / "run")
    found = analyse(study, [name for name in ANALYSES if name != "table8"])
    files = write_analyses(study, found, tmp_path / "out")
    assert all(path.stat().st_size for path in files)
    for several in found.values():
        for table in several:
            assert table.rows or table.note, table.name
