"""The runner: the right prompts for each system, records once each, and the same end whenever it is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mdl_torch.calibration import Calibration
from mdl_torch.errors import CalibrationMismatchError
from mdl_torch.evaluation.experiment import Experiment
from mdl_torch.evaluation.fitting import calibration_records
from mdl_torch.evaluation.journal import DirectoryInUseError, DirectoryLock
from mdl_torch.evaluation.results import read_run
from mdl_torch.evaluation.runner import IncompleteCalibrationError, run
from mdl_torch.evaluation.systems.base import ABSTENTION
from mdl_torch.generation.backend import Backend, Completion, Sampling
from mdl_torch.generation.prompts import wording_digest

QUESTIONS = [
    {
        "question": f"Is number {n} lucky in the land of {place}?",
        "correct_answers": [f"Number {n} is not lucky there.", "Luck has nothing to do with numbers."],
        "incorrect_answers": [f"Number {n} is lucky there.", f"In {place} number {n} brings luck."],
        "category": ("Health", "Law", "Weather", "Misconceptions")[n % 4],
    }
    for n, place in enumerate(["Oz", "Narnia", "Utopia", "Erewhon", "Atlantis", "Ruritania"] * 4)
]


class Echo(Backend):
    """Answers with what a model that trusts its prompt would say, and keeps what it was asked."""

    def __init__(self, batch_size: int = 4, fail: str | None = None) -> None:
        self.batch_size, self.fail, self.asked, self.batches = batch_size, fail, [], []

    @property
    def identity(self) -> str:
        return "echo"

    def generate(self, requests, sampling):
        self.batches.append([request.key for request in requests])
        return [self._one(request) for request in requests]

    def _one(self, request):
        self.asked.append(request)
        number = int(re.search(r"Is number (\d+) lucky", request.user)[1])
        if self.fail and self.fail in request.user:
            return TimeoutError("no answer in time")
        seed = request.key.split("|")[0]
        if "emories" not in request.user:
            text = f"Number {number} is not lucky there." if number % 3 else "I don't know."
        else:
            text = f"Number {number} is lucky there."
        return Completion(text, "stop", len(request.user), 7, 0.25, "echo-1", (f"seed {seed}",))


@pytest.fixture
def data(tmp_path) -> Path:
    path = tmp_path / "lucky.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return path


def experiment(data: Path, **changes) -> Experiment:
    values = {
        "data": str(data),
        "model": {"kind": "scripted"},
        "questions": 10,
        "calibration_questions": 8,
        "sampling": Sampling(max_new_tokens=20),
    }
    return Experiment(**{**values, **changes})


@pytest.fixture(autouse=True)
def _one_encoder(encoder, monkeypatch):
    """The real encoder, loaded once for all runs."""
    monkeypatch.setattr("mdl_torch.encoder.SentenceEncoder.from_pretrained", lambda *_, **__: encoder)


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text("utf-8").splitlines()]


def evaluated(folder: Path) -> list[dict]:
    questions = json.loads((folder / "experiment.json").read_text("utf-8"))["evaluated_questions"]
    return [record for record in records(folder) if record["question_id"] in questions]


def test_every_answer_is_recorded_once(data, tmp_path):
    backend = Echo()
    done = run(experiment(data, seeds=(0, 1)), tmp_path / "run", backend)
    assert (done.answers, done.expected, done.errors) == (5 * 10 * 2, 100, 0)
    assert done.new == 100
    assert len(records(tmp_path / "run")) == 100 + 2 * 8  # and those that the calibration is fitted on
    found = evaluated(tmp_path / "run")
    kept = {(r["system"], r["question_id"], r["seed"]) for r in found}
    assert len(found) == len(kept) == 100
    assert {system for system, _, _ in kept} == {"b1", "b2", "b3", "certified", "abstain"}


def test_the_splits_are_apart(data, tmp_path):
    run(experiment(data), tmp_path / "run", Echo())
    described = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert len(described["calibration_questions"]) == 8
    assert len(described["evaluated_questions"]) == 10
    assert not set(described["calibration_questions"]) & set(described["evaluated_questions"])


def test_systems_ask_what_they_are_to_ask(data, tmp_path):
    backend = Echo()
    run(experiment(data), tmp_path / "run", backend)
    by_digest = {}
    for request in backend.asked:
        by_digest[request.key.split("|")[3]] = request.user
    for record in evaluated(tmp_path / "run"):
        texts = [memory["text"] for memory in record["memories"]]
        prompts = [by_digest[digest] for digest in record["prompts"]]
        action = record["decision"]["action"]
        with_memories = record["system"] == "b2" or (
            record["system"] in ("b3", "certified") and action in ("active", "supp")
        )
        if record["system"] == "abstain" or (record["system"] in ("b3", "certified") and action == "opt_out"):
            assert (record["answer"], record["calls"], prompts) == (ABSTENTION, 0, [])
            assert record["outcome"] == "abstention"
            continue
        (prompt,) = prompts
        assert record["question"] in prompt
        assert record["injected"] == with_memories
        assert all((text in prompt) == with_memories for text in texts)
        assert ("contradict" in prompt) == (action == "supp" and record["system"] in ("b3", "certified"))
        assert record["calls"] == 1
        assert (record["prompt_tokens"], record["completion_tokens"], record["seconds"]) == (len(prompt), 7, 0.25)


def test_outcomes_are_scored(data, tmp_path):
    run(experiment(data), tmp_path / "run", Echo())
    for record in evaluated(tmp_path / "run"):
        if record["system"] == "b2":
            assert record["outcome"] == "hallucination"
        if record["system"] == "b1":
            number = int(re.search(r"number (\d+)", record["question"])[1])
            assert record["outcome"] == ("correct" if number % 3 else "abstention")


def test_the_same_prompt_is_asked_once(data, tmp_path):
    """Systems that ask the same get the same answer, so that they differ by their decisions alone."""
    backend = Echo()
    run(experiment(data), tmp_path / "run", backend)
    assert len({request.key for request in backend.asked}) == len(backend.asked)
    by_prompt: dict[tuple, set[str]] = {}
    for record in evaluated(tmp_path / "run"):
        if record["prompts"]:
            by_prompt.setdefault((record["seed"], *record["prompts"]), set()).add(record["answer"])
    assert all(len(answers) == 1 for answers in by_prompt.values())


def test_seeds_draw_different_noise(data, tmp_path):
    backend = Echo()
    run(experiment(data, seeds=(0, 1), systems=("b1",)), tmp_path / "run", backend)
    notes = {(r["seed"], *r["model_notes"]) for r in evaluated(tmp_path / "run")}
    assert notes == {(0, "seed 0"), (1, "seed 1")}


def test_calibrations_are_fitted_and_saved(data, tmp_path):
    this = experiment(data)
    run(this, tmp_path / "run", Echo())
    paper = Calibration.load(tmp_path / "run" / f"calibration-paper-{this.label}.json")
    certified = Calibration.load(tmp_path / "run" / f"calibration-certified-{this.label}.json")
    assert paper.norm_range is not None
    assert (certified.norm_range, certified.range_method) == (None, "exact")
    assert paper.samples == certified.samples == 8
    gates = json.loads((tmp_path / "run" / "experiment.json").read_text())["gates"]
    assert gates["paper"]["calibration"] == paper.label
    assert gates["certified"]["certificate"] == "valid"


def test_a_second_run_adds_nothing(data, tmp_path):
    this = experiment(data)
    run(this, tmp_path / "run", Echo())
    before = (tmp_path / "run" / "answers.jsonl").read_bytes()
    again = Echo()
    done = run(this, tmp_path / "run", again)
    assert (done.new, done.complete, again.asked) == (0, True, [])
    assert (tmp_path / "run" / "answers.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": Sampling(max_new_tokens=21)},
        {"seeds": (5,)},
        {"store_seed": 1},
        {"condition": "off_topic"},
        {"require_relevant": False},
    ],
)
def test_a_changed_configuration_reuses_no_record(data, tmp_path, change):
    run(experiment(data, systems=("b1", "b3")), tmp_path / "run", Echo())
    before = {record["key"] for record in records(tmp_path / "run")}
    done = run(experiment(data, systems=("b1", "b3"), **change), tmp_path / "run", Echo())
    assert done.complete
    fresh = [r for r in records(tmp_path / "run") if r["key"] not in before]
    assert len([r for r in fresh if r["question_id"] in {e["question_id"] for e in evaluated(tmp_path / "run")}]) == 20


def test_errors_are_kept_and_tried_again(data, tmp_path):
    this = experiment(data, systems=("b1", "b2"), calibration="reference", calibration_questions=8)
    done = run(this, tmp_path / "run", Echo(fail="Narnia"))
    assert not done.complete
    assert done.errors == done.expected - done.answers > 0
    errors = (tmp_path / "run" / "errors.jsonl").read_text()
    assert "TimeoutError: no answer in time" in errors
    assert "Narnia" not in "".join(record["question"] for record in evaluated(tmp_path / "run"))
    done = run(this, tmp_path / "run", Echo())
    assert done.complete
    keys = [record["key"] for record in records(tmp_path / "run")]
    assert len(keys) == len(set(keys)) == 20


def test_a_broken_batch_is_run_again_as_a_whole(data, tmp_path):
    """So that a resumed run gives a batch the same company, and its texts come out the same."""
    this = experiment(data, systems=("b1", "b2"), calibration="reference")
    first = Echo()
    run(this, tmp_path / "whole", first)
    run(this, tmp_path / "run", Echo(fail="Narnia"))
    second = Echo()
    run(this, tmp_path / "run", second)
    assert second.batches
    assert all(batch in first.batches for batch in second.batches)
    assert sorted(records(tmp_path / "run"), key=lambda r: r["key"]) == sorted(
        records(tmp_path / "whole"), key=lambda r: r["key"]
    )


def test_other_words_are_other_prompts(data, tmp_path, monkeypatch):
    """A changed instruction is asked anew, and its answers have records of their own."""
    this = experiment(data, systems=("b1",), calibration="reference")
    run(this, tmp_path / "run", Echo())
    monkeypatch.setattr("mdl_torch.evaluation.runner.WORDING", "other words")
    done = run(this, tmp_path / "run", Echo())
    assert (done.new, done.complete) == (10, True)


def test_the_words_of_all_prompts_are_named(monkeypatch):
    before = wording_digest()
    for name in ("INSTRUCTION", "MEMORIES", "BACKGROUND", "EXAMPLE", "CUE"):
        with monkeypatch.context() as patched:
            patched.setattr(f"mdl_torch.generation.prompts.{name}", "changed")
            assert wording_digest() != before, name


def test_nothing_is_fitted_on_half_a_split(data, tmp_path):
    """The error says what failed; the next run fits on all of it, as one that did not fail."""
    this = experiment(data, systems=("b1", "b3"))
    with pytest.raises(IncompleteCalibrationError, match=r"of the calibration split are missing.*no answer in time"):
        run(this, tmp_path / "run", Echo(fail="Narnia"))
    assert not evaluated_ids(tmp_path / "run")
    assert run(this, tmp_path / "run", Echo()).complete
    run(this, tmp_path / "whole", Echo())
    gates = [json.loads((tmp_path / name / "experiment.json").read_text())["gates"] for name in ("run", "whole")]
    assert gates[0] == gates[1]


def evaluated_ids(folder: Path) -> set[str]:
    path = folder / "experiment.json"
    return set(json.loads(path.read_text())["evaluated_questions"]) if path.exists() else set()


def test_a_given_calibration_does_not_meet_its_own_questions(data, tmp_path):
    this = experiment(data)
    run(this, tmp_path / "run", Echo())
    path = tmp_path / "run" / f"calibration-paper-{this.label}.json"
    given = experiment(data, calibration=str(path), questions=16)
    run(given, tmp_path / "second", Echo())
    assert not evaluated_ids(tmp_path / "second") & set(Calibration.load(path).provenance["questions"])


def test_a_calibration_of_other_data_is_refused(data, tmp_path):
    this = experiment(data)
    run(this, tmp_path / "run", Echo())
    other = tmp_path / "other.jsonl"
    other.write_text(data.read_text().replace("lucky", "unlucky"))
    path = tmp_path / "run" / f"calibration-paper-{this.label}.json"
    with pytest.raises(CalibrationMismatchError, match=r"was fitted on lucky sha256:.*, got other sha256:"):
        run(experiment(other, calibration=str(path)), tmp_path / "second", Echo())


def test_the_calibration_is_of_this_experiment_alone(data, tmp_path):
    """Records of other experiments in the folder play no part."""
    this = experiment(data)
    run(experiment(data, condition="off_topic"), tmp_path / "run", Echo())
    run(experiment(data, split_seed=3), tmp_path / "run", Echo())
    run(this, tmp_path / "run", Echo())
    found = calibration_records(tmp_path / "run")
    assert len(found) == 16
    assert {r["question_id"] for r in found} == set(
        json.loads((tmp_path / "run" / "experiment.json").read_text())["calibration_questions"]
    )
    assert {r["condition"] for r in found} == {"paper"}


def test_a_server_is_not_asked_again_for_what_it_answered(data, tmp_path):
    class Server(Echo):
        batch_matters = False

    this = experiment(data, systems=("b1", "b2"), calibration="reference")
    run(this, tmp_path / "run", Server(fail="Narnia"))
    again = Server()
    assert run(this, tmp_path / "run", again).complete
    assert all("Narnia" in request.user for request in again.asked)


def test_records_name_the_oracle_and_who_answered(data, tmp_path):
    run(experiment(data), tmp_path / "run", Echo())
    for record in evaluated(tmp_path / "run"):
        assert record["oracle"] == (
            "adopt" if (record["outcome"] != "hallucination") == record["injected"] else "reject"
        )
        assert record["answered_by"] == (["echo-1"] if record["calls"] else [])


def test_objects_that_are_no_records_are_put_aside(data, tmp_path):
    this = experiment(data, systems=("b1",), calibration="reference")
    run(this, tmp_path / "run", Echo())
    for name in ("completions", "answers"):
        with (tmp_path / "run" / f"{name}.jsonl").open("a") as file:
            file.write("{}\n")
    (tmp_path / "run" / "experiment.json").write_text("{ damaged")
    with pytest.warns(RuntimeWarning, match="damaged lines were put aside"):
        done = run(this, tmp_path / "run", Echo())
    assert (done.new, done.complete) == (0, True)


def test_a_judge_scores_in_place_of_the_encoder(data, tmp_path):
    """And what it could not judge is no record, but judged again by the next run."""
    asked = {"kind": "scripted", "answers": {"": "HALLUCINATION"}}
    this = experiment(data, systems=("b1",), calibration="reference", judge=asked)
    done = run(this, tmp_path / "run", Echo())
    assert done.complete
    assert {record["outcome"] for record in evaluated(tmp_path / "run")} <= {"hallucination", "abstention"}
    silent = {"kind": "scripted", "answers": {"": "Hm."}}
    done = run(experiment(data, systems=("b1",), calibration="reference", judge=silent), tmp_path / "silent", Echo())
    assert not done.complete


def test_a_full_disk_ends_the_run_and_loses_nothing(data, tmp_path, monkeypatch):
    this = experiment(data, systems=("b1", "b2"), calibration="reference")
    real, calls = os.fsync, iter(range(10_000))

    def full(descriptor):
        if next(calls) >= 4:
            raise OSError(28, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run(this, tmp_path / "run", Echo())
    assert run(this, tmp_path / "run", Echo()).complete
    run(this, tmp_path / "whole", Echo())
    first, second = (sorted(records(tmp_path / name), key=lambda r: r["key"]) for name in ("run", "whole"))
    assert first == second


def test_a_second_runner_is_refused(data, tmp_path):
    (tmp_path / "run").mkdir()
    with DirectoryLock(tmp_path / "run"), pytest.raises(DirectoryInUseError):
        run(experiment(data), tmp_path / "run", Echo())


def test_damaged_records_cost_only_themselves(data, tmp_path):
    this = experiment(data, systems=("b1", "b2"), calibration="reference")
    run(this, tmp_path / "run", Echo())
    path = tmp_path / "run" / "answers.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"garbage\n", *lines[4:-1], lines[-1][:40]]))
    with pytest.warns(RuntimeWarning, match="2 damaged lines were put aside"):
        done = run(this, tmp_path / "run", Echo())
    assert (done.new, done.complete) == (2, True)
    assert sorted(path.read_bytes().splitlines()) == sorted(line.rstrip(b"\n") for line in lines)


def test_a_killed_run_ends_as_one_that_was_not(data, tmp_path):
    """Killed again and again, by SIGKILL, at any moment."""
    code = (
        "import sys, time; from pathlib import Path; from tests.test_runner import Echo, experiment\n"
        "from mdl_torch.evaluation.runner import run\n"
        "class Slow(Echo):\n"
        "    def generate(self, requests, sampling):\n"
        "        time.sleep(0.02); return super().generate(requests, sampling)\n"
        f"done = run(experiment(Path({str(data)!r}), seeds=(0, 1)), {str(tmp_path / 'run')!r}, Slow())\n"
        "sys.exit(0 if done.complete else 3)\n"
    )
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1"}
    for patience in (0.0, 0.3, 0.1, 0.2, 0.4, 0.15, 600.0):
        with subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], cwd=root, env=environment) as child:
            completions = tmp_path / "run" / "completions.jsonl"
            before = completions.stat().st_size if completions.exists() else 0
            while child.poll() is None and (not completions.exists() or completions.stat().st_size == before):
                time.sleep(0.01)
            try:
                assert child.wait(patience) == 0
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
    run(experiment(data, seeds=(0, 1)), tmp_path / "whole", Echo())
    killed, whole = (
        {r["key"]: {k: v for k, v in r.items() if k != "seconds"} for r in records(tmp_path / name)}
        for name in ("run", "whole")
    )
    assert killed == whole
    assert len(records(tmp_path / "run")) == len(killed)


# ---------------------------------------------------------------------------------------- forms, lists and learning


class Corrector(Echo):
    """Fills in forms besides: one number in four is graded Correct, the rest Ambiguous, and every third draft fails."""

    def choose(self, requests):
        self.batches.append([request.key for request in requests])
        return [self._filled(request) for request in requests]

    def _filled(self, request):
        self.asked.append(request)
        number = int(re.search(r"Is number (\d+) lucky", request.user)[1])
        if request.form.fields[0].name == "Grade":
            picked = {"Grade": "Correct" if number % 4 == 0 else "Ambiguous"}
        else:
            picked = {"ISREL": "Relevant", "ISSUP": "No support" if number % 3 == 0 else "Fully supported"}
        probabilities = {
            field.name: {label: 0.5 if label == picked.get(field.name) else 0.25 for label in field.labels}
            for field in request.form.fields
        }
        choices = request.form.choices("", probabilities)
        return Completion("x", "stop", 3, 1, 0.5, "echo-1", choices=choices, probabilities=probabilities)


CORRECTIVE = ("b1", "b2", "crag", "self_rag")


def test_forms_and_answers_are_batches_of_their_own(data, tmp_path):
    backend = Corrector()
    done = run(experiment(data, systems=CORRECTIVE, calibration="reference"), tmp_path / "run", backend)
    assert done.complete
    forms = {request.key: request.form is not None for request in backend.asked}
    assert {len({forms[key] for key in batch}) for batch in backend.batches} == {1}
    assert max(map(len, backend.batches)) <= backend.batch_size
    assert len(forms) == len(backend.asked)  # each once, though later rounds come to prompts of earlier ones


def test_corrective_systems_come_to_their_answers(data, tmp_path):
    run(experiment(data, systems=CORRECTIVE, calibration="reference"), tmp_path / "run", Corrector())
    for record in evaluated(tmp_path / "run"):
        number = int(re.search(r"number (\d+)", record["question"])[1])
        memories = len(record["memories"])
        if record["system"] == "crag":
            assert record["notes"]["action"] == ("Correct" if number % 4 == 0 else "Ambiguous")
            assert record["calls"] == memories + (1 if number % 4 == 0 else 2)
            assert record["prompt_tokens"] > 3 * memories
            assert len(record["prompts"]) == record["calls"]
        if record["system"] == "self_rag":
            regenerated = number % 3 == 0
            assert (record["notes"]["regenerated"], record["calls"]) == (regenerated, 3 if regenerated else 2)
            assert (record["notes"]["ISUSE"], record["notes"]["tokens not read"]) == (None, 1)
            assert record["injected"] == (not regenerated)


def test_seeds_share_grades_and_differ_in_answers(data, tmp_path):
    backend = Corrector()
    run(experiment(data, systems=("crag",), calibration="reference", seeds=(0, 1)), tmp_path / "run", backend)
    grades = [request for request in backend.asked if request.form is not None]
    free = [request for request in backend.asked if request.form is None]
    assert len({request.user for request in grades}) == len(grades)
    assert {request.key.split("|")[0] for request in free} == {"0", "1"}
    assert len(free) == 2 * len({request.user for request in free})


def test_a_fallback_is_the_answer_of_the_model_alone(data, tmp_path):
    """The same prompt with the same seed is one request, in whichever round a system comes to it."""
    backend = Corrector()
    run(experiment(data, systems=CORRECTIVE, calibration="reference"), tmp_path / "run", backend)
    alone = [request for request in backend.asked if request.form is None and "emories" not in request.user]
    assert len(alone) == 10
    assert all(request.key.endswith("|0") for request in alone)


def test_a_prompt_that_a_job_asks_twice_is_drawn_twice(data, tmp_path, monkeypatch):
    from mdl_torch.evaluation.systems import SYSTEMS
    from mdl_torch.evaluation.systems.base import Answer, System
    from mdl_torch.generation.prompts import ask

    class Hesitant(System):
        name = "hesitant"

        def answer(self, item):
            first, second = yield [ask(item.question.text)] * 2
            nothing = yield []
            third = yield ask(item.question.text)
            return Answer(
                third.text, injected=False, notes={"asked": len({first.text, second.text}), "none": len(nothing)}
            )

    monkeypatch.setitem(SYSTEMS, "hesitant", Hesitant)
    backend = Echo()
    run(experiment(data, systems=("hesitant",), calibration="reference", questions=2), tmp_path / "run", backend)
    assert sorted(request.key.rsplit("|", 1)[1] for request in backend.asked) == ["0", "0", "1", "1", "2", "2"]
    assert {record["calls"] for record in evaluated(tmp_path / "run")} == {3}
    assert {record["notes"]["none"] for record in evaluated(tmp_path / "run")} == {0}


def test_filled_forms_are_kept_as_they_were(data, tmp_path):
    """Run again, nothing is asked, and the grades are those on the disk."""
    this = experiment(data, systems=CORRECTIVE, calibration="reference")
    run(this, tmp_path / "run", Corrector())
    before = records(tmp_path / "run")
    (tmp_path / "run" / "answers.jsonl").unlink()
    again = Corrector()
    assert run(this, tmp_path / "run", again).complete
    assert again.asked == []
    assert sorted(records(tmp_path / "run"), key=lambda r: r["key"]) == sorted(before, key=lambda r: r["key"])
    lines = [json.loads(line) for line in (tmp_path / "run" / "completions.jsonl").read_text().splitlines()]
    assert {"probabilities" in line for line in lines} == {True, False}
    assert not any("choices" in line for line in lines)  # which are read anew each time


def test_a_failed_grade_is_asked_again(data, tmp_path):
    class Flaky(Corrector):
        def _filled(self, request):
            return TimeoutError("no answer in time") if "Narnia" in request.user else super()._filled(request)

    this = experiment(data, systems=("crag",), calibration="reference")
    assert not run(this, tmp_path / "run", Flaky()).complete
    assert run(this, tmp_path / "run", Corrector()).complete
    run(this, tmp_path / "whole", Corrector())
    first, second = (sorted(records(tmp_path / name), key=lambda r: r["key"]) for name in ("run", "whole"))
    assert first == second


LEARNED = ("lr", "mlp", "xgboost", "tree", "rule", "majority_class")


def test_controllers_learn_from_the_calibration_split_alone(data, tmp_path):
    """Adopting asks what B2 asks, rejecting what B1 does; nothing new is asked, and what was learned is on record."""
    backend = Echo()
    this = experiment(data, systems=("b1", "b2", *LEARNED))
    assert run(this, tmp_path / "run", backend).complete
    assert len(backend.asked) == 2 * (8 + 10)
    described = json.loads((tmp_path / "run" / "experiment.json").read_text())
    split = [
        record for record in records(tmp_path / "run") if record["question_id"] in described["calibration_questions"]
    ]
    adopted = sum(record["oracle"] == "adopt" for record in split) / len(split)
    for name in LEARNED:
        assert described["fitted"][name]["rows"] == len(split) == 16
        assert described["fitted"][name]["share of adopt"] == pytest.approx(adopted)
    found = evaluated(tmp_path / "run")
    texts = {(r["system"], r["question_id"]): r["answer"] for r in found}
    for record in found:
        if record["system"] in LEARNED:
            like = "b2" if record["notes"]["decision"] == "adopt" else "b1"
            assert record["answer"] == texts[like, record["question_id"]]
            assert record["injected"] == (like == "b2")
            assert record["identity"] == described["identities"][record["system"]]
    majority = {record["notes"]["probability"] for record in found if record["system"] == "majority_class"}
    assert majority == {round(adopted, 6)}


def test_controllers_learn_beside_a_given_calibration(data, tmp_path):
    """The gate's calibration is given; the split is drawn all the same, for the controllers."""
    run(experiment(data, calibration="reference", systems=("b3", "lr")), tmp_path / "run", Echo())
    described = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert len(described["calibration_questions"]) == 8
    assert "reference" in described["gates"]["paper"]["calibration"]
    assert len(calibration_records(tmp_path / "run")) == 16


def test_another_fit_has_records_of_its_own(data, tmp_path):
    """Other answers of the split make another controller, and its answers do not pass for the first one's."""
    run(experiment(data, systems=("tree",)), tmp_path / "run", Echo())
    done = run(experiment(data, systems=("tree",), calibration_questions=6), tmp_path / "run", Echo())
    assert (done.complete, done.new) == (True, 10)
    assert len({record["identity"] for record in records(tmp_path / "run") if record["system"] == "tree"}) == 2
    assert len(read_run(tmp_path / "run").records) == 10


# ------------------------------------------------------------------------------------------- what cannot be answered


class Refusing(Corrector):
    """Cannot answer one question with memories, however often it is asked."""

    def __init__(self, error: Exception, **options) -> None:
        super().__init__(**options)
        self.error = error

    def _one(self, request):
        bad = "number 9 " in request.user and request.user.startswith("Memories:")
        return self.error if bad else super()._one(request)


def test_a_prompt_that_can_never_be_answered_holds_up_no_other(data, tmp_path):
    """As one that is too long: its question is missing, and all others are answered, in later rounds too."""
    this = experiment(data, systems=CORRECTIVE, calibration="reference", questions=None, calibration_questions=2)
    for _ in range(2):
        done = run(this, tmp_path / "run", Refusing(ValueError("the prompt does not fit")))
    missing = {(r["system"], r["question_id"]) for r in evaluated(tmp_path / "run")}
    every = {(system, f"lucky-{n:05}") for system in CORRECTIVE for n in range(24)}
    assert every - missing == {("b2", "lucky-00009"), ("self_rag", "lucky-00009")}
    assert done.errors == 2


def test_a_fault_that_may_pass_ends_a_run_whose_batches_matter(data, tmp_path):
    """Later batches would be other ones than those of a run without the fault."""
    this = experiment(data, systems=CORRECTIVE, calibration="reference", questions=None)
    faulty = Refusing(TimeoutError("late"))
    assert not run(this, tmp_path / "run", faulty).complete
    fields = {request.form.fields[0].name for request in faulty.asked if request.form is not None}
    assert fields == {"Grade"}  # the second round, of critiques, is not begun
    assert run(this, tmp_path / "run", Corrector()).complete


def test_a_fault_holds_up_no_other_where_batches_do_not_matter(data, tmp_path):
    class Server(Refusing):
        batch_matters = False

    this = experiment(data, systems=("b1", "b2", "self_rag"), calibration="reference", questions=None)
    done = run(this, tmp_path / "run", Server(TimeoutError("late")))
    assert done.errors == 2  # of B2 and of Self-RAG, whose draft it is


class Moody(Corrector):
    """Its answers and grades hang on the whole batch, as rounding does."""

    def generate(self, requests, sampling):
        mood = len({request.key for request in requests}) + sum(len(request.user) for request in requests)
        return [
            Completion(f"{completion.text} {mood}", *list(vars(completion).values())[1:])
            for completion in super().generate(requests, sampling)
        ]


@pytest.mark.parametrize("kept", [0, 3, 17, 41, 60, 77, 90])
def test_a_run_of_many_rounds_that_was_cut_anywhere_ends_as_one_that_was_not(data, tmp_path, kept):
    this = experiment(data, systems=CORRECTIVE, calibration="reference")
    run(this, tmp_path / "whole", Moody())
    run(this, tmp_path / "run", Moody())
    completions = tmp_path / "run" / "completions.jsonl"
    lines = completions.read_bytes().splitlines(keepends=True)
    assert len(lines) > 90
    completions.write_bytes(b"".join(lines[:kept]))
    (tmp_path / "run" / "answers.jsonl").unlink()
    run(this, tmp_path / "run", Moody())
    first, second = (sorted(records(tmp_path / name), key=lambda r: r["key"]) for name in ("run", "whole"))
    assert first == second


def test_answers_that_no_report_would_count_are_given_again(data, tmp_path):
    """A record without a field that a report needs is no answer: the next run makes it anew, and asks nothing."""
    this = experiment(data, systems=("b1", "b2"), calibration="reference")
    run(this, tmp_path / "run", Echo())
    path = tmp_path / "run" / "answers.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for line, field in zip(lines, ("calls", "decision", "identity"), strict=False):
        del line[field]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = Echo()
    with pytest.warns(RuntimeWarning, match="3 damaged lines were put aside"):
        done = run(this, tmp_path / "run", again)
    assert (done.new, done.complete, again.asked) == (3, True, [])
    assert len(read_run(tmp_path / "run").records) == 20


def test_a_given_calibration_stays_with_the_run(data, tmp_path, monkeypatch):
    """It can be read from the run's folder, wherever it was."""
    from mdl_torch.analysis.study import Study

    first = experiment(data)
    run(first, tmp_path / "first", Echo())
    (tmp_path / "given").mkdir()
    path = tmp_path / "given" / "mine.json"
    path.write_bytes((tmp_path / "first" / f"calibration-paper-{first.label}.json").read_bytes())
    monkeypatch.chdir(tmp_path / "given")
    run(experiment(data, calibration="mine.json", questions=16), tmp_path / "second", Echo())
    path.unlink()
    monkeypatch.chdir(tmp_path)
    layer = Study.of(tmp_path / "second").layers["paper"]
    assert layer.digest() == Study.of(tmp_path / "first").layers["paper"].digest()


def test_too_many_questions_are_named_as_the_user_names_them(data, tmp_path):
    with pytest.raises(ValueError, match=r"questions and calibration_questions must be no more than the 24 questions"):
        run(experiment(data, calibration_questions=80, questions=None), tmp_path / "run", Echo())
