"""What a run found: its records, the rates of each system with their uncertainty, and the paper's figures beside them.

A rate is over scored answers, empty outputs included: an empty output is neither a hallucination nor an abstention.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mdl_torch.data import read_text
from mdl_torch.evaluation.journal import ANSWER_FIELDS
from mdl_torch.evaluation.oracle import oracle_action
from mdl_torch.evaluation.scoring import Outcome
from mdl_torch.evaluation.splits import TOP_RISK
from mdl_torch.evaluation.statistics import (
    RESAMPLES,
    RISK_WEIGHTS,
    Estimate,
    McNemar,
    MeanStd,
    PairedT,
    cluster_bootstrap,
    mcnemar,
    mean_std,
    paired_difference,
    paired_t,
    per_question,
    risk_weighted,
    wilson,
)
from mdl_torch.evaluation.systems import SYSTEMS
from mdl_torch.outputs import Action
from mdl_torch.risk import RISK_TOLERANCE, tier

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Record = Mapping[str, Any]
    Slot = tuple[str, str, int]

GROUPS = ("overall", "low", "medium", "high", "high_risk")
"""Answers that rates are given of: all, each tier of risk, and the paper's "high-risk", A = 0.85."""

REFERENCES = ("b1", "b2")
"""Systems that the others are compared with."""

MEASURES = (*GROUPS, "risk_weighted", "abstention", "correct")
"""Rates that have one number: hallucination in each group, and over all answers the rest."""

# ------------------------------------------------------------------------------------------------------- the records


@dataclass(frozen=True)
class Run:
    """The records of one experiment, each answer once.

    Attributes:
        folder: Where they are from.
        description: ``experiment.json``.
        environment: ``environment.json``; empty if there is none.
        records: Of the evaluated questions, ordered by system, question and seed.
        duplicates: Records that say again what another one says, and were left out.
        foreign: Records of other experiments in the folder, and of the calibration split.
        damaged: Lines that are no record.
    """

    folder: Path
    description: dict[str, Any]
    environment: dict[str, Any]
    records: tuple[dict[str, Any], ...]
    duplicates: int = 0
    foreign: int = 0
    damaged: int = 0

    @property
    def systems(self) -> tuple[str, ...]:
        """As the experiment lists them."""
        return tuple(self.description["experiment"]["systems"])

    @property
    def seeds(self) -> tuple[int, ...]:
        """As the experiment lists them."""
        return tuple(self.description["experiment"]["seeds"])

    @property
    def questions(self) -> tuple[str, ...]:
        """Ids of the evaluated questions."""
        return tuple(self.description["evaluated_questions"])

    @property
    def expected(self) -> int:
        """Answers that each system has when the run is complete."""
        return len(self.questions) * len(self.seeds)

    @property
    def complete(self) -> bool:
        """Whether every system has all its answers."""
        return len(self.records) == self.expected * len(self.systems)

    @property
    def data(self) -> str:
        """Name of the data set."""
        given = self.records[0].get("data") if self.records else None
        name = str(given or self.description["experiment"]["data"])
        stem = name.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0]
        return next((known for known in ("truthfulqa", "halueval") if stem.lower().startswith(known)), stem)

    @property
    def model(self) -> str:
        """Short name of the language model."""
        given = self.description["experiment"]["model"]
        name = str(given.get("model") or given.get("kind") or self.description["backend"])
        return name.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")

    def of(self, system: str) -> list[dict[str, Any]]:
        """The records of one system."""
        return [record for record in self.records if record["system"] == system]

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write the records as a table, one row an answer, with the oracle's action; what is nested becomes columns.

        Columns are named ``decision_action`` and so on; memories stay a list of id and text, ``notes`` is JSON.

        Raises:
            ImportError: pyarrow is not installed.
            OSError: It cannot be written.
        """
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError("parquet needs pyarrow: pip install mdl_torch[evaluate]") from error
        rows = [_flat({**record, "oracle": _oracle(record)}) for record in self.records]
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {}
        for name in names:
            column = pyarrow.array([row.get(name) for row in rows])
            if pyarrow.types.is_null(column.type):
                column = column.cast(pyarrow.string())
            elif pyarrow.types.is_list(column.type) and pyarrow.types.is_null(column.type.value_type):
                column = column.cast(pyarrow.list_(pyarrow.string()))
            columns[name] = column
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table(columns), target)
        return target


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Read what ``mdl evaluate`` has written so far, and change nothing, so that a run in progress can be read.

    A record belongs to the experiment that ``experiment.json`` describes if all that determines it is the same: data,
    condition, system, gate, model, sampling, scorer, and one of its seeds and evaluated questions.

    Raises:
        FileNotFoundError: There is no ``experiment.json`` or ``answers.jsonl``.
        ValueError: ``experiment.json`` is malformed.

    Warns:
        RuntimeWarning: A line is damaged, such as a last line that was cut; it is skipped.

    Example:
        >>> read_run("no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: no/such/folder holds no run: experiment.json is missing
    """
    path = Path(folder)
    description = _description(path)
    lines, damaged = _lines(path / "answers.jsonl")
    if damaged:
        message = f"{path / 'answers.jsonl'}: {damaged} damaged lines were skipped; {len(lines)} are whole"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    own = [record for record in lines if _belongs(record, description)]
    chosen: dict[Slot, dict[str, Any]] = {}
    for record in own:
        slot = (record["system"], record["question_id"], record["seed"])
        before = chosen.get(slot)
        if before is None or (record.get("experiment") == description["label"] != before.get("experiment")):
            chosen[slot] = record
    given = description["experiment"]
    order = {name: place for place, name in enumerate(given["systems"])}
    places = {question: place for place, question in enumerate(description["evaluated_questions"])}
    records = sorted(chosen.values(), key=lambda r: (order[r["system"]], places[r["question_id"]], r["seed"]))
    return Run(
        folder=path,
        description=description,
        environment=_environment(path / "environment.json"),
        records=tuple(records),
        duplicates=len(own) - len(chosen),
        foreign=len(lines) - len(own),
        damaged=damaged,
    )


def _environment(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold an object, got {type(found).__name__}")
    return found


_OF_AN_EXPERIMENT = (
    "data", "model", "systems", "seeds", "sampling", "condition", "store_seed", "calibration", "at_top_risk",
)  # fmt: skip


def _description(path: Path) -> dict[str, Any]:
    for name in ("experiment.json", "answers.jsonl"):
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path} holds no run: {name} is missing")
    try:
        found = json.loads((path / "experiment.json").read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path / 'experiment.json'} is no JSON: {error}") from error
    needed = ("experiment", "label", "revision", "backend", "scorer", "gates", "evaluated_questions")
    missing = [name for name in needed if not isinstance(found, dict) or name not in found]
    if missing:
        raise ValueError(f"{path / 'experiment.json'} must hold {', '.join(missing)}")
    given = found["experiment"]
    missing = [name for name in _OF_AN_EXPERIMENT if not isinstance(given, dict) or name not in given]
    if missing or not isinstance(found["gates"], dict) or "paper" not in found["gates"]:
        raise ValueError(
            f"{path / 'experiment.json'} must hold gates, that of the paper among them, and an experiment with "
            f"{', '.join(missing or _OF_AN_EXPERIMENT)}"
        )
    return dict(found)


def _lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    whole: list[dict[str, Any]] = []
    damaged = 0
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and _is_whole(record):
            whole.append(record)
        elif line.strip():
            damaged += 1
    return whole, damaged


def _refuse(constant: str) -> None:
    raise ValueError(f"a record must be JSON, got {constant}")


def _is_whole(record: Record) -> bool:
    decision, outcome = record.get("decision"), record.get("outcome")
    return (
        all(name in record for name in ANSWER_FIELDS)
        and isinstance(decision, dict)
        and {"action", "relevance", "reliability", "risk"} <= decision.keys()
        and isinstance(record.get("notes", {}), dict)
        and (outcome is None or outcome in [one.label for one in Outcome])
    )


def _belongs(record: Record, description: Mapping[str, Any]) -> bool:
    given, system = description["experiment"], record["system"]
    if system not in given["systems"]:
        return False
    gate = (SYSTEMS[system]().gate if system in SYSTEMS else None) or "paper"
    return bool(
        record["question_id"] in description["evaluated_questions"]
        and record["seed"] in given["seeds"]
        and record["revision"] == description["revision"]
        and record["condition"] == given["condition"]
        and record["model"] == description["backend"]
        and record["sampling"] == given["sampling"]
        and record["gate"] == description["gates"][gate]
        and record.get("identity", "") == (description.get("identities") or {}).get(system, "")
        and record.get("wording", description.get("wording")) == description.get("wording")
        and record.get("scorer", description["scorer"]) == description["scorer"]
        and record.get("store_seed", given["store_seed"]) == given["store_seed"]
    )


def _oracle(record: Record) -> dict[str, Any]:
    return {"action": oracle_action(record)}


def _flat(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in record.items():
        if name == "notes":
            row[name] = json.dumps(value, ensure_ascii=False)
        elif isinstance(value, dict):
            row |= {f"{name}_{inner}": held for inner, held in value.items()}
        else:
            row[name] = value
    return row


# --------------------------------------------------------------------------------------------------------- the rates


@dataclass(frozen=True)
class Rate:
    """A share of answers, or a mean over them, with its 95% interval.

    Attributes:
        value: None where there is nothing to divide by.
        low: Lower bound; None where there is no interval.
        high: Upper bound.
        method: Of the interval: ``wilson``, of independent answers; ``bootstrap``, over questions; ``wilson over
            questions`` where every answer is alike, of which a bootstrap would claim certainty; ``none``.
        n: Answers it is a share of, or a mean over.
        questions: That they answer.
    """

    value: float | None
    low: float | None
    high: float | None
    method: str
    n: int
    questions: int


def rate(
    above: Sequence[float], below: Sequence[float], questions: Sequence[str], *, resamples: int = RESAMPLES
) -> Rate:
    """Σ above / Σ below with the interval that its data allow.

    Wilson's where each question has one answer and all weigh alike; else a bootstrap over questions. Where all answers
    agree (0 or 1), Wilson's with Kish's effective number of questions, (Σ w)² / Σ w², w the weight of a question.

    Args:
        above: Of each answer, from 0 to ``below``, ``(n,)``.
        below: Its weight; 0 leaves it out.
        questions: Which question it answers.
        resamples: Of the bootstrap.

    Example:
        >>> rate([0, 1], [1, 1], ["a", "b"]).method, rate([0, 1], [1, 1], ["a", "a"]).method
        ('wilson', 'none')
    """
    kept = [(a, b, q) for a, b, q in zip(above, below, questions, strict=True) if b]
    if not kept:
        return Rate(None, None, None, "none", 0, 0)
    tops, weights, asked = (list(column) for column in zip(*kept, strict=True))
    n, count = len(kept), len(set(asked))
    value = math.fsum(tops) / math.fsum(weights)
    if n == count and set(weights) == {1.0}:
        low, high = wilson(round(math.fsum(tops)), n)
        return Rate(value, low, high, "wilson", n, count)
    if value in (0.0, 1.0):
        of_question: dict[str, float] = dict.fromkeys(asked, 0.0)
        for weight, question in zip(weights, asked, strict=True):
            of_question[question] += weight
        total = math.fsum(of_question.values())
        effective = math.floor(total**2 / math.fsum(w * w for w in of_question.values()) + 1e-9)
        low, high = wilson(effective if value else 0, effective)
        return Rate(value, low, high, "wilson over questions", n, count)
    interval = cluster_bootstrap(tops, weights, asked, resamples=resamples).interval
    if interval is None:
        return Rate(value, None, None, "none", n, count)
    return Rate(value, interval.low, interval.high, "bootstrap", n, count)


def mean(values: Sequence[float], questions: Sequence[str], *, resamples: int = RESAMPLES) -> Rate:
    """A mean over answers with its bootstrap interval over questions; none where all values are the same.

    Args:
        values: Of each answer.
        questions: Which question it answers.
        resamples: Of the bootstrap.

    Example:
        >>> mean([1, 1], ["a", "b"]).low, mean([1, 3], ["a", "b"]).low
        (None, 1.0)
    """
    n, count = len(values), len(set(questions))
    if not values:
        return Rate(None, None, None, "none", 0, 0)
    if len(set(values)) == 1:
        return Rate(float(values[0]), None, None, "none", n, count)
    found = cluster_bootstrap(values, np.ones(n), questions, resamples=resamples)
    if found.interval is None:
        return Rate(found.value, None, None, "none", n, count)
    return Rate(found.value, found.interval.low, found.interval.high, "bootstrap", n, count)


@dataclass(frozen=True)
class Noted:
    """What a system counted: one value of a note, or a note that is a number.

    Attributes:
        name: Of the note.
        value: A text or truth value in words; None of a number.
        count: Answers with this value; of a number, its sum.
        rate: Their share of the answers that have the note; of a number, its mean.
    """

    name: str
    value: str | None
    count: float
    rate: Rate

    @property
    def label(self) -> str:
        """As tables call it."""
        return self.name if self.value is None else f"{self.name}: {self.value}"


@dataclass(frozen=True)
class SystemSummary:
    """What one system did.

    Attributes:
        system: Its name.
        answers: That there are.
        expected: That there are when the run is complete.
        unscored: Answers that the scorer could not judge; no rate counts them.
        outcomes: Answers by outcome.
        hallucination: Rate in each of ``GROUPS``.
        risk_weighted: Σ A·h / Σ A.
        weightings: The same with each of ``RISK_WEIGHTS``.
        abstention: Rate in each group: by the gate or by the model's own words.
        correct: Share of answers that say what a correct reference says.
        among_answered: Hallucinations among answers that are neither abstentions nor empty.
        empty: Share of empty outputs.
        calls: Of the model, per answer; filling in a form is one.
        prompt_tokens: Per answer.
        completion_tokens: Per answer.
        seconds: Of the model's work, per answer.
        seconds_median: The same.
        notes: What the system counted: grades, regenerations, decisions.
        actions: Share of each action in each group, of a system with a gate; empty for others.
        seeds: Mean and standard deviation over seeds of each of ``MEASURES``.
    """

    system: str
    answers: int
    expected: int
    unscored: int
    outcomes: dict[str, int]
    hallucination: dict[str, Rate]
    risk_weighted: Rate
    weightings: dict[str, float | None]
    abstention: dict[str, Rate]
    correct: Rate
    among_answered: Rate
    empty: Rate
    calls: Rate
    prompt_tokens: Rate
    completion_tokens: Rate
    seconds: Rate
    seconds_median: float | None
    notes: tuple[Noted, ...]
    actions: dict[str, dict[str, float | None]]
    seeds: dict[str, MeanStd]

    def measure(self, name: str) -> Rate:
        """One of ``MEASURES``."""
        if name in self.hallucination:
            return self.hallucination[name]
        rates = {"risk_weighted": self.risk_weighted, "abstention": self.abstention["overall"], "correct": self.correct}
        return rates[name]


@dataclass(frozen=True)
class Comparison:
    """One system against another on the questions and seeds that both answered.

    Attributes:
        system: The first.
        reference: The second, which is subtracted.
        pairs: Answers of each.
        hallucination: Difference of the rates in each group, with a bootstrap over questions.
        risk_weighted: Difference of Σ A·h / Σ A.
        correct: Difference of the correct-answer rates.
        over_questions: Paired t-test of the hallucination rates of questions, each its mean over seeds.
        over_seeds: The same of the rates of seeds; None of one seed.
        mcnemar: Of hallucinations at the first seed: one pair a question.
    """

    system: str
    reference: str
    pairs: int
    hallucination: dict[str, Estimate]
    risk_weighted: Estimate
    correct: Estimate
    over_questions: PairedT | None
    over_seeds: PairedT | None
    mcnemar: McNemar


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper for a system of this run on the same data set.

    Attributes:
        system: Name of the system.
        measure: One of ``MEASURES``.
        value: In the paper.
        model: The paper's.
        questions: The paper's.
        seeds: The paper's.
        source: Where in the paper.
        same_model: Whether this run's model has the same name.
        same_n: Whether this run has as many questions and seeds.
    """

    system: str
    measure: str
    value: float
    model: str
    questions: int
    seeds: int
    source: str
    same_model: bool
    same_n: bool


@dataclass(frozen=True)
class WeightingFit:
    """Whether one meaning of "risk-weighted" is consistent with the paper's other figures.

    Attributes:
        weighting: One of ``RISK_WEIGHTS``.
        model: The paper's.
        system: Name of the system.
        published: The paper's risk-weighted rate.
        low: Least that the paper's rates of groups allow with this weighting.
        high: Most that they allow.
        distance: From ``published`` to the nearest that they allow.
    """

    weighting: str
    model: str
    system: str
    published: float
    low: float
    high: float
    distance: float


@dataclass(frozen=True)
class Summary:
    """All the figures of a run.

    Attributes:
        model: Short name of the language model.
        backend: Its full identity.
        data: Name of the data set.
        revision: Of the data set.
        label: Of the experiment.
        condition: How stores were built.
        scorer: Identity of the scorer.
        questions: Evaluated questions in each of ``GROUPS`` that any system has answered.
        planned: Evaluated questions of the experiment.
        seeds: Of the experiment.
        at_top_risk: How many questions at A = 0.85 the sample was to have at least; 0 if it was drawn by chance.
        systems: In the order of the experiment.
        comparisons: Of each system with B1 and with B2.
        paper: The paper's figures for the same data set.
        paper_notes: What the paper counted of a system on the same data set: system, label (``Noted.label``, or
            ``calls``), value, and the paper's model.
        weightings: See ``WeightingFit``; from the risks of the data set, if the run has them, else of its questions.
        weightings_from: Questions whose risks those are.
        error_floor: Of the scorer on the reference answers (``scoring.ErrorFloor``), if the run has it.
        environment: Where it ran.
        duplicates: Records left out since another says the same.
        damaged: Lines that are no record.
        foreign: Records of other experiments and of the calibration split.
    """

    model: str
    backend: str
    data: str
    revision: str
    label: str
    condition: str
    scorer: str
    questions: dict[str, int]
    planned: int
    seeds: tuple[int, ...]
    at_top_risk: int
    systems: tuple[SystemSummary, ...]
    comparisons: tuple[Comparison, ...]
    paper: tuple[PaperFigure, ...]
    paper_notes: tuple[tuple[str, str, float, str], ...]
    weightings: tuple[WeightingFit, ...]
    weightings_from: int
    error_floor: dict[str, Any] | None
    environment: dict[str, Any]
    duplicates: int
    damaged: int
    foreign: int

    @property
    def answers(self) -> int:
        """Of all systems together."""
        return sum(system.answers for system in self.systems)

    @property
    def expected(self) -> int:
        """Of all systems together, when the run is complete."""
        return sum(system.expected for system in self.systems)

    def of(self, system: str) -> SystemSummary:
        """One system by its name.

        Raises:
            KeyError: The run does not have it.
        """
        return {summary.system: summary for summary in self.systems}[system]

    def weighting_distances(self) -> dict[str, float]:
        """Mean distance of each weighting from the paper's risk-weighted rates, the nearest first."""
        groups: dict[str, list[float]] = {}
        for fit in self.weightings:
            groups.setdefault(fit.weighting, []).append(fit.distance)
        means = {name: math.fsum(found) / len(found) for name, found in groups.items()}
        return dict(sorted(means.items(), key=lambda item: item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "weighting_distances": self.weighting_distances()}


def summarise(run: Run, *, resamples: int = RESAMPLES) -> Summary:
    """The figures of a run, as far as it has got.

    Args:
        run: From ``read_run``.
        resamples: Of each bootstrap.
    """
    given = run.description["experiment"]
    systems = tuple(_system(run, name, resamples) for name in run.systems)
    comparisons = tuple(
        _comparison(run, name, reference, resamples)
        for reference in REFERENCES
        if reference in run.systems
        for name in run.systems
        if name != reference and not (name in REFERENCES and REFERENCES.index(name) < REFERENCES.index(reference))
    )
    risks = {record["question_id"]: _risk(record) for record in run.records}
    mix = _risks_of_data(run, risks.values())
    alike = given["condition"] == "paper"
    return Summary(
        model=run.model,
        backend=str(run.description["backend"]),
        data=run.data,
        revision=str(run.description["revision"]),
        label=str(run.description["label"]),
        condition=str(given["condition"]),
        scorer=str(run.description["scorer"]),
        questions={group: sum(in_group(a, group) for a in risks.values()) for group in GROUPS},
        planned=len(run.questions),
        seeds=run.seeds,
        at_top_risk=int(given["at_top_risk"]),
        systems=systems,
        comparisons=tuple(one for one in comparisons if one is not None),
        paper=tuple(_beside(run)) if alike else (),
        paper_notes=tuple(_noted_beside(run)) if alike else (),
        weightings=weighting_fits(mix, run.data) if alike else (),
        weightings_from=len(mix),
        error_floor=run.description.get("error_floor"),
        environment=run.environment,
        duplicates=run.duplicates,
        damaged=run.damaged,
        foreign=run.foreign,
    )


def in_group(risk: float, group: str) -> bool:
    """Whether a risk is in one of ``GROUPS``.

    Example:
        >>> [group for group in GROUPS if in_group(0.85, group)]
        ['overall', 'high', 'high_risk']
    """
    if group == "high_risk":
        return abs(risk - TOP_RISK) <= RISK_TOLERANCE
    return group == "overall" or tier(risk) == group


def _risk(record: Record) -> float:
    return float(record["decision"]["risk"])


def _risks_of_data(run: Run, evaluated: Iterable[float]) -> list[float]:
    """A of each question of the data set; a stratified sample has other shares."""
    counts: Mapping[str, int] | None = run.description.get("risks")
    return list(evaluated) if counts is None else [float(a) for a, count in counts.items() for _ in range(count)]


def _is(outcome: Outcome) -> Callable[[Record], float]:
    return lambda record: float(record["outcome"] == outcome.label)


_hallucinated = _is(Outcome.HALLUCINATION)


def _answered(record: Record) -> float:
    return float(Outcome(record["outcome"]).answered)


def _system(run: Run, name: str, resamples: int) -> SystemSummary:
    every = run.of(name)
    scored = [record for record in every if record["outcome"] is not None]

    def share(of: Callable[[Record], float], weight: Callable[[Record], float], group: str = "overall") -> Rate:
        chosen = [record for record in scored if in_group(_risk(record), group)]
        weights = [weight(record) for record in chosen]
        tops = [of(record) * w for record, w in zip(chosen, weights, strict=True)]
        return rate(tops, weights, [record["question_id"] for record in chosen], resamples=resamples)

    def one(_: Record) -> float:
        return 1.0

    def cost(of: str) -> Rate:
        return mean([record[of] for record in every], [record["question_id"] for record in every], resamples=resamples)

    hits, risks = [_hallucinated(record) for record in scored], [_risk(record) for record in scored]
    gated = name in SYSTEMS and SYSTEMS[name]().gate is not None
    return SystemSummary(
        system=name,
        answers=len(every),
        expected=run.expected,
        unscored=len(every) - len(scored),
        outcomes={outcome.label: sum(r["outcome"] == outcome.label for r in scored) for outcome in Outcome},
        hallucination={group: share(_hallucinated, one, group) for group in GROUPS},
        risk_weighted=share(_hallucinated, _risk),
        weightings={weighting: risk_weighted(hits, risks, weighting=weighting) for weighting in RISK_WEIGHTS},
        abstention={group: share(_is(Outcome.ABSTENTION), one, group) for group in GROUPS},
        correct=share(_is(Outcome.CORRECT), one),
        among_answered=share(_hallucinated, _answered),
        empty=share(_is(Outcome.EMPTY), one),
        calls=cost("calls"),
        prompt_tokens=cost("prompt_tokens"),
        completion_tokens=cost("completion_tokens"),
        seconds=cost("seconds"),
        seconds_median=statistics.median(record["seconds"] for record in every) if every else None,
        notes=tuple(_noted(every, _in_paper(run, name), resamples)),
        actions={group: _actions(every, group) for group in GROUPS} if gated else {},
        seeds={measure: _over_seeds(scored, measure) for measure in MEASURES},
    )


def _in_paper(run: Run, system: str) -> set[str]:
    """What the paper counted of a system: rows that a table has even where nothing was counted."""
    return {label for name, label, _, _ in _noted_beside(run) if name == system}


def _noted(records: Sequence[Record], expected: set[str], resamples: int) -> Iterator[Noted]:
    for name in dict.fromkeys(name for record in records for name in record.get("notes", {})):
        having = [record for record in records if name in record.get("notes", {})]
        values = [record["notes"][name] for record in having]
        asked = [record["question_id"] for record in having]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            yield Noted(name, None, math.fsum(values), mean(values, asked, resamples=resamples))
            continue
        said = [_in_words(value) for value in values]
        shown = set(said) | {label.removeprefix(f"{name}: ") for label in expected if label.startswith(f"{name}: ")}
        for value in sorted(shown | ({"yes", "no"} if shown & {"yes", "no"} else set())):
            hits = [float(one == value) for one in said]
            yield Noted(name, value, said.count(value), rate(hits, [1.0] * len(said), asked, resamples=resamples))


def _in_words(value: object) -> str:
    if value is None:
        return "not read"
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"


def _actions(records: Sequence[Record], group: str) -> dict[str, float | None]:
    chosen = [record["decision"]["action"] for record in records if in_group(_risk(record), group)]
    return {action.label: chosen.count(action.label) / len(chosen) if chosen else None for action in Action}


def _over_seeds(scored: Sequence[Record], measure: str) -> MeanStd:
    found = []
    for seed in sorted({record["seed"] for record in scored}):
        value = _value([record for record in scored if record["seed"] == seed], measure)
        if value is not None:
            found.append(value)
    return mean_std(found)


def _value(records: Sequence[Record], measure: str) -> float | None:
    """One of ``MEASURES``, bare."""
    if measure == "risk_weighted":
        return risk_weighted([_hallucinated(r) for r in records], [_risk(r) for r in records])
    if measure in GROUPS:
        return _mean(_hallucinated(record) for record in records if in_group(_risk(record), measure))
    return _mean(_is(Outcome.ABSTENTION if measure == "abstention" else Outcome.CORRECT)(record) for record in records)


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found else None


# --------------------------------------------------------------------------------------------------- the comparisons


def _comparison(run: Run, system: str, reference: str, resamples: int) -> Comparison | None:
    sides = [
        {(r["question_id"], r["seed"]): r for r in run.of(name) if r["outcome"] is not None}
        for name in (system, reference)
    ]
    pairs = [(first, sides[1][slot]) for slot, first in sides[0].items() if slot in sides[1]]
    if not pairs:
        return None

    def difference(
        of: Callable[[Record], float], chosen: Sequence[tuple[Record, Record]], weights: Sequence[float] | None = None
    ) -> Estimate:
        asked = [first["question_id"] for first, _ in chosen]
        columns = [[of(pair[side]) for pair in chosen] for side in (0, 1)]
        return paired_difference(columns[0], columns[1], asked, weights=weights, resamples=resamples)

    asked = [first["question_id"] for first, _ in pairs]
    by_question = [list(per_question([_hallucinated(pair[side]) for pair in pairs], asked).values()) for side in (0, 1)]
    seeds = sorted({first["seed"] for first, _ in pairs})
    by_seed = [
        [_mean(_hallucinated(p[side]) for p in pairs if p[0]["seed"] == seed) for seed in seeds] for side in (0, 1)
    ]
    first_seed = [pair for pair in pairs if pair[0]["seed"] == seeds[0]]
    groups = {group: [pair for pair in pairs if in_group(_risk(pair[0]), group)] for group in GROUPS}
    return Comparison(
        system=system,
        reference=reference,
        pairs=len(pairs),
        hallucination={group: difference(_hallucinated, chosen) for group, chosen in groups.items()},
        risk_weighted=difference(_hallucinated, pairs, [_risk(first) for first, _ in pairs]),
        correct=difference(_is(Outcome.CORRECT), pairs),
        over_questions=paired_t(*by_question) if len(by_question[0]) > 1 else None,
        over_seeds=paired_t(np.array(by_seed[0], float), np.array(by_seed[1], float)) if len(seeds) > 1 else None,
        mcnemar=mcnemar(*([bool(_hallucinated(pair[side])) for pair in first_seed] for side in (0, 1))),
    )


# --------------------------------------------------------------------------------------------------------- the paper


@functools.cache
def paper_results() -> dict[str, dict[str, Any]]:
    """What the paper reports of end-to-end runs, from ``data/paper_results.yaml``.

    Example:
        >>> paper_results()["gemma-4-E4B-it, TruthfulQA"]["rates"]["b2"]["medium"]
        0.526
    """
    import yaml

    return dict(yaml.safe_load(read_text("paper_results.yaml")))


PAPER_TEST = {"t": 11.82, "p": 0.007, "seeds": 2}
"""The paper's test of B2 against B1 with gemma-4-E4B-it (Section 5.2), and the seeds that it names for that model."""


def implied_degrees(t: float, p: float, *, most: int = 1000) -> int:
    """Degrees of freedom with which a two-sided p of Student's t comes nearest to a given one.

    Args:
        t: The statistic.
        p: The two-sided p that was published with it.
        most: Degrees to try.

    Example:
        >>> implied_degrees(11.82, 0.007)
        2
    """
    from scipy.stats import t as student

    degrees = np.arange(1, most + 1)
    with np.errstate(divide="ignore"):
        apart = np.abs(np.log(2 * student.sf(abs(t), degrees)) - math.log(p))
    return int(degrees[apart.argmin()])


def _beside(run: Run) -> list[PaperFigure]:
    return [
        PaperFigure(
            system=system,
            measure=measure,
            value=float(value),
            model=study["model"],
            questions=study["questions"],
            seeds=study["seeds"],
            source=study["source"],
            same_model=run.model.lower() in [name.lower() for name in study["names"]],
            same_n=(len(run.questions), len(run.seeds)) == (study["questions"], study["seeds"]),
        )
        for study in paper_results().values()
        if study["data"] == run.data
        for system, rates in study["rates"].items()
        if system in run.systems
        for measure, value in rates.items()
    ]


def _noted_beside(run: Run) -> Iterator[tuple[str, str, float, str]]:
    for study in paper_results().values():
        for system, notes in study.get("notes", {}).items():
            if study["data"] == run.data and system in run.systems:
                yield from ((system, label, float(value), study["model"]) for label, value in notes.items())


def weighting_fits(risks: Sequence[float], data: str) -> tuple[WeightingFit, ...]:
    """Which meanings of "risk-weighted" fit the paper's own figures, if its questions have risks like these.

    A weighted rate is Σ_t w_t·h_t over tiers, w_t the weight of a tier's questions. The paper gives the overall rate
    Σ_t p_t·h_t, that of the high tier (taken to be its "high-risk"), and of the medium one in one case; where it does
    not, all rates from 0 to 1 that the overall rate allows are tried, which gives a range.

    Args:
        risks: A of each question.
        data: Name of the data set.
    """
    if not risks:
        return ()
    column = np.asarray(risks, np.float64)
    names = ("low", "medium", "high")
    members = [np.array([tier(a) == name for a in column.tolist()]) for name in names]
    shares = [float(mask.mean()) for mask in members]
    found = []
    for study in paper_results().values():
        for system, rates in study["rates"].items():
            if study["data"] != data or "risk_weighted" not in rates:
                continue
            for weighting, weigh in RISK_WEIGHTS.items():
                weights = weigh(column)
                if not weights.sum():
                    continue
                parts = [float(weights[mask].sum() / weights.sum()) for mask in members]
                span = _allowed(parts, shares, rates)
                if span is None:
                    continue
                published = float(rates["risk_weighted"])
                distance = max(0.0, span[0] - published, published - span[1])
                found.append(WeightingFit(weighting, study["model"], system, published, *span, distance))
    return tuple(found)


def _allowed(parts: Sequence[float], shares: Sequence[float], rates: Mapping[str, float]) -> tuple[float, float] | None:
    """Least and most of Σ w_t·h_t with Σ p_t·h_t as published; None where rates in [0, 1] cannot give that."""
    p_low, p_medium, p_high = shares
    rest = rates["overall"] - p_high * rates["high_risk"]
    if not p_low or not p_medium:
        return None
    if "medium" in rates:
        mediums = [float(rates["medium"])] * 2
    else:
        mediums = [max(0.0, (rest - p_low) / p_medium), min(1.0, rest / p_medium)]
    lows = [(rest - p_medium * medium) / p_low for medium in mediums]
    if mediums[0] > mediums[1] or not all(-1e-9 <= low <= 1 + 1e-9 for low in lows):
        return None
    ends = [
        parts[0] * low + parts[1] * medium + parts[2] * rates["high_risk"]
        for low, medium in zip(lows, mediums, strict=True)
    ]
    return min(ends), max(ends)
