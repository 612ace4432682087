"""Safety where it counts: at low relevance, at high stakes, by category, and what is left under each action.

The paper's Section 5.3, point 3, and the limitations of its Section 6.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mdl_torch.analysis.accuracy import actions_of, share
from mdl_torch.analysis.complementarity import held, restricted
from mdl_torch.analysis.samples import FAVOURED
from mdl_torch.evaluation.scoring import Outcome
from mdl_torch.evaluation.statistics import paired_difference
from mdl_torch.evaluation.tables import Cell, Table
from mdl_torch.outputs import Action
from mdl_torch.risk import HIGH_RISK, reaches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from mdl_torch.analysis.complementarity import Restricted
    from mdl_torch.analysis.samples import Samples
    from mdl_torch.analysis.study import Study
    from mdl_torch.calibration import Calibration
    from mdl_torch.evaluation.results import Rate
    from mdl_torch.layer import MemoryDecisionLayer

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Actions = NDArray[np.int8]
    Record = Mapping[str, Any]

LOW_RELEVANCE = 0.4
"""Below it the paper's relevance is low."""

HIGH_RELEVANCE = 0.7
"""From it on the paper's relevance is high."""

ACTION_NAMES = {Action.ACTIVE: "Active", Action.SUPP: "Supp", Action.SILENT: "Silent", Action.OPT_OUT: "Opt-Out"}
"""Actions as the paper calls them."""

MEDICAL = ("health", "medical")
"""Topics that are taken to be the paper's medical domain."""


# ------------------------------------------------------------------------------------------------------ low relevance


class Flips(NamedTuple):
    """How a controller's actions differ from those of the same without M.

    Attributes:
        to_abstention: It abstains (Opt-Out) where the other adopts (Active).
        to_adoption: It adopts where the other abstains.
    """

    to_abstention: int
    to_adoption: int


def flips(full: ArrayLike, without: ArrayLike) -> Flips:
    """Records that M turns from Active to Opt-Out, and from Opt-Out to Active.

    Args:
        full: Actions with M, ``(n,)``.
        without: Actions without, ``(n,)``.

    Example:
        >>> flips([3, 3, 0, 2], [0, 3, 3, 0])
        Flips(to_abstention=1, to_adoption=1)
    """
    one, other = np.asarray(full), np.asarray(without)
    ends = [(Action.OPT_OUT, Action.ACTIVE), (Action.ACTIVE, Action.OPT_OUT)]
    return Flips(*(int(((one == now) & (other == before)).sum()) for now, before in ends))


def low_relevance_table(study: Study) -> Table:
    """Abstention with and without M, among records of low relevance and among the others."""
    title = "Abstention with and without relevance M (Section 5.3)"
    columns = (
        "records",
        "n",
        "questions",
        "Opt-Out, M+R+A",
        "Opt-Out, R+A",
        "difference",
        "M turns Active to Opt-Out",
        "M turns Opt-Out to Active",
        "Opt-Out in the run",
    )
    samples, layer = study.samples, study.layers.get("paper")
    calibration = None if layer is None else layer.calibration
    if layer is None or calibration is None or not calibration.signals or not len(samples):
        reason = "The run has no `paper` gate with a calibration that keeps its signals, or no labelled answers."
        return Table("low_relevance", title, columns, (), reason)
    ordinary = fmean(relevance for relevance, _, _ in calibration.signals)
    low = samples.signals[:, 0] < LOW_RELEVANCE
    full = actions_of(layer, samples.signals)
    without = actions_of(layer, held(samples.signals, (1, 2), (ordinary, 0.0, 0.0)))
    rows = [
        _abstentions(name, samples.where(mask), full[mask], without[mask])
        for name, mask in ((f"M < {LOW_RELEVANCE}", low), (f"M ≥ {LOW_RELEVANCE}", ~low))
    ]
    fitted = _fitted_anew(study, layer) if low.any() else None
    if fitted is not None:
        name = f"M < {LOW_RELEVANCE}, both fitted anew"
        rows.append(_abstentions(name, samples.where(low), *(actions[low] for actions in fitted)))
    paper: tuple[Cell, ...] = ("the paper, M < 0.4", 45, None, 0.4, 0.2, None, 9, None, None)
    note = _low_note(study, calibration, ordinary, int(low.sum()))
    if fitted is not None:
        note += f" {FITTED_NOTE}"
    return Table("low_relevance", title, columns, (*rows, paper), note)


FITTED_NOTE = (
    "“Both fitted anew”: range and thresholds of M+R+A and of R+A are each fitted on the calibration split, where R+A"
    " has M at its mean, too."
)


def _fitted_anew(study: Study, layer: MemoryDecisionLayer) -> tuple[Actions, Actions] | None:
    """Actions with and without M of layers fitted on the calibration split; None where it has no ordinary M."""
    if not len(study.split) or _condition(study) == "off_topic":
        return None
    with_m, without_m = (restricted(study.split, kept, layer) for kept in ((0, 1, 2), (1, 2)))
    if with_m is None or without_m is None:
        return None
    return _actions(with_m, study.samples.signals), _actions(without_m, study.samples.signals)


def _actions(controller: Restricted, signals: Floats) -> Actions:
    return actions_of(controller.layer, held(signals, controller.kept, controller.neutral))


def _condition(study: Study) -> str:
    return str(study.run.description["experiment"].get("condition", "paper"))


def _abstentions(name: str, samples: Samples, full: Actions, without: Actions) -> tuple[Cell, ...]:
    asked, n = samples.questions.tolist(), len(samples)
    if not n:
        return (name, 0, 0, *[None] * 6)
    one, other = full == Action.OPT_OUT, without == Action.OPT_OUT
    return (
        name,
        n,
        len(set(asked)),
        share(one, asked),
        share(other, asked),
        paired_difference(one, other, asked),
        *flips(full, without),
        share(samples.actions == Action.OPT_OUT, asked),
    )


def _low_note(study: Study, calibration: Calibration, ordinary: float, n: int) -> str:
    condition = _condition(study)
    note = (
        "Of the pooled answers of B1, B2 and B3. M+R+A: the run's calibrated gate. R+A: the same with M held at"
        f" {ordinary:.3f}, the mean of the {calibration.samples} retrievals that its calibration ({calibration.label})"
        " was fitted on; nothing is fitted anew. Actions are those of the equations; in the run, the gate also keeps"
        " memories out of which none is relevant."
    )
    if condition == "off_topic":
        note += " The stores are of the off_topic condition: about other questions, on purpose."
        if study.run.description["experiment"]["calibration"] == "fit":
            note += " So are those of the calibration, whose mean is no ordinary M: give it one of the paper condition."
        return note
    few = "no record has" if not n else f"only {n} records have" if n < 30 else f"{n} records have"
    return f"{note} In the {condition} condition {few} M < {LOW_RELEVANCE}; runs in the off_topic condition have more."


# -------------------------------------------------------------------------------------------------------- high stakes


def high_stakes_table(study: Study) -> Table:
    """Accuracy, abstention and hallucination at high risk and high relevance, and around it (Section 6)."""
    columns = ("records", "n", "questions", "decision accuracy", "Active", "Opt-Out", "hallucination B2", "B3")
    samples, topics = study.samples, topics_of(study.run.records)
    high = np.array([reaches(risk, HIGH_RISK) for risk in samples.signals[:, 2].tolist()], np.bool_)
    relevant = samples.signals[:, 0] >= HIGH_RELEVANCE
    of = [
        category or topics.get(asked, "") for category, asked in zip(samples.categories, samples.questions, strict=True)
    ]
    medical = np.array([topic.casefold() in MEDICAL for topic in of], np.bool_)
    regimes = (
        ("A ≥ 0.70, M ≥ 0.70", high & relevant),
        ("of these, medical", high & relevant & medical),
        ("A ≥ 0.70, M < 0.70", high & ~relevant),
        ("A < 0.70, M ≥ 0.70", ~high & relevant),
        ("A < 0.70, M < 0.70", ~high & ~relevant),
    )
    rows: list[tuple[Cell, ...]] = [_regime(name, samples.where(mask)) for name, mask in regimes]
    rows.insert(2, ("the paper, medical", 117, None, 0.556, None, None, None, None))
    note = (
        "Of the pooled answers of B1, B2 and B3. A decision is right if it is Active where the oracle of Section 5.3"
        " says adopt, and any other action where it says reject. Medical: of the category Health, or of risk by a"
        " keyword of health; the paper does not say how it chose. Empty outputs are left out. In brackets: 95%"
        f" intervals. {FAVOURED}"
    )
    if not len(samples):
        rows, note = [], "The run has no labelled answers of B1, B2 or B3."
    return Table("high_stakes", "High risk and high relevance (Section 6)", columns, tuple(rows), note)


def _regime(name: str, samples: Samples) -> tuple[Cell, ...]:
    asked = samples.questions.tolist()
    active = samples.actions == Action.ACTIVE
    of_system = [samples.of(system) for system in ("b2", "b3")]
    return (
        name,
        len(samples),
        len(set(asked)),
        share(active == samples.adopt, asked),
        share(active, asked),
        share(samples.actions == Action.OPT_OUT, asked),
        *(share(rows.hallucinated, rows.questions.tolist()) for rows in of_system),
    )


# --------------------------------------------------------------------------------------------------------- categories


def topics_of(records: Iterable[Record]) -> dict[str, str]:
    """The topic of each question: its category, or else what its risk was told from.

    Example:
        >>> decision = {"risk_rule": "keyword: health (doctor)"}
        >>> topics_of([{"question_id": "q", "category": None, "decision": decision}])
        {'q': 'health'}
    """
    return {
        record["question_id"]: record.get("category") or _told_from(str(record["decision"].get("risk_rule") or ""))
        for record in records
    }


def _told_from(rule: str) -> str:
    """``health`` of ``keyword: health (doctor)``."""
    return rule.partition(": ")[2].partition(" (")[0] or rule or "none"


def category_table(study: Study) -> Table:
    """Questions, risk, actions and rates of each category, the largest first."""
    columns = ("category", "questions", "answers", "A", *(ACTION_NAMES[action] for action in Action))
    columns = (*columns, "hallucination B1", "B2", "B3", "abstention B3")
    records = study.run.records
    topics = topics_of(records)
    gate = study.run.description["gates"].get("paper")
    decided = {record["question_id"]: record for record in records if record.get("gate") == gate}
    members: dict[str, list[str]] = {}
    for question, topic in topics.items():
        members.setdefault(topic, []).append(question)
    risks = {record["question_id"]: float(record["decision"]["risk"]) for record in records}
    answers = {system: study.run.of(system) for system in ("b1", "b2", "b3")}
    rows: list[tuple[Cell, ...]] = []
    for topic, asked in sorted(members.items(), key=lambda item: (-len(item[1]), item[0])):
        inside = set(asked)
        of = [[record for record in found if record["question_id"] in inside] for found in answers.values()]
        actions = [decided[question]["decision"]["action"] for question in asked if question in decided]
        rows.append(
            (
                topic,
                len(asked),
                sum(record["outcome"] is not None for found in of for record in found),
                fmean(risks[question] for question in asked),
                *(actions.count(action.label) / len(actions) if actions else None for action in Action),
                *(_outcomes(found, Outcome.HALLUCINATION) for found in of),
                _outcomes(of[-1], Outcome.ABSTENTION),
            )
        )
    note = (
        "Answers: scored ones of B1, B2 and B3. A: mean risk of the questions. Actions: shares of the questions, of the"
        " `paper` gate. Rates are over scored answers, empty outputs included; in brackets 95% intervals, over"
        " questions where they have several answers: with few questions they say little. Where the data set has no"
        " categories, these are what the risk was told from."
    )
    return Table("categories", "Safety by category", columns, tuple(rows), note)


# ----------------------------------------------------------------------------------------------------------- residual


def residual_table(study: Study) -> Table:
    """Hallucinations left under each action of B3, and those of B1 and B2 on the same questions (Section 6)."""
    title = "Residual hallucination under each action of B3 (Section 6)"
    columns = ("action", "answers", "share", "hallucination B3", "B1 there", "B2 there", "the paper")
    scored = {system: _scored(study.run.of(system)) for system in ("b1", "b2", "b3")}
    own = scored["b3"]
    if not own:
        return Table("residual", title, columns, (), "The run has no answers of B3.")
    rows: list[tuple[Cell, ...]] = []
    for action in (*Action, None):
        slots = [slot for slot, r in own.items() if action is None or r["decision"]["action"] == action.label]
        chosen = set(slots)
        taken = share([slot in chosen for slot in own], [question for question, _ in own])
        found = [[scored[name][slot] for slot in slots if slot in scored[name]] for name in ("b3", "b1", "b2")]
        rates = [_outcomes(group, Outcome.HALLUCINATION) for group in found]
        paper = 0.08 if action is Action.ACTIVE else None
        rows.append(("all" if action is None else ACTION_NAMES[action], len(slots), taken, *rates, paper))
    note = (
        "Answers of B3 by the action its gate took; beside them those of B1 and B2 to the same questions at the same"
        " seeds. Under Active B3 has B2's prompt, under Silent B1's; Opt-Out says nothing that could be false. Rates"
        " are over scored answers, empty outputs included; in brackets 95% intervals."
    )
    return Table("residual", title, columns, tuple(rows), note)


def _scored(records: Sequence[Record]) -> dict[tuple[str, int], Record]:
    return {(r["question_id"], r["seed"]): r for r in records if r["outcome"] is not None}


def _outcomes(records: Sequence[Record], outcome: Outcome) -> Rate:
    """Share of one outcome among scored answers."""
    scored = [record for record in records if record["outcome"] is not None]
    return share([record["outcome"] == outcome for record in scored], [record["question_id"] for record in scored])
