"""The case study (Fig. 6): what B1, B2 and B3 said, word for word, each with the audit card of B3's decision.

Cases are picked by what they show and by the order of the run, never by how they read: residual failures first, then
by turns with successes. References and memories may hold anything, and are shown as text whatever they hold.
"""

from __future__ import annotations

import html as web
import math
import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mdl_torch.audit import audit
from mdl_torch.config import CHANNELS
from mdl_torch.evaluation.oracle import injects
from mdl_torch.evaluation.questions import load_questions
from mdl_torch.evaluation.scoring import Outcome
from mdl_torch.outputs import INVALID, Action
from mdl_torch.records import REASONS
from mdl_torch.risk import tier

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from mdl_torch.analysis.study import Study
    from mdl_torch.evaluation.questions import Question

    Record = Mapping[str, Any]
    Slot = tuple[str, int]

SYSTEMS = ("b1", "b2", "b3")
"""Whose answers stand side by side."""

HEADINGS = {"b1": "B1, without memories", "b2": "B2, with all memories", "b3": "B3, the memory decision layer"}
"""The systems in words."""


class Kind(StrEnum):
    """What a case shows, in the order in which kinds take turns.

    Example:
        >>> [kind.label for kind in Kind if kind.success]
        ['safe abstention', 'safe adoption', 'memories withheld']
    """

    RESIDUAL_FAILURE = "residual failure"
    """B3 injects the memories, under Active or Supp, and hallucinates."""
    SAFE_ABSTENTION = "safe abstention"
    """B2 hallucinates and B3 abstains."""
    OVER_ABSTENTION = "over-abstention"
    """B3 is Opt-Out though B1 or B2 answers correctly and B2 does not hallucinate."""
    SAFE_ADOPTION = "safe adoption"
    """B3 injects the memories and is correct."""
    WITHHELD = "memories withheld"
    """B2 hallucinates, and B3, Silent, answers without the memories and does not."""
    OTHER = "none of the kinds"
    """Anything else; such a case is shown only where it is asked for."""

    @property
    def label(self) -> str:
        """In words."""
        return self.value

    @property
    def success(self) -> bool:
        """Whether B3 did well."""
        return self in (Kind.SAFE_ABSTENTION, Kind.SAFE_ADOPTION, Kind.WITHHELD)

    @property
    def verdict(self) -> str:
        """Label and verdict."""
        if self is Kind.OTHER:
            return self.label
        return f"{'success' if self.success else 'failure'}: {self.label}"


def kind_of(b1: Outcome | None, b2: Outcome | None, b3: Outcome | None, action: Action) -> Kind:
    """What three answers to a question show.

    Args:
        b1: Outcome of B1; None where it was not scored.
        b2: Of B2.
        b3: Of B3.
        action: Of B3's gate.

    Example:
        >>> kind_of(Outcome.CORRECT, Outcome.HALLUCINATION, Outcome.ABSTENTION, Action.OPT_OUT).label
        'safe abstention'
    """
    injected, misled = injects(action), b2 is Outcome.HALLUCINATION
    if injected and b3 is Outcome.HALLUCINATION:
        return Kind.RESIDUAL_FAILURE
    if misled and b3 is Outcome.ABSTENTION:
        return Kind.SAFE_ABSTENTION
    if action is Action.OPT_OUT and not misled and Outcome.CORRECT in (b1, b2):
        return Kind.OVER_ABSTENTION
    if injected and b3 is Outcome.CORRECT:
        return Kind.SAFE_ADOPTION
    if misled and action is Action.SILENT and b3 in (Outcome.CORRECT, Outcome.OTHER):
        return Kind.WITHHELD
    return Kind.OTHER


@dataclass(frozen=True)
class Answer:
    """What a system said, word for word, and what became of it; the outcome is None where it was not scored."""

    system: str
    text: str
    outcome: Outcome | None


@dataclass(frozen=True)
class Case:
    """A question with the answers of three systems and B3's decision.

    Attributes:
        kind: What it shows.
        question_id: Of the data set.
        seed: Of the answers.
        question: The question.
        category: Of the data set, if it has one.
        correct: Reference answers; None where the data set could not be read.
        incorrect: Reference misconceptions; None likewise.
        memories: Id and text of each, in the order of the store.
        answers: Of B1, B2 and B3.
        action: Of B3's gate.
        relevance: M.
        reliability: R.
        risk: A.
        risk_rule: Where A came from.
        agreement: s̄_rel, if it was measured.
        conflict_rate: φ, if it was measured.
        conflict_count: Pairs of relevant memories in conflict.
        gain: g_A.
        norm: ‖v_meta‖.
        confidence: C.
        consistency: α.
        gated_confidence: C_final.
        thresholds: θ0, θ1 and θ2.
        reasons: Keys of ``REASONS``.
        shares: Share of each channel in the fused signal; None where the run's layer is not at hand.
        changes: The smallest change of M, R or A alone that carries C_final across the nearest threshold; None where
            none does, or the layer is not at hand.
        preset: Of the gate; ``unknown`` if the record does not say.
        calibration: Likewise.
    """

    kind: Kind
    question_id: str
    seed: int
    question: str
    category: str | None
    correct: tuple[str, ...] | None
    incorrect: tuple[str, ...] | None
    memories: tuple[tuple[str, str], ...]
    answers: tuple[Answer, ...]
    action: Action
    relevance: float
    reliability: float
    risk: float
    risk_rule: str
    agreement: float | None
    conflict_rate: float | None
    conflict_count: int
    gain: float
    norm: float
    confidence: float
    consistency: float
    gated_confidence: float
    thresholds: tuple[float, float, float]
    reasons: tuple[str, ...]
    shares: dict[str, float] | None = None
    changes: dict[str, float | None] | None = None
    preset: str = "unknown"
    calibration: str = "unknown"


@dataclass(frozen=True)
class CaseStudy:
    """Cases, and what is to be known of them: how they were picked, how frequent such cases are, what is missing."""

    cases: tuple[Case, ...]
    note: str

    def __iter__(self) -> Iterator[Case]:
        """The cases, in their order."""
        return iter(self.cases)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.cases)


def pick(study: Study, count: int = 6, chosen: Sequence[str] | None = None) -> CaseStudy:
    """Cases of a run: those of some questions, or picked ones.

    Picked are failures and successes by turns, a question once. Within a kind it is a case of the risk that was shown
    least so far, the highest of equals, and of those the first in the order of the run, which its split drew at
    random. So the same run gives the same cases, and nobody chose them for how they read.

    Args:
        study: The run.
        count: Cases to pick, at least 1; fewer if there are fewer.
        chosen: Ids of questions instead, each shown at the first seed that all three systems answered.

    Raises:
        ValueError: ``count`` is less than 1, or ``chosen`` is empty, names a question that was not evaluated, or one
            that not all three systems have answered; they are named.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    slots = _slots(study)
    kinds = {slot: _kind(answers) for slot, answers in slots.items()}
    picked = _spread(slots, kinds, count) if chosen is None else _asked(study, slots, chosen)
    questions, unread = _questions(study) if picked else ({}, "")
    cases = tuple(_case(study, slot, slots[slot], kinds[slot], questions.get(slot[0])) for slot in picked)
    return CaseStudy(cases, _note(kinds, cases, unread, by_hand=chosen is not None))


def _slots(study: Study) -> dict[Slot, dict[str, Record]]:
    """The questions and seeds that all three systems answered, in the order of the run."""
    found: dict[Slot, dict[str, Record]] = {}
    for record in study.run.records:
        if record["system"] in SYSTEMS:
            found.setdefault((record["question_id"], record["seed"]), {})[record["system"]] = record
    places = {question: place for place, question in enumerate(study.run.questions)}
    whole = [slot for slot, answers in found.items() if len(answers) == len(SYSTEMS) and slot[0] in places]
    return {slot: found[slot] for slot in sorted(whole, key=lambda slot: (places[slot[0]], slot[1]))}


def _kind(answers: Mapping[str, Record]) -> Kind:
    b1, b2, b3 = (_outcome(answers[name]) for name in SYSTEMS)
    return kind_of(b1, b2, b3, _action(answers["b3"]))


def _outcome(record: Record) -> Outcome | None:
    return None if record["outcome"] is None else Outcome(record["outcome"])


def _action(record: Record) -> Action:
    return Action[record["decision"]["action"].upper()]


def _spread(slots: Mapping[Slot, Mapping[str, Record]], kinds: Mapping[Slot, Kind], count: int) -> list[Slot]:
    """By turns of each kind, and of each the risk that was shown least so far, the highest of equals."""
    picked: list[Slot] = []
    shown: Counter[float] = Counter()
    asked: set[str] = set()

    def risk(slot: Slot) -> float:
        return round(float(slots[slot]["b3"]["decision"]["risk"]), 2)

    turns = [kind for kind in Kind if kind is not Kind.OTHER]
    while turns and len(picked) < count:
        kind = turns.pop(0)
        left = [slot for slot, own in kinds.items() if own is kind and slot[0] not in asked]
        if left:
            best = min(left, key=lambda slot: (shown[risk(slot)], -risk(slot)))  # the first of equals
            picked.append(best)
            shown[risk(best)] += 1
            asked.add(best[0])
            turns.append(kind)
    return picked


def _asked(study: Study, slots: Mapping[Slot, object], chosen: Sequence[str]) -> list[Slot]:
    """The first whole slot of each question that was asked for."""
    if isinstance(chosen, str) or not chosen:
        raise ValueError(f"chosen must be ids of questions, got {chosen!r}")
    ids = list(dict.fromkeys(chosen))
    if unknown := [one for one in ids if one not in study.run.questions]:
        known = study.run.questions[0] if study.run.questions else "none"
        raise ValueError(
            f"cases must be ids of evaluated questions of the run, such as {known!r} (question_id in answers.jsonl), "
            f"got {', '.join(map(repr, unknown))}"
        )
    first: dict[str, Slot] = {}
    for slot in slots:
        first.setdefault(slot[0], slot)
    if missing := [one for one in ids if one not in first]:
        names = ", ".join(map(repr, missing))
        raise ValueError(f"chosen must be questions that B1, B2 and B3 have answered at one seed, got {names}")
    return [first[one] for one in ids]


def _questions(study: Study) -> tuple[dict[str, Question], str]:
    """The questions by id; none, and why, if the data set of the run is not to be had any more."""
    try:
        data = load_questions(study.run.description["experiment"]["data"])
    except (OSError, ValueError):
        return {}, "The run's data set could not be read, so the reference answers are left out."
    if data.revision != study.run.description.get("revision"):
        return {}, "The data set has changed since the run, so the reference answers are left out."
    return {question.id: question for question in data.questions}, ""


def _case(study: Study, slot: Slot, answers: Mapping[str, Record], kind: Kind, question: Question | None) -> Case:
    own, decision = answers["b3"], answers["b3"]["decision"]
    shares, changes = _audited(study, decision)
    gate = own["gate"] if isinstance(own.get("gate"), dict) else {}
    return Case(
        kind=kind,
        question_id=slot[0],
        seed=slot[1],
        question=own["question"],
        category=own.get("category"),
        correct=None if question is None else question.correct,
        incorrect=None if question is None else question.incorrect,
        memories=tuple((str(memory["id"]), memory["text"]) for memory in own["memories"]),
        answers=tuple(Answer(name, answers[name]["answer"], _outcome(answers[name])) for name in SYSTEMS),
        action=_action(own),
        **{name: decision[name] for name in _OF_DECISION},
        thresholds=tuple(decision["thresholds"]),
        reasons=tuple(decision["reasons"]),
        shares=shares,
        changes=changes,
        preset=gate.get("preset", "unknown"),
        calibration=gate.get("calibration", "unknown"),
    )


_OF_DECISION = ("relevance", "reliability", "risk", "risk_rule", "agreement", "conflict_rate", "conflict_count", "gain",
                "norm", "confidence", "consistency", "gated_confidence")  # fmt: skip
"""What a case takes from the record of a decision as it is there."""


def _audited(study: Study, decision: Record) -> tuple[dict[str, float] | None, dict[str, float | None] | None]:
    """What the controller weighed, and the way to the next action: not in the record, so told again from its layer."""
    layer = study.layers.get("paper")
    if layer is None or decision.get("status", 0) & INVALID:
        return None, None
    signals = [torch.tensor(decision[name], dtype=torch.float64) for name in CHANNELS]
    account = audit(layer, *signals)
    shares = dict(zip(CHANNELS, account.contribution.tolist(), strict=True))
    changes = zip(CHANNELS, account.change.tolist(), strict=True)
    return shares, {name: change if math.isfinite(change) else None for name, change in changes}


def _note(kinds: Mapping[Slot, Kind], cases: Sequence[Case], unread: str, *, by_hand: bool) -> str:
    if not kinds:
        return "No question has answers of B1, B2 and B3 at one seed, so there is no case."
    counts = Counter(kinds.values())
    found = ", ".join(f"{kind.label} {counts[kind]}" for kind in Kind if counts[kind])
    missing = [kind.label for kind in Kind if not counts[kind] and kind is not Kind.OTHER]
    how = (
        "The questions were asked for by name."
        if by_hand
        else "Kinds take turns, failures with successes; within one it is the first in the order of the run of the "
        "risk that was shown least so far."
    )
    parts = [f"{len(cases)} of {len(kinds)} answered questions and seeds. {how}", f"In the whole run: {found}."]
    parts += [f"The run has none of: {', '.join(missing)}."] if missing else []
    parts += [unread] if unread else []
    parts += [_CARD_NOTE]
    return " ".join(parts)


_CARD_NOTE = (
    "The cards show what an answer's record keeps of its decision; the shares of the channels and the way to the next "
    "action are computed again from the signals and the run's layer. Which memories counted as relevant, and which "
    "words conflicted, is not kept."
)


# ------------------------------------------------------------------------------------------------------- the audit card

_DOES = {
    Action.ACTIVE: "the memories go into the prompt",
    Action.SUPP: "the memories go into the prompt as background only",
    Action.SILENT: "the memories are left out; the model answers from what it knows",
    Action.OPT_OUT: "the system abstains, it gives no answer",
}


def card(case: Case) -> list[tuple[str, str]]:
    """The audit card: what it says of, and what it says, in words."""
    first, second, third = case.thresholds
    by_equations = Action(sum(case.gated_confidence < theta for theta in case.thresholds))
    held = "" if by_equations is case.action else f"; by the thresholds alone it would be {by_equations.label}"
    conflicts = f"{case.conflict_count} pairs of relevant memories"
    rate = "" if case.conflict_rate is None else f", φ = {case.conflict_rate:.3f}"
    agreement = "" if case.agreement is None else f"; agreement of the relevant memories {case.agreement:.3f}"
    rows = [
        ("Action", f"{case.action.label.upper()}: {_DOES[case.action]}{held}"),
        ("Relevance M", f"{case.relevance:.3f}"),
        ("Reliability R", f"{case.reliability:.3f}{agreement}"),
        ("Risk A", f"{case.risk:.3f}, {tier(case.risk)} tier; from {case.risk_rule}"),
        ("Conflicts", conflicts + rate),
        ("Confidence C", f"{case.confidence:.3f}, of ‖v_meta‖ = {case.norm:.3f} with gain {case.gain:.3f}"),
        ("Consistency α", f"{case.consistency:.3f}"),
        ("C_final", f"{case.gated_confidence:.3f}"),
        ("Thresholds", f"active from {first:.2f}, supp from {second:.2f}, silent from {third:.2f}, else opt_out"),
    ]
    if case.changes is not None:
        rows.append(("Next action", _next_action(case)))
    if case.shares is not None:
        rows.append(("Weighed", ", ".join(f"{name} {share:.1%}" for name, share in case.shares.items())))
    rows.append(("Reasons", "; ".join(f"{REASONS.get(name, name)} [{name}]" for name in case.reasons) or "none"))
    rows.append(("Gate", f"preset {case.preset}, calibration {case.calibration}"))
    return rows


def _next_action(case: Case) -> str:
    """Which change of one signal alone would cross the nearest threshold."""
    assert case.changes is not None
    nearest = min(range(3), key=lambda place: abs(case.gated_confidence - case.thresholds[place]))
    above = case.gated_confidence >= case.thresholds[nearest]
    across = Action(nearest + 1 if above else nearest)
    ways = [f"{name} {value:+.3f}" for name, value in case.changes.items() if value is not None]
    if not ways:
        return f"no change of one signal alone would bring {across.label}"
    return f"{across.label}, by {' or '.join(ways)} alone"


# ---------------------------------------------------------------------------------------------------------- as Markdown


def markdown(study: CaseStudy) -> str:
    """The cases as Markdown: what was said stands in fenced blocks, word for word, and means nothing but itself."""
    lines = ["# Case study", "", _inline(study.note), ""]
    for number, case in enumerate(study.cases, 1):
        lines += [f"## Case {number}: {case.kind.verdict}", ""]
        lines += [f"Question {_inline(case.question_id)}, seed {case.seed}{_inline(_category(case))}", ""]
        lines += [*_fenced(case.question), ""]
        for answer in case.answers:
            lines += [f"### {HEADINGS[answer.system]}: {_said(answer.outcome)}", "", *_fenced(answer.text), ""]
        lines += ["### Audit card", "", "| | |", "| --- | --- |"]
        lines += [f"| {_inline(name)} | {_inline(said)} |" for name, said in card(case)]
        lines += ["", f"### Memories ({len(case.memories)})", ""]
        for name, text in case.memories:
            lines += [_inline(name) or "without id", "", *_fenced(text), ""]
        for heading, references in _references(case):
            lines += [f"### {heading}", ""]
            for text in references:
                lines += [*_fenced(text), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _said(outcome: Outcome | None) -> str:
    return "not scored" if outcome is None else outcome.label


def _category(case: Case) -> str:
    return f", category {case.category}" if case.category else ""


def _references(case: Case) -> list[tuple[str, tuple[str, ...]]]:
    given = (("Correct references", case.correct), ("Incorrect references", case.incorrect))
    return [(heading, texts) for heading, texts in given if texts]


def _plain(text: str) -> str:
    """Text that can be written and read: line ends as one, no control characters and no lone surrogates."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "�", lines)


def _inline(text: str) -> str:
    """On one line, with all that Markdown or HTML would act on made harmless."""
    flat = " ".join(_plain(text).split())
    escaped = re.sub(r"([\\`*_{}\[\]()#+\-!|~$^])", r"\\\1", flat)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _fenced(text: str) -> list[str]:
    """A block of text whose fence is longer than any run of backticks in it."""
    plain = _plain(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", plain)), default=0))
    return [f"{fence}text", plain, fence]


# -------------------------------------------------------------------------------------------------------------- as HTML


def html(study: CaseStudy) -> str:
    """The cases as one page that needs nothing else: no script, no font, no picture, and no colour to be read."""
    articles = "\n".join(_article(number, case) for number, case in enumerate(study.cases, 1))
    return _PAGE.format(style=_STYLE, note=_web(study.note), articles=articles)


def _article(number: int, case: Case) -> str:
    parts = [
        f'<article class="{"success" if case.kind.success else "failure"}">',
        f"<h2>Case {number}: {_web(case.kind.verdict)}</h2>",
        f"<p>Question <bdi>{_web(case.question_id)}</bdi>, seed {case.seed}<bdi>{_web(_category(case))}</bdi></p>",
        _quoted(case.question, "question"),
    ]
    for answer in case.answers:
        parts += [
            f"<section><h3>{HEADINGS[answer.system]}: {_web(_said(answer.outcome))}</h3>",
            _quoted(answer.text),
            "</section>",
        ]
    parts += ["<section><h3>Audit card</h3><table>"]
    parts += [
        f'<tr><th scope="row">{_web(name)}</th><td dir="auto">{_web(said)}</td></tr>' for name, said in card(case)
    ]
    parts += ["</table></section>", f"<section><h3>Memories ({len(case.memories)})</h3><dl>"]
    parts += [
        f"<dt><bdi>{_web(name) or 'without id'}</bdi></dt><dd>{_quoted(text)}</dd>" for name, text in case.memories
    ]
    parts += ["</dl></section>"]
    for heading, references in _references(case):
        items = "".join(f"<li>{_quoted(text)}</li>" for text in references)
        parts += [f"<section><h3>{heading}</h3><ul>{items}</ul></section>"]
    return "\n".join([*parts, "</article>"])


def _quoted(text: str, name: str = "said") -> str:
    return f'<div class="{name}" dir="auto">{_web(text)}</div>'


def _web(text: str) -> str:
    return web.escape(_plain(text))


_STYLE = """
body { font: 11pt/1.45 serif; max-width: 46em; margin: 2em auto; padding: 0 1em; color: #000; background: #fff; }
h1, h2, h3, th, dt { font-family: sans-serif; line-height: 1.2; }
h2 { font-size: 1.2em; margin: 0 0 .5em; break-after: avoid; }
h3 { font-size: 1em; margin: 1em 0 .3em; break-after: avoid; }
article { border: 1px solid #000; border-left-width: 6px; padding: 1em; margin: 2em 0; }
article.failure { border-style: dashed; border-left-style: double; }
.said, .question { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext; }
.said { border-left: 1px solid #555; padding-left: .7em; }
.question { font-size: 1.15em; font-weight: bold; }
table { border-collapse: collapse; width: 100%; }
th, td { border-top: 1px solid #999; padding: .2em .5em .2em 0; text-align: start; vertical-align: top;
  overflow-wrap: anywhere; }
th { white-space: nowrap; font-weight: normal; width: 9em; }
dt { font-size: .85em; margin-top: .5em; overflow-wrap: anywhere; }
dd { margin: 0; }
ul { list-style: none; padding: 0; }
li { margin: .3em 0; }
@media print { body { max-width: none; margin: 0; font-size: 10pt; } section, tr, dd, li { break-inside: avoid; } }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Case study</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>Case study</h1>
<p>{note}</p>
{articles}
</main>
</body>
</html>
"""


def write_cases(study: CaseStudy, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``cases.md`` and ``cases.html``.

    Raises:
        OSError: They cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in write_cases(CaseStudy((), "There is no case."), folder)]
        ['cases.md', 'cases.html']
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = []
    for name, text in (("cases.md", markdown(study)), ("cases.html", html(study))):
        files.append(target / name)
        files[-1].write_text(text, "utf-8")
    return files
