"""What of the notebooks can be told without running them; ``scripts/test.sh`` runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mdl_torch.analysis.study import Study
from mdl_torch.evaluation.questions import load_questions

ROOT = Path(__file__).resolve().parents[1] / "notebooks"


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.ipynb")), ids=lambda path: path.stem)
def test_outputs_are_stripped(path):
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_there_are_notebooks():
    assert {path.stem for path in ROOT.glob("*.ipynb")} >= {"quickstart", "reproduction"}


def test_the_run_that_ships_is_complete_and_of_the_questions_that_ship():
    study = Study.of(ROOT / "data" / "run")
    data = load_questions(ROOT / "data" / "questions.jsonl")
    assert len(data.questions) == 60
    assert study.run.description["revision"] == data.revision
    assert len(study.run.records) == study.run.expected * len(study.run.systems)
    assert len(study.split.questions) > 40  # B1 and B2 on 24 questions
    assert {study.run.model} == {"gemma3-270m"}
