"""Runs an experiment, so that a kill at any moment costs nothing: run it again, and it ends with the same records.

The systems go forward in rounds. In each, the prompts of all of them, for all questions and seeds, are gathered, those
that are the same are asked once, and they are answered in batches that follow from the configuration and earlier
answers, never from what is left to do. Every answer of the model is on the disk before anything is made of it. When a
run is resumed, it goes through the same rounds with the answers that are there, and a batch that lacks any is run again
as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdl_torch.calibration import Calibration
from mdl_torch.evaluation.environment import environment
from mdl_torch.evaluation.fitting import fit_calibration
from mdl_torch.evaluation.journal import DirectoryLock, Journal
from mdl_torch.evaluation.questions import Question, load_questions
from mdl_torch.evaluation.scoring import EmbeddingScorer, error_floor
from mdl_torch.evaluation.splits import Split, split_questions
from mdl_torch.evaluation.stores import build_stores
from mdl_torch.evaluation.systems import SYSTEMS, Answer, Item, Steps, System
from mdl_torch.gate import MemoryGate
from mdl_torch.generation.backend import Backend, Completion, Request
from mdl_torch.layer import MemoryDecisionLayer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from mdl_torch.evaluation.experiment import Experiment
    from mdl_torch.generation.prompts import Prompt
    from mdl_torch.records import DecisionRecord

PAPER = "paper"
"""The gate whose signals stand in the records of systems without one of their own."""

CALIBRATING = ("b1", "b2")
"""Systems whose outcomes on the calibration split the thresholds are fitted on."""


@dataclass(frozen=True)
class Outcome:
    """How a run went.

    Attributes:
        answers: Records that the experiment has now.
        expected: Records that it has when it is complete.
        new: Of them, those that this run added.
        errors: Answers that are missing since the model could not give them; the next run tries again.
    """

    answers: int
    expected: int
    new: int
    errors: int

    @property
    def complete(self) -> bool:
        """Whether every answer is there."""
        return self.answers == self.expected


def run(experiment: Experiment, folder: str | os.PathLike[str], backend: Backend, *, progress: bool = False) -> Outcome:
    """Run an experiment in a folder, or go on with it.

    Writes ``experiment.json``, ``environment.json``, ``completions.jsonl`` (answers of the model), ``answers.jsonl``
    (one record for each answer of a system), ``errors.jsonl``, and the calibrations that it fitted.

    Args:
        experiment: What to run. One that differs from that of an earlier run in the folder has records of its own.
        folder: Made where there is none.
        backend: The language model.
        progress: Whether to show a progress bar on standard error.

    Raises:
        DirectoryInUseError: Another run is writing there.
        OSError: A file or the model is not there, or the disk is full.
        ValueError: The data set is malformed.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with DirectoryLock(path), contextlib.ExitStack() as stack:
        files = _Files(*(stack.enter_context(Journal(path / f"{name}.jsonl")) for name in _Files.NAMES))
        return _Run(experiment, path, backend, files, progress=progress).run()


@dataclass
class _Files:
    NAMES = ("completions", "answers", "errors")

    completions: Journal
    answers: Journal
    errors: Journal


@dataclass
class _Job:
    """A system on its way to the answer of one question with one seed."""

    system: System
    item: Item
    seed: int
    key: str
    steps: Steps
    completions: list[Completion] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    answer: Answer | None = None

    def advance(self, completion: Completion | None) -> Prompt | None:
        """The next prompt, or None when the answer is there."""
        if completion is not None:
            self.completions.append(completion)
        try:
            prompt = next(self.steps) if completion is None else self.steps.send(completion)
        except StopIteration as done:
            self.answer = done.value
            return None
        self.prompts.append(prompt.digest)
        return prompt


class _Run:
    def __init__(self, experiment: Experiment, path: Path, backend: Backend, files: _Files, *, progress: bool) -> None:
        self.experiment, self.path, self.backend, self.files = experiment, path, backend, files
        self.progress = progress
        self.known = {record["key"]: _completion(record) for record in files.completions.records}
        self.answered = {record["key"] for record in files.answers.records}
        self.failed: Counter[str] = Counter()
        self.new = 0

    def run(self) -> Outcome:
        experiment = self.experiment
        data = load_questions(experiment.data)
        bare = MemoryGate.from_pretrained(
            **self._encoder(),
            calibration=None,
            detector=experiment.detector,
            require_relevant=experiment.require_relevant,
        )
        self.scorer = EmbeddingScorer(bare.encoder)
        self.data, self.revision = data.name, data.revision
        split = split_questions(
            data.questions,
            calibration=experiment.calibration_questions if experiment.calibration == "fit" else 0,
            evaluated=experiment.questions,
            at_top_risk=experiment.at_top_risk,
            risk=bare.risk_policy,
            seed=experiment.split_seed,
        )
        gates = self._gates(bare, data.questions, split)
        self._describe(data, split, gates)
        self.gates = {name: _gate_identity(gate) for name, gate in gates.items()}
        jobs = self._jobs(experiment.systems, experiment.seeds, data.questions, split.evaluated, gates)
        expected = {job.key for job in jobs}
        self._answer(jobs, "answering")
        have = len(expected & self.answered)
        return Outcome(have, len(expected), self.new, len(expected) - have)

    def _encoder(self) -> dict[str, Any]:
        return {} if self.experiment.encoder is None else {"encoder": self.experiment.encoder}

    # ---------------------------------------------------------------------------------------------------- the gates

    def _gates(self, bare: MemoryGate, questions: Sequence[Question], split: Split) -> dict[str, MemoryGate]:
        """The gate of each system, calibrated."""
        experiment = self.experiment
        names = {gate for name in experiment.systems if (gate := SYSTEMS[name]().gate)} | {PAPER}
        layers = {name: MemoryDecisionLayer.from_preset(name) for name in sorted(names)}
        if experiment.calibration == "fit":
            self.gates = {PAPER: _gate_identity(bare)}
            jobs = self._jobs(CALIBRATING, (0,), questions, split.calibration, {PAPER: bare})
            self._answer(jobs, "calibrating")
            keys = {job.key for job in jobs}
            outcomes = [record for record in self.files.answers.records if record["key"] in keys]
            for name, layer in layers.items():
                fitted = fit_calibration(outcomes, layer, name=f"{self.data}-{name}")
                fitted.save(self.path / f"calibration-{name}-{experiment.label}.json")
                layers[name] = layer.calibrated(fitted)
        else:
            given = experiment.calibration
            calibration = Calibration.reference() if given == "reference" else Calibration.load(given)
            layers[PAPER] = layers[PAPER].calibrated(calibration)
        return {
            name: MemoryGate(
                bare.encoder,
                layer=layer,
                detector=bare.detector,
                risk_policy=bare.risk_policy,
                require_relevant=experiment.require_relevant,
            )
            for name, layer in layers.items()
        }

    # ----------------------------------------------------------------------------------------------------- the jobs

    def _jobs(
        self,
        systems: Sequence[str],
        seeds: Sequence[int],
        pool: Sequence[Question],
        questions: Sequence[Question],
        gates: dict[str, MemoryGate],
    ) -> list[_Job]:
        experiment = self.experiment
        stores = build_stores(pool, questions, condition=experiment.condition, seed=experiment.store_seed)
        decided = {name: gate.records(stores, audits=False) for name, gate in gates.items()}
        jobs = []
        for name in systems:
            for place, question in enumerate(questions):
                gate = SYSTEMS[name]().gate or PAPER
                item = Item(question, stores[place], decided[gate][place])
                for seed in seeds:
                    system = SYSTEMS[name]()
                    key = self._key(system, item, seed)
                    jobs.append(_Job(system, item, seed, key, system.answer(item)))
        return jobs

    def _key(self, system: System, item: Item, seed: int) -> str:
        """Names everything that determines an answer and its scores."""
        memories = [[memory.id, memory.text] for memory in item.store.memories]
        gate = self.gates[system.gate or PAPER]
        return _digest(
            self.revision,
            [item.question.id, item.question.text, *item.question.correct, "", *item.question.incorrect],
            memories,
            item.store.category,
            system.name,
            gate,
            self.experiment.condition,
            self.backend.identity,
            self.experiment.sampling.to_dict(),
            self.scorer.identity,
            seed,
        )

    # ----------------------------------------------------------------------------------------------------- the rounds

    def _answer(self, jobs: list[_Job], what: str) -> None:
        """Take every job to its answer."""
        waiting: list[tuple[_Job, Prompt]] = []
        done: list[_Job] = []
        for job in jobs:
            first = job.advance(None)
            if first is None:
                done.append(job)
            else:
                waiting.append((job, first))
        self._keep(done)
        number = 0
        while waiting:
            waiting = self._round(waiting, f"{what}, round {number + 1}", number)
            number += 1

    def _round(self, waiting: list[tuple[_Job, Prompt]], what: str, number: int) -> list[tuple[_Job, Prompt]]:
        """Answer one prompt of each job; those that go on, with their next."""
        asked: dict[str, Request] = {}
        jobs: dict[str, list[_Job]] = {}
        for job, prompt in waiting:
            noise = f"{job.seed}|{self.revision}|{job.item.question.id}|{prompt.digest}|{number}"
            key = _digest(self.backend.identity, self.experiment.sampling.to_dict(), noise)
            asked[key] = Request(noise, prompt.instruction, prompt.user)
            jobs.setdefault(key, []).append(job)
        ongoing: list[tuple[_Job, Prompt]] = []
        for batch in self._batches(asked, what):
            done: list[_Job] = []
            for key in batch:
                if (completion := self.known.get(key)) is None:
                    continue
                for job in jobs[key]:
                    following = job.advance(completion)
                    if following is None:
                        done.append(job)
                    else:
                        ongoing.append((job, following))
            self._keep(done)
        return ongoing

    def _batches(self, asked: dict[str, Request], what: str) -> Iterator[list[str]]:
        """Answer the requests, a batch at a time: those of like length together, which wastes least on padding."""
        from tqdm import tqdm

        order = sorted(asked, key=lambda key: (len(asked[key].instruction) + len(asked[key].user), key))
        size = max(1, self.backend.batch_size)
        with tqdm(total=len(order), desc=what, unit="prompt", disable=not self.progress) as bar:
            for start in range(0, len(order), size):
                batch = order[start : start + size]
                if any(key not in self.known for key in batch):
                    self._generate({key: asked[key] for key in batch})
                bar.update(len(batch))
                yield batch

    def _generate(self, batch: dict[str, Request]) -> None:
        answers = self.backend.generate(list(batch.values()), self.experiment.sampling)
        fresh, errors = [], []
        for (key, request), found in zip(batch.items(), answers, strict=True):
            if key in self.known:
                continue
            if isinstance(found, Exception):
                errors.append({"key": key, "noise": request.key, "error": f"{type(found).__name__}: {found}"[:1000]})
                continue
            self.known[key] = found
            fresh.append({"key": key, "noise": request.key, **dataclasses.asdict(found)})
        self.files.completions.append(fresh)
        if errors:
            self.failed.update(error["error"] for error in errors)
            self.files.errors.append(
                [{**error, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())} for error in errors]
            )

    # ---------------------------------------------------------------------------------------------------- the records

    def _keep(self, jobs: list[_Job]) -> None:
        """Score answers and write their records, each once."""
        fresh = [job for job in jobs if job.key not in self.answered]
        if not fresh:
            return
        texts = [job.answer.text if job.answer else "" for job in fresh]
        scores = self.scorer.score(texts, [job.item.question for job in fresh])
        self.files.answers.append([self._record(job, score) for job, score in zip(fresh, scores, strict=True)])
        self.answered |= {job.key for job in fresh}
        self.new += len(fresh)

    def _record(self, job: _Job, score: Any) -> dict[str, Any]:
        assert job.answer is not None
        question, answer, calls = job.item.question, job.answer, job.completions
        return {
            "key": job.key,
            "experiment": self.experiment.label,
            "data": self.data,
            "revision": self.revision,
            "condition": self.experiment.condition,
            "store_seed": self.experiment.store_seed,
            "scorer": self.scorer.identity,
            "system": job.system.name,
            "gate": self.gates[job.system.gate or PAPER],
            "model": self.backend.identity,
            "sampling": self.experiment.sampling.to_dict(),
            "seed": job.seed,
            "question_id": question.id,
            "question": question.text,
            "category": question.category,
            "memories": [{"id": memory.id, "text": memory.text} for memory in job.item.store.memories],
            "decision": _decision(job.item.decision),
            "prompts": job.prompts,
            "answer": answer.text,
            "injected": answer.injected,
            "notes": answer.notes,
            "calls": len(calls),
            "finish": [call.finish for call in calls],
            "prompt_tokens": sum(call.prompt_tokens for call in calls),
            "completion_tokens": sum(call.completion_tokens for call in calls),
            "seconds": round(sum(call.seconds for call in calls), 6),
            "model_notes": [note for call in calls for note in call.notes],
            **score.to_dict(),
        }

    @staticmethod
    def _risks(questions: Sequence[Question], gate: MemoryGate) -> dict[str, int]:
        """How many questions of the data set have each risk."""
        assess = gate.risk_policy.assess
        return dict(Counter(f"{assess(q.text, category=q.category).value:g}" for q in questions))

    def _error_floor(self, questions: Sequence[Question]) -> dict[str, Any]:
        """How often the scorer misjudges the data's own reference answers; taken over from an earlier run, if known."""
        path = self.path / "experiment.json"
        known = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if "error_floor" in known and (known["scorer"], known["revision"]) == (self.scorer.identity, self.revision):
            return dict(known["error_floor"])
        return error_floor(questions, self.scorer.encoder).to_dict()

    def _describe(self, data: Any, split: Split, gates: dict[str, MemoryGate]) -> None:
        described = {
            "experiment": self.experiment.to_dict(),
            "label": self.experiment.label,
            "revision": data.revision,
            "backend": self.backend.identity,
            "scorer": self.scorer.identity,
            "gates": {name: _gate_identity(gate) for name, gate in gates.items()},
            "sampling": self.experiment.sampling.to_dict(),
            "condition": self.experiment.condition,
            "error_floor": self._error_floor(data.questions),
            "risks": self._risks(data.questions, gates[PAPER]),
            "calibration_questions": [question.id for question in split.calibration],
            "evaluated_questions": [question.id for question in split.evaluated],
        }
        _write(self.path / "experiment.json", described)
        _write(self.path / "environment.json", environment())


def _gate_identity(gate: MemoryGate) -> dict[str, Any]:
    """Names all that determines a gate's decisions."""
    layer = gate.layer
    return {
        "preset": layer.preset,
        "layer": layer.digest(),
        "calibration": layer.calibration_label,
        "certificate": layer.certificate_status,
        "encoder": gate.encoder.identity,
        "detector": gate.detector.identity,
        "risk_policy": gate.risk_policy.fingerprint,
        "require_relevant": gate.embedding_gate.require_relevant,
    }


_KEPT = (
    "action",
    "relevance",
    "reliability",
    "risk",
    "risk_rule",
    "agreement",
    "conflict_rate",
    "conflict_count",
    "gain",
    "norm",
    "confidence",
    "consistency",
    "gated_confidence",
    "thresholds",
    "status",
    "reasons",
)
"""Of a decision record, what an answer's record keeps: the store stands beside it."""


def _decision(record: DecisionRecord) -> dict[str, Any]:
    plain = record.to_dict()
    return {name: plain[name] for name in _KEPT}


def _completion(record: dict[str, Any]) -> Completion:
    values: dict[str, Any] = {f.name: record[f.name] for f in dataclasses.fields(Completion)}
    return Completion(**{**values, "notes": tuple(record["notes"])})


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def _write(path: Path, value: Any) -> None:
    """Write JSON so that a kill leaves either the old file or the new."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
    fresh.replace(path)
