"""Reports: the numbers of a run as tables, files and figures."""

from __future__ import annotations

import csv
import json
import re
from xml.etree import ElementTree

import pytest
from rich.console import Console
from test_results import answers, experiment, record

from mdl_torch.evaluation.report import (
    BARS,
    combined_table,
    notes,
    report_tables,
    risk_figure,
    tables,
    top_risk_figure,
    write_report,
)
from mdl_torch.evaluation.results import Rate, read_run, summarise
from mdl_torch.evaluation.statistics import Estimate, Interval, MeanStd
from mdl_torch.evaluation.tables import Table, shown
from mdl_torch.figures import style


def folder_of(path, records, described=None):
    path.mkdir(exist_ok=True)
    (path / "experiment.json").write_text(json.dumps(described or experiment()), "utf-8")
    (path / "answers.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    (path / "environment.json").write_text(json.dumps({"cpu": "A chip", "packages": {"torch": "2.9"}}), "utf-8")
    return path


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path / "run", answers(b1="hcha", b2="hhhe", b3="hcac"))


@pytest.fixture
def other(tmp_path):
    described = experiment(seeds=[0, 1], systems=["b1", "b3"], model={"kind": "http", "model": "tiny"})
    records = [one | {"data": "halueval"} for seed in (0, 1) for one in answers(seed, b1="hhcc", b3="cccc")]
    return folder_of(tmp_path / "other", records, described)


def summary_of(folder):
    return summarise(read_run(folder), resamples=100)


def in_terminal(renderable, width=140):
    with (console := Console(width=width, color_system=None)).capture() as captured:
        console.print(renderable)
    return captured.get()


def table_of(text, title):
    """The cells of a Markdown table."""
    lines = text.split(f"## {title}\n\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (None, "–"),
        (3, "3"),
        (0.5, "0.500"),
        (61.04, "61.0"),
        (Rate(0.25, 0.1, 0.5, "wilson", 4, 4), "0.250 [0.100, 0.500]"),
        (Rate(0.25, None, None, "none", 4, 1), "0.250"),
        (Rate(None, None, None, "none", 0, 0), "–"),
        (Estimate(-0.25, Interval(-0.5, 0.125), 4, 4), "-0.250 [-0.500, +0.125]"),
        (MeanStd(0.5, 0.1, 2), "0.500 ± 0.100"),
        (MeanStd(None, None, 0), "–"),
    ],
)
def test_cells_in_words(cell, words):
    assert shown(cell) == words


def test_a_table_is_the_same_in_each_form():
    table = Table("t", "Rates", ("name", "rate"), (("a|b", Rate(0.25, 0.125, 0.5, "wilson", 4, 4)), ("c", None)), "So.")
    assert table.csv() == "name,rate,rate low,rate high\na|b,0.25,0.125,0.5\nc,,,\n"
    assert table.markdown() == (
        "## Rates\n\n| name | rate |\n| --- | ---: |\n| a\\|b | 0.250 [0.125, 0.500] |\n| c | – |\n\nSo.\n"
    )
    assert re.search(r"a\|b +0\.250 *\n +\[0\.12,\u00a00\.50\]", in_terminal(table.rich()))


def test_a_report_is_written(folder):
    files = write_report(folder, figures=False)
    assert {path.parent for path in files} == {folder / "report"}
    names = {path.name for path in files}
    assert {"report.md", "report.json", "hallucination.csv", "differences.csv", "paper.csv", "baselines.csv"} <= names
    assert not any("fig" in name for name in names)
    first = rows_of(folder / "report" / "hallucination.csv")
    assert [row["overall"] for row in first] == ["0.5", "0.75", "0.25"]
    assert [row["A = 0.85"] for row in first] == ["1.0", "1.0", "0.0"]
    assert [row["answers"] for row in first] == ["4 of 4"] * 3
    difference = rows_of(folder / "report" / "differences.csv")[0]
    assert (difference["difference"], difference["overall"]) == ("B2 − B1", "0.25")
    (values,) = json.loads((folder / "report" / "report.json").read_text("utf-8"))
    assert values["systems"][0]["hallucination"]["overall"]["value"] == 0.5
    assert set(values["weighting_distances"]) == {
        "risk", "risk squared", "tiers by mean risk", "tiers alike", "medium and high only", "high only"}  # fmt: skip


def test_the_text_says_what_a_reader_must_know(folder):
    write_report(folder, figures=False)
    text = (folder / "report" / "report.md").read_text("utf-8")
    assert "12 of 12 answers. 4 of 4 questions (1 low, 1 medium, 2 high risk, of which 1 at A = 0.85), 1 seed." in text
    assert "(t = 11.82, p = 0.007) implies 2 degrees of freedom, as of 3 seeds; it names 2" in text
    assert "error floor was not measured" in text
    assert "| B1 no memory | 4 of 4 | 0.500 [0.150, 0.850] |" in text
    beside = {tuple(row[:2]): row[2:] for row in table_of(text, "Beside the paper's figures")}
    assert beside["system", "measure"][:2] == ["this run", "gemma-4-E4B-it (Section 5.2)"]
    assert beside["same model?", ""] == ["gemma-4-E4B-it", "yes", "no", "no", "no"]
    assert beside["same n?", "questions × seeds"] == [
        "4 × 1", "no: 150 × 2", "no: 200 × 3", "no: 200 × 2", "no: 30 × 1"]  # fmt: skip
    rates = beside["B2 standard RAG", "hallucination, medium risk"]
    assert rates == ["1.000 [0.207, 1.000]", "0.526", "–", "–", "–"]
    rates = beside["B3 MDL", "hallucination, A = 0.85"]
    assert rates == ["0.000 [0.000, 0.793]", "0.000", "0.000", "0.000", "0.000"]
    assert beside["B1 no memory", "abstention"][1:] == ["–", "–", "0.380", "–"]
    assert "- cpu: A chip\n- packages: torch 2.9\n" in text
    assert str(folder) not in text


def test_what_is_missing_is_said_aloud(tmp_path):
    summary = summary_of(folder_of(tmp_path / "run", [record(), record(), record(question="q1")]))
    assert notes(summary)[0].startswith("2 of 12 answers: 10 ARE MISSING. 2 of 4 questions")
    assert "1 records say again what others say, and are counted once." in notes(summary)


def test_a_stratified_sample_and_other_stores_are_said(tmp_path):
    described = experiment(at_top_risk=60, condition="off_topic")
    said = " ".join(notes(summary_of(folder_of(tmp_path / "run", [record(condition="off_topic")], described))))
    assert "at least 60 questions at A = 0.85" in said
    assert "the condition off_topic; the paper has no figures for it" in said


@pytest.mark.parametrize(
    ("floor", "words"),
    [
        (
            {"false_alarm_rate": 0.0667, "miss_rate": 0.2, "questions": 500},
            "calls 6.7% of the correct reference answers a hallucination and does not call 20.0% of the incorrect",
        ),
        ({"false_alarm_rate": None, "miss_rate": None, "questions": 0}, "cannot be measured here"),
    ],
)
def test_the_error_floor_stands_beside_the_rates(tmp_path, floor, words):
    folder = folder_of(tmp_path / "run", [record()], experiment() | {"error_floor": floor})
    assert words in " ".join(notes(summary_of(folder)))


def test_seeds_have_a_table_where_there_are_several(folder, other):
    assert "seeds" not in [table.name for table in tables(summary_of(folder))]
    assert "seeds" in [table.name for table in tables(summary_of(other))]


def test_several_runs_stand_in_one_table(folder, other, tmp_path):
    table = combined_table([summary_of(folder), summary_of(other)])
    assert [row[:4] for row in table.rows] == [
        ("gemma-4-E4B-it", "TruthfulQA", "1", "B1 no memory"),
        ("gemma-4-E4B-it", "TruthfulQA", "1", "B2 standard RAG"),
        ("gemma-4-E4B-it", "TruthfulQA", "1", "B3 MDL"),
        ("tiny", "HaluEval", "2", "B1 no memory"),
        ("tiny", "HaluEval", "2", "B3 MDL"),
    ]
    names = {path.name for path in write_report([folder, other], tmp_path / "both", figures=False)}
    assert {"combined.csv", "hallucination-gemma-4-E4B-it-truthfulqa.csv", "seeds-tiny-halueval.csv"} <= names
    assert len(json.loads((tmp_path / "both" / "report.json").read_text("utf-8"))) == 2


def test_several_runs_need_a_place(folder, other):
    with pytest.raises(ValueError, match="out must be given for the report of several runs"):
        write_report([folder, other])
    with pytest.raises(ValueError, match="folders must be one or more, got none"):
        write_report([])


def test_runs_alike_in_name_do_not_overwrite_each_other(folder, tmp_path):
    files = write_report([folder, folder_of(tmp_path / "again", [record()])], tmp_path / "both", figures=False)
    assert len(set(files)) == len(files)


def test_the_terminal_shows_every_table(folder, other):
    alone = in_terminal(report_tables(summary_of(folder)), width=200)
    for words in ("Hallucination rate (Table 4", "Paired differences", "Beside the paper", "what they cost (Table 5)"):
        assert words in alone
    assert "Hallucination rate by model and data set" not in alone
    both = in_terminal(report_tables([summary_of(folder), summary_of(other)]), width=200)
    assert "Hallucination rate by model and data set" in both
    assert "tiny on HaluEval, 4 questions × 2 seeds" in both


def test_grades_stand_beside_the_papers(tmp_path):
    """The paper: 400 of 400 stores Ambiguous, 34 of 400 drafts thrown away, 2.1 calls a question."""
    described = experiment(systems=["crag", "self_rag", "crag_unanimous"])
    questions = ("q0", "q1", "q2", "q3")
    records = [
        record("crag", question, calls=8, notes={"action": "Correct" if question == "q0" else "Ambiguous", "grades": 6})
        for question in questions
    ]
    records += [record("crag_unanimous", question, notes={"action": "Correct"}) for question in questions]
    records += [
        record("self_rag", question, calls=3 if question == "q3" else 2, notes={"regenerated": question == "q3"})
        for question in questions
    ]
    found = {table.name: table for table in tables(summary_of(folder_of(tmp_path / "run", records, described)))}
    assert found["notes"].columns[-1] == "paper (deepseek-v4-flash)"
    rows = {(row[0], row[1]): [shown(cell).split(" ")[0] for cell in row[2:]] for row in found["notes"].rows}
    assert rows["CRAG", "action: Ambiguous"] == ["3", "0.750", "1.000"]
    assert rows["CRAG", "grades"] == ["24", "6.000", "–"]
    assert rows["CRAG, unanimous", "action: Ambiguous"] == ["0", "0.000", "1.000"]
    assert rows["Self-RAG", "regenerated: yes"] == ["1", "0.250", "0.085"]
    assert rows["Self-RAG", "calls"] == ["9", "2.250", "2.100"]
    assert found["notes"].rows[0][3].method == "wilson"
    heads, crag, self_rag, _ = list(csv.reader(found["baselines"].csv().splitlines()))
    place = heads.index("calls")
    assert heads[place : place + 3] == ["calls", "calls low", "calls high"]
    assert (crag[place], crag[place + 1]) == ("8.0", "")  # of a constant nothing is uncertain
    assert (float(self_rag[place]), float(self_rag[place + 1]) < 2.25) == (2.25, True)


def test_systems_that_are_not_drawn_are_in_the_tables(tmp_path):
    described = experiment(systems=["lr", "rule"])
    folder = folder_of(tmp_path / "run", answers(lr="hcha", rule="hhhh"), described)
    write_report(folder)
    assert "| logistic regression | 4 of 4 | 0.500" in (folder / "report" / "report.md").read_text("utf-8")
    with style():
        (axes,) = risk_figure(summary_of(folder)).axes
    assert len(axes.patches) == 0


def test_an_empty_run_can_be_reported(tmp_path):
    folder = folder_of(tmp_path / "run", [])
    write_report(folder)
    assert "0 of 12 answers: 12 ARE MISSING." in (folder / "report" / "report.md").read_text("utf-8")
    in_terminal(report_tables(summary_of(folder)))


def test_bars_are_as_high_as_the_rates(folder):
    pytest.importorskip("matplotlib")
    with style():
        (axes,) = risk_figure(summary_of(folder)).axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == [0.5, 1.0, 0.0, 0.5, 1.0, 0.75, 1.0, 1.0, 0.5, 1.0, 0.25, 1.0, 0.0, 0.0, 0.0]
    opt_out = next(line for line in axes.lines if line.get_label() == "B3 abstains (Opt-Out)")
    assert list(opt_out.get_ydata()) == [0.0, 0.0, 0.5]  # low, medium, high
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == "of it, A = 0.85\nn = 1"


def test_the_high_risk_figure_has_a_group_for_each_run(folder, other):
    pytest.importorskip("matplotlib")
    with style():
        (axes,) = top_risk_figure([summary_of(folder), summary_of(other)]).axes
    assert [bar.get_height() for bar in axes.patches] == [1.0, 0.0, 1.0, 0.0, 0.0]  # b1 twice, b2 once, b3 twice
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "gemma-4-E4B-it\nTruthfulQA\nn = 1",
        "tiny\nHaluEval\nn = 1",
    ]


def test_figures_are_files_that_come_out_the_same_again(folder, tmp_path):
    pytest.importorskip("matplotlib")
    files = [path for path in write_report(folder, tmp_path / "one") if path.name.startswith("fig")]
    assert [path.name for path in files] == ["fig3a.png", "fig3a.svg", "fig3b.png", "fig3b.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(files[1]).getroot().tag.endswith("svg")
    again = write_report(folder, tmp_path / "two")
    for path in again:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
    shown_figures = re.findall(r"\]\((.+?)\)", (tmp_path / "one" / "report.md").read_text("utf-8"))
    assert shown_figures == ["fig3a.png", "fig3b.png"]


def test_bars_differ_in_lightness():
    """Without colour, too: B1, B2, B3 and the certified controller, which stand side by side."""
    colors = [
        tuple(int(BARS[name].color[at : at + 2], 16) for at in (1, 3, 5)) for name in ("b1", "b2", "b3", "certified")
    ]
    luma = [0.299 * r + 0.587 * g + 0.114 * b for r, g, b in colors]
    hatches = [BARS[name].hatch for name in ("b1", "b2", "b3", "certified")]
    for one in range(4):
        for two in range(one):
            assert abs(luma[one] - luma[two]) > 30 or hatches[one] != hatches[two]
