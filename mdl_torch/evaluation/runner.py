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
import itertools
import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mdl_torch.calibration import Calibration
from mdl_torch.errors import CalibrationMismatchError
from mdl_torch.evaluation.agreement import Comparer
from mdl_torch.evaluation.environment import environment
from mdl_torch.evaluation.fitting import fit_calibration
from mdl_torch.evaluation.journal import ANSWER_FIELDS, DirectoryLock, Journal
from mdl_torch.evaluation.judge import JudgeScorer
from mdl_torch.evaluation.oracle import oracle_action
from mdl_torch.evaluation.questions import Question, load_questions
from mdl_torch.evaluation.scoring import EmbeddingScorer, Score, Scorer, error_floor
from mdl_torch.evaluation.splits import Split, split_questions
from mdl_torch.evaluation.stores import build_stores
from mdl_torch.evaluation.systems import SYSTEMS
from mdl_torch.evaluation.systems.base import ABSTENTION, Answer, Item, Steps, System
from mdl_torch.evaluation.systems.plain import NoMemory, StandardRAG
from mdl_torch.gate import MemoryGate
from mdl_torch.generation.backend import FORM_SAMPLING, Backend, Completion, Request
from mdl_torch.generation.build import build_backend
from mdl_torch.generation.prompts import Prompt, wording_digest
from mdl_torch.layer import MemoryDecisionLayer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mdl_torch.evaluation.experiment import Experiment
    from mdl_torch.records import DecisionRecord
    from mdl_torch.risk import RiskPolicy

PAPER = "paper"
"""The gate whose signals stand in the records of systems without one of their own."""

WORDING = f"{wording_digest()} {ABSTENTION}"
"""Names the words of all prompts, and of an abstention: answers to other words are other answers."""

CALIBRATING = (NoMemory(), StandardRAG())
"""Systems whose outcomes on the calibration split thresholds and supervised controllers are fitted on."""


class IncompleteCalibrationError(RuntimeError):
    """Answers of the calibration split are missing, so that nothing can be fitted on it yet."""


@dataclass(frozen=True)
class Progress:
    """How far a run is.

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


def run(
    experiment: Experiment, folder: str | os.PathLike[str], backend: Backend, *, progress: bool = False
) -> Progress:
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
        IncompleteCalibrationError: The model could not answer all of the calibration split; run again.
        CalibrationMismatchError: The calibration file that was given was fitted on other data, or another encoder.
        OSError: A file or the model is not there, or the disk is full.
        ValueError: The data set is malformed.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with DirectoryLock(path), contextlib.ExitStack() as stack:
        files = _Files(
            *(stack.enter_context(Journal(path / f"{name}.jsonl", needed)) for name, needed in _Files.NEEDED.items())
        )
        return _Run(experiment, path, backend, files, progress=progress).run()


_REQUIRED = tuple(
    field.name for field in dataclasses.fields(Completion) if field.name not in ("choices", "probabilities")
)
"""What every completion on the disk has."""

_LASTING = (ValueError, FloatingPointError)
"""Errors that come out the same however often the same is asked: a prompt that does not fit, logits that are NaN."""


@dataclass
class _Files:
    NEEDED: ClassVar[dict[str, tuple[str, ...]]] = {
        "completions": ("key", *_REQUIRED),
        "answers": (*ANSWER_FIELDS, "identity", "notes"),
        "errors": (),
    }

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
    one: bool = True
    """Whether it waits for one completion; else for a list."""

    def advance(self, completions: Sequence[Completion] = ()) -> list[tuple[Prompt, int]] | None:
        """The next prompts, each with how often this job has asked it before; None when the answer is there."""
        self.completions += completions
        try:
            yielded = self.steps.send((completions[0] if self.one else list(completions)) if self.prompts else None)
            while not isinstance(yielded, Prompt) and not yielded:
                yielded = self.steps.send([])  # nothing asked, nothing answered
        except StopIteration as done:
            self.answer = done.value
            return None
        self.one = isinstance(yielded, Prompt)
        asked = []
        for prompt in [yielded] if isinstance(yielded, Prompt) else yielded:
            asked.append((prompt, self.prompts.count(prompt.digest)))
            self.prompts.append(prompt.digest)
        return asked


class _Waiting:
    """A job, and the requests that it waits for, each with its key."""

    def __init__(self, job: _Job, requests: list[tuple[str, Request]]) -> None:
        self.job, self.requests = job, requests
        self.missing = {key for key, _ in requests}


class _Run:
    def __init__(self, experiment: Experiment, path: Path, backend: Backend, files: _Files, *, progress: bool) -> None:
        self.experiment, self.path, self.backend, self.files = experiment, path, backend, files
        self.progress = progress
        self.known = {record["key"]: _completion(record) for record in files.completions.records}
        self.answered = {record["key"] for record in files.answers.records}
        self.failed: Counter[str] = Counter()
        self.interrupted = False
        """Whether an answer is missing that another run may get, so that later batches would not be the same."""
        self.new = 0
        self.calibrating: list[str] = []
        """Keys of the answers that calibrations and supervised controllers are fitted on."""

    def run(self) -> Progress:
        experiment = self.experiment
        data = load_questions(experiment.data)
        bare = MemoryGate.from_pretrained(
            **self._encoder(),
            calibration=None,
            detector=experiment.detector,
            require_relevant=experiment.require_relevant,
        )
        self.scorer: Scorer = EmbeddingScorer(bare.encoder)
        if experiment.judge is not None:
            self.scorer = JudgeScorer(build_backend(**experiment.judge))  # type: ignore[arg-type]
        self.encoder = bare.encoder
        self.compare = Comparer(bare.encoder, bare.detector)
        self.data, self.revision = data.name, data.revision
        given = self._given_calibration()
        systems = [SYSTEMS[name]() for name in experiment.systems]
        used = set(given.provenance.get("questions", ())) if given and self._is_of_this_data(given) else set()
        learning = given is None or any(system.learns for system in systems)
        split = self._split([q for q in data.questions if q.id not in used], bare.risk_policy, learning=learning)
        outcomes = self._calibration_outcomes(bare, data.questions, split) if learning else []
        gates = self._gates(bare, {system.gate for system in systems if system.gate} | {PAPER}, outcomes, given)
        systems = [system.fit(outcomes) for system in systems]
        self._describe(data, split, gates, systems)
        self.gates = {name: _gate_identity(gate) for name, gate in gates.items()}
        jobs = self._jobs(systems, experiment.seeds, data.questions, split.evaluated, gates)
        expected = {job.key for job in jobs}
        before = len(expected & self.answered)
        self._answer(jobs, "answering")
        have = len(expected & self.answered)
        return Progress(have, len(expected), have - before, len(expected) - have)

    def _split(self, questions: Sequence[Question], risk: RiskPolicy, *, learning: bool) -> Split:
        """The calibration split, if anything is fitted, and the evaluated questions."""
        experiment = self.experiment
        aside = experiment.calibration_questions if learning else 0
        if aside >= len(questions) or (experiment.questions or 1) > len(questions) - aside:
            raise ValueError(
                f"questions and calibration_questions must be no more than the {len(questions)} questions of "
                f"{experiment.data} together, got {experiment.questions or 'the rest'} and {aside}; "
                "with calibration: reference nothing is fitted, unless a system learns"
            )
        return split_questions(
            questions,
            calibration=aside,
            evaluated=experiment.questions,
            at_top_risk=experiment.at_top_risk,
            risk=risk,
            seed=experiment.split_seed,
        )

    def _encoder(self) -> dict[str, Any]:
        return {} if self.experiment.encoder is None else {"encoder": self.experiment.encoder}

    # ---------------------------------------------------------------------------------------------------- the gates

    def _given_calibration(self) -> Calibration | None:
        """The calibration of the experiment, if it is not to be fitted."""
        given = self.experiment.calibration
        if given == "fit":
            return None
        if given == "reference":
            return Calibration.reference()
        if not Path(given).is_file():
            raise FileNotFoundError(f"calibration must be fit, reference or a file, got {given!r}")
        calibration = Calibration.load(given)
        if not self._is_of_this_data(calibration):
            raise CalibrationMismatchError(
                f"calibration {calibration.name!r} was fitted on {calibration.dataset}, got {self.data} "
                f"sha256:{self.revision[:12]}; fit one on this data, or use the reference calibration"
            )
        return calibration

    def _is_of_this_data(self, calibration: Calibration) -> bool:
        return calibration.dataset.endswith(f"sha256:{self.revision[:12]}")

    def _calibration_outcomes(
        self, bare: MemoryGate, questions: Sequence[Question], split: Split
    ) -> list[dict[str, Any]]:
        """Records of B1 and B2 on the calibration split."""
        self.gates = {PAPER: _gate_identity(bare)}
        jobs = self._jobs(CALIBRATING, (0,), questions, split.calibration, {PAPER: bare})
        self._answer(jobs, "calibrating")
        self.calibrating = [job.key for job in jobs]
        kept = {record["key"]: record for record in self.files.answers.records}
        missing = [key for key in self.calibrating if key not in kept]
        if missing:
            why = f"; most often: {self.failed.most_common(1)[0][0]}" if self.failed else ""
            raise IncompleteCalibrationError(
                f"{len(missing)} of {len(jobs)} answers of the calibration split are missing, run again{why}"
            )
        return [kept[key] for key in self.calibrating]

    def _gates(
        self, bare: MemoryGate, names: set[str], outcomes: Sequence[dict[str, Any]], given: Calibration | None
    ) -> dict[str, MemoryGate]:
        """The gates of the systems, calibrated."""
        experiment = self.experiment
        layers = {name: MemoryDecisionLayer.from_preset(name) for name in sorted(names)}
        if given is None:
            for name, layer in layers.items():
                fitted = fit_calibration(outcomes, layer, name=f"{self.data}-{name}")
                fitted.save(self.path / f"calibration-{name}-{experiment.label}.json")
                layers[name] = layer.calibrated(fitted)
        else:
            given.save(self.path / f"calibration-{PAPER}-{experiment.label}.json")  # wherever it is from, it is here
            layers[PAPER] = layers[PAPER].calibrated(given)
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
        systems: Sequence[System],
        seeds: Sequence[int],
        pool: Sequence[Question],
        questions: Sequence[Question],
        gates: dict[str, MemoryGate],
    ) -> list[_Job]:
        experiment = self.experiment
        stores = build_stores(pool, questions, condition=experiment.condition, seed=experiment.store_seed)
        decided = {name: gate.records(stores, audits=False) for name, gate in gates.items()}
        jobs = []
        for system in systems:
            for place, question in enumerate(questions):
                item = Item(question, stores[place], decided[system.gate or PAPER][place], self.compare)
                for seed in seeds:
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
            WORDING,
            self.backend.identity,
            self.experiment.sampling.to_dict(),
            self.scorer.identity,
            seed,
            *([system.identity] if system.identity else []),
        )

    # ----------------------------------------------------------------------------------------------------- the rounds

    def _answer(self, jobs: list[_Job], what: str) -> None:
        """Take every job to its answer."""
        waiting: list[_Waiting] = []
        done: list[_Job] = []
        for job in jobs:
            self._go_on(job, job.advance(), waiting, done)
        self._keep(done)
        number = 0
        settled: set[str] = set()  # by earlier rounds, whether now or before a kill
        while waiting and not self.interrupted:
            number += 1
            waiting = self._round(waiting, settled, f"{what}, round {number}")

    def _go_on(
        self, job: _Job, prompts: list[tuple[Prompt, int]] | None, waiting: list[_Waiting], done: list[_Job]
    ) -> None:
        if prompts is None:
            done.append(job)
        else:
            waiting.append(_Waiting(job, [self._ask(job, *asked) for asked in prompts]))

    def _ask(self, job: _Job, prompt: Prompt, again: int) -> tuple[str, Request]:
        """The request for a prompt, and its key."""
        where = f"{self.revision}|{job.item.question.id}|{prompt.digest}"
        if prompt.form is not None:  # filled in with what is likeliest, whatever the seed
            return _digest(self.backend.identity, FORM_SAMPLING.to_dict(), where), Request.of(prompt, f"form|{where}")
        noise = f"{job.seed}|{where}|{again}"
        return _digest(self.backend.identity, self.experiment.sampling.to_dict(), noise), Request.of(prompt, noise)

    def _round(self, waiting: list[_Waiting], settled: set[str], what: str) -> list[_Waiting]:
        """Answer the prompts of each job; those that go on, with their next."""
        asked = {key: request for one in waiting for key, request in one.requests if key not in settled}
        needed_by: dict[str, list[_Waiting]] = {}
        for one in waiting:
            for key in one.missing:
                needed_by.setdefault(key, []).append(one)
        ongoing: list[_Waiting] = []
        for batch in itertools.chain([sorted(needed_by.keys() & settled)], self._batches(asked, what)):
            done: list[_Job] = []
            for key in batch:
                for one in needed_by[key] if key in self.known else ():
                    one.missing.discard(key)
                    if not one.missing:
                        found = [_read(self.known[key], request) for key, request in one.requests]
                        self._go_on(one.job, one.job.advance(found), ongoing, done)
            self._keep(done)
        settled.update(asked)
        return ongoing

    def _batches(self, asked: dict[str, Request], what: str) -> Iterator[list[str]]:
        """Answer the requests, a batch at a time: those of like length together, which wastes least on padding."""
        from tqdm import tqdm

        def length(key: str) -> tuple[bool, int, str]:
            request = asked[key]
            return request.form is not None, len(request.instruction) + len(request.user), key

        order = sorted(asked, key=length)
        free = sum(request.form is None for request in asked.values())
        size = max(1, self.backend.batch_size)
        with tqdm(total=len(order), desc=what, unit="prompt", disable=not self.progress) as bar:
            for part in (order[:free], order[free:]):  # answers and forms are batches of their own
                for start in range(0, len(part), size):
                    batch = part[start : start + size]
                    if any(key not in self.known for key in batch):
                        self._generate({key: asked[key] for key in batch})
                    bar.update(len(batch))
                    yield batch

    def _generate(self, batch: dict[str, Request]) -> None:
        if not self.backend.batch_matters:
            batch = {key: request for key, request in batch.items() if key not in self.known}
        requests = list(batch.values())
        forms = requests[0].form is not None
        answers = self.backend.choose(requests) if forms else self.backend.generate(requests, self.experiment.sampling)
        fresh, errors = [], []
        for (key, request), found in zip(batch.items(), answers, strict=True):
            if key in self.known:
                continue
            if isinstance(found, Exception):
                self.interrupted |= self.backend.batch_matters and not isinstance(found, _LASTING)
                errors.append({"key": key, "noise": request.key, "error": f"{type(found).__name__}: {found}"[:1000]})
                continue
            self.known[key] = found
            fresh.append({"key": key, "noise": request.key, **_plain(found)})
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
        judged = [(job, score) for job, score in zip(fresh, scores, strict=True) if score.outcome is not None]
        self.failed.update(f"not scored: {score.failure}" for score in scores if score.outcome is None)
        self.files.answers.append([self._record(job, score) for job, score in judged])
        self.answered |= {job.key for job, _ in judged}
        self.new += len(judged)

    def _record(self, job: _Job, score: Score) -> dict[str, Any]:
        assert job.answer is not None
        question, answer, calls = job.item.question, job.answer, job.completions
        record = {
            "key": job.key,
            "experiment": self.experiment.label,
            "data": self.data,
            "revision": self.revision,
            "condition": self.experiment.condition,
            "store_seed": self.experiment.store_seed,
            "wording": WORDING,
            "scorer": self.scorer.identity,
            "system": job.system.name,
            "gate": self.gates[job.system.gate or PAPER],
            "identity": job.system.identity,
            "model": self.backend.identity,
            "answered_by": sorted({call.model for call in calls}),
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
        return {**record, "oracle": oracle_action(record)}

    @staticmethod
    def _risks(questions: Sequence[Question], gate: MemoryGate) -> dict[str, int]:
        """How many questions of the data set have each risk."""
        assess = gate.risk_policy.assess
        return dict(Counter(f"{assess(q.text, category=q.category).value:g}" for q in questions))

    def _error_floor(self, questions: Sequence[Question]) -> dict[str, Any] | None:
        """How often the scorer misjudges the data's own reference answers; taken over from an earlier run, if known."""
        if not isinstance(self.scorer, EmbeddingScorer):
            return None
        try:
            known = json.loads((self.path / "experiment.json").read_text("utf-8"))
            if (known["scorer"], known["revision"]) == (self.scorer.identity, self.revision) and known["error_floor"]:
                return dict(known["error_floor"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not known yet
        return error_floor(questions, self.encoder).to_dict()

    def _describe(self, data: Any, split: Split, gates: dict[str, MemoryGate], systems: Sequence[System]) -> None:
        described = {
            "experiment": self.experiment.to_dict(),
            "label": self.experiment.label,
            "revision": data.revision,
            "backend": self.backend.identity,
            "scorer": self.scorer.identity,
            "wording": WORDING,
            "calibration_keys": self.calibrating,
            "gates": {name: _gate_identity(gate) for name, gate in gates.items()},
            "identities": {system.name: system.identity for system in systems},
            "fitted": {system.name: system.description() for system in systems if system.learns},
            "sampling": self.experiment.sampling.to_dict(),
            "condition": self.experiment.condition,
            "error_floor": self._error_floor(data.questions),
            "risks": self._risks(data.questions, gates[PAPER]),
            "calibration_questions": [question.id for question in split.calibration],
            "evaluated_questions": [question.id for question in split.evaluated],
        }
        _write(self.path / "experiment.json", described)
        if not (self.path / "environment.json").exists() or self.new:
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


def _plain(completion: Completion) -> dict[str, Any]:
    """As it is kept: likelihoods, but not what was read from them or from the text, which is read anew each time."""
    values = dataclasses.asdict(completion)
    return {name: value for name, value in values.items() if name in _REQUIRED or (name == "probabilities" and value)}


def _read(completion: Completion, request: Request) -> Completion:
    if request.form is None:
        return completion
    return dataclasses.replace(completion, choices=request.form.choices(completion.text, completion.probabilities))


def _completion(record: dict[str, Any]) -> Completion:
    values: dict[str, Any] = {f.name: record[f.name] for f in dataclasses.fields(Completion) if f.name in record}
    return Completion(**{**values, "notes": tuple(record["notes"])})


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def _write(path: Path, value: Any) -> None:
    """Write JSON so that a kill leaves either the old file or the new."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
