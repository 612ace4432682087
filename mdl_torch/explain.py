"""Decisions for the eye: the audit card of one, a table of many, the summary of a run, and a verification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mdl_torch.config import CHANNELS
from mdl_torch.outputs import INVALID, Action
from mdl_torch.records import REASONS, DecisionRecord
from mdl_torch.risk import tier

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from mdl_torch.calibration import Calibration
    from mdl_torch.retrieval import Retrieval
    from mdl_torch.stability import ActionStability
    from mdl_torch.verify import Verification

IN_WORDS: dict[Action, str] = {
    Action.ACTIVE: "ACTIVE: the memories go into the prompt.",
    Action.SUPP: "SUPP: the memories go into the prompt as background only.",
    Action.SILENT: "SILENT: the memories are left out; the model answers from what it knows.",
    Action.OPT_OUT: "OPT-OUT: the system abstains, it gives no answer.",
}
"""What each action means for the answer."""

MARGINAL = 0.05
"""Nearer to a threshold than this, a card says that the decision is marginal."""

MOST_SHOWN = 12
"""Memories and conflicts that a card lists; it counts the rest."""

QUERY_SHOWN = 48
"""Characters of a query in a table."""

TEXT_SHOWN = 160
"""Characters of a memory's text on a card."""


def card(
    record: DecisionRecord, source: Retrieval | None = None, *, stability: ActionStability | None = None
) -> RenderableType:
    """The audit card of a decision, for a reader who has to answer for it. It needs no colour and little width.

    Args:
        record: The decision.
        source: The retrieval it was made from, to show the texts, which a decision does not hold.
        stability: What controllers of other seeds would have done; see ``stability_of``.

    Example:
        >>> from rich.console import Console
        >>> from mdl_torch import MemoryGate
        >>> record = MemoryGate().decide("What is tea?", ["Tea is a drink."], risk=0.2)
        >>> with (console := Console(width=80)).capture() as shown:
        ...     console.print(card(record))
        >>> "ACTIVE: the memories go into the prompt." in shown.get()
        True
    """
    parts: list[RenderableType] = [
        Panel(_text(IN_WORDS[record.action]), title=_text(f"decision {record.id}"), title_align="left", box=box.SQUARE)
    ]
    if source is not None and source.query:
        parts.append(_text(f"Query: {_shortened(source.query, 4 * TEXT_SHOWN)}"))
    parts += [_section("Why"), _lines(_reasons(record))]
    parts += [_section("The three signals"), _signals(record)]
    parts += [_section("From signals to action"), _lines(_steps(record)), ThresholdBar(record)]
    if record.audit is not None:
        parts += [_section("How near another action is"), _lines(_boundary(record))]
    if stability is not None:
        parts += [_section("How much hangs on the random basis"), _lines(_seeds(record, stability))]
    if record.audit is not None:
        parts += [_section("What the controller weighed"), _weights(record)]
    parts += [_section(f"Memories ({len(record.memories)})"), _memories(record, source)]
    if record.conflict_count:
        parts += [_section(f"Conflicts ({record.conflict_count})"), _lines(_conflicts(record))]
    parts += [_section("Provenance"), _provenance(record)]
    return Group(*parts)


class ThresholdBar:
    """Where C_final stands among the thresholds, drawn in characters.

    Args:
        record: The decision.
    """

    def __init__(self, record: DecisionRecord) -> None:
        self.record = record

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Four lines, as wide as the console allows, up to 72 columns."""
        width = max(16, min(72, options.max_width - 8))
        value = self.record.gated_confidence
        edges = [round(theta * width) for theta in reversed(self.record.thresholds)]
        actual = sum(value >= theta for theta in self.record.thresholds)
        zones, place = [], 0
        for zone, (action, start, end) in enumerate(zip(reversed(Action), [0, *edges], [*edges, width], strict=True)):
            room = max(0, end - start - 1)
            zones.append("|"[: end - start] + action.label[:room].center(room, "-"))
            if zone == actual:  # rounding must not draw it across a threshold
                place = max(start, min(end - 1, int(value * width)))
        scale = [" "] * (width + 6)
        for theta, edge in zip(reversed(self.record.thresholds), edges, strict=True):
            scale[edge : edge + 4] = f"{theta:.2f}"
        label = f"C_final {value:.3f}"
        beneath = " " * max(0, min(place, width - len(label))) + label
        for line in ("".join(zones) + "|", "".join(scale).rstrip(), " " * place + "^", beneath):
            yield Text(" " + line, no_wrap=True, overflow="crop")


def decision_table(rows: Iterable[tuple[str, str, DecisionRecord | Exception]]) -> RenderableType:
    """Decisions, one a row.

    Args:
        rows: Id, query, and the decision or what was wrong with the line.

    Example:
        >>> from rich.console import Console
        >>> with (console := Console(width=80)).capture() as shown:
        ...     console.print(decision_table([("7", "What is tea?", ValueError("risk must be in [0, 1], got 2"))]))
        >>> "error" in shown.get()
        True
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("id", overflow="fold", min_width=6, max_width=16)
    table.add_column("query", overflow="fold", min_width=12)
    table.add_column("action", no_wrap=True, min_width=7)
    for name in ("M", "R", "A", "C", "α"):
        table.add_column(name, justify="right", no_wrap=True, min_width=4)
    table.add_column("C_final", justify="right", no_wrap=True, min_width=7)
    table.add_column("reasons", overflow="fold", min_width=14, max_width=32)
    for id, query, outcome in rows:
        if isinstance(outcome, DecisionRecord):
            signals = (outcome.relevance, outcome.reliability, outcome.risk)
            trust = (outcome.confidence, outcome.consistency, outcome.gated_confidence)
            numbers = [f"{value:.2f}" for value in (*signals, *trust)]
            cells = [_shortened(query, QUERY_SHOWN), outcome.action.label, *numbers, ", ".join(outcome.reasons)]
        else:
            cells = [_shortened(str(outcome), TEXT_SHOWN), "error", *[""] * 7]
        table.add_row(*map(_text, (_shortened(id, TEXT_SHOWN), *cells)))
    return table


def summary_table(summary: Mapping[str, Any]) -> RenderableType:
    """What a run did: lines, actions, reasons, and the first bad lines.

    Args:
        summary: ``Summary.to_dict()`` of a run of ``score``.
    """
    table = _grid()
    seconds = summary["seconds"]
    rate = f", {summary['lines'] / seconds:,.0f} a second" if seconds > 0 else ""
    table.add_row("lines", f"{summary['lines']:,} in {seconds:.1f} s{rate}")
    for action, count in summary["actions"].items():
        table.add_row(action, f"{count:,} ({count / max(1, summary['decisions']):.0%})")
    for action, (share, low, high) in summary["drift"].items():
        seen = f"{low:.0%} to {high:.0%}" if high - low > 0.005 else f"{low:.1%}"
        table.add_row("drift", f"{action} is {share:.0%} here, {seen} where the calibration was fitted")
    for reason, count in summary["reasons"].items():
        table.add_row(reason, f"{count:,}  {REASONS.get(reason, '')}")
    if summary["errors"]:
        table.add_row("bad lines", f"{summary['errors']:,}")
        for line in summary["first_errors"]:
            table.add_row("", _text(f"line {line['line']}: {_shortened(line['error'], TEXT_SHOWN)}"))
    return table


def calibration_table(calibration: Calibration) -> RenderableType:
    """A calibration: what was fitted, on what, and how much hangs on the draw of its questions.

    Example:
        >>> from rich.console import Console
        >>> from mdl_torch.calibration import Calibration
        >>> with (console := Console(width=100)).capture() as shown:
        ...     console.print(calibration_table(Calibration.reference()))
        >>> "2.2309673 .. 3.138886 (minmax)" in shown.get()
        True
    """
    table = _grid()
    span = calibration.norm_range
    ranged = "the exact range" if span is None else f"{span[0]:.8g} .. {span[1]:.8g} ({calibration.range_method})"
    table.add_row("calibration", _text(calibration.label))
    table.add_row("‖v_meta‖", ranged)
    table.add_row(
        "thresholds", _text(f"{', '.join(f'{t:g}' for t in calibration.thresholds)} ({calibration.threshold_method})")
    )
    table.add_row("fitted on", _text(f"{calibration.samples} questions of {calibration.dataset}"))
    for action, (share, low, high) in calibration.action_mix.items():
        table.add_row(f"  {action}", f"{share:.0%} of them, {low:.0%} to {high:.0%} over resamples")
    for name in ("agreement with the oracle", "share of adopt", "actions reachable"):
        if name in calibration.provenance:
            table.add_row(name, _text(_value(_reachable(calibration.provenance[name]))))
    return table


def _reachable(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    missing = [name for name, taken in value.items() if not taken]
    return f"all but {', '.join(missing)}" if missing else "all four"


def verification_table(verification: Verification, *, all_checks: bool = True) -> RenderableType:
    """The outcome of a verification in words, and its checks with what is stored and what comes out.

    Args:
        verification: What to show.
        all_checks: Whether to list the checks that passed, too.
    """
    counts = f"{len(verification.checks)} checks, {len(verification.differing)} differ"
    headline = {
        "verified": f"VERIFIED: {_FOUND[verification.scope]} ({counts}).",
        "differs": f"DIFFERS: the stored decision does not come out ({counts}).",
        "not_verifiable": f"CANNOT BE VERIFIED with this gate; what the line alone can show is consistent ({counts}).",
    }[verification.outcome]
    parts: list[RenderableType] = [_text(f"{verification.id}: {headline}")]
    parts += [_text(f"  {obstacle}") for obstacle in verification.obstacles]
    shown = verification.checks if all_checks else verification.differing
    if shown:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("field", "stored", "recomputed", "follows from"):
            table.add_column(name, overflow="fold")
        table.add_column("", no_wrap=True)
        for check in shown:
            cells = (check.field, _value(check.stored), _value(check.recomputed), check.rule, _MARKS[check.agreement])
            table.add_row(*map(_text, cells))
        parts.append(table)
    return Group(*parts)


_FOUND = {
    "line": "consistent in itself; the texts were not checked (give --source)",
    "line_and_source": "comes out again from its texts",
}
"""What a verification found if nothing differs, by its scope."""

_MARKS = {"same": "ok", "boundary": "on the boundary", "differs": "DIFFERS"}


def _reasons(record: DecisionRecord) -> Iterator[str]:
    nearest = record.audit.boundary.nearest if record.audit is not None else None
    yield f"- C_final is {record.gated_confidence:.3f}, which the thresholds call {_by_thresholds(record)}."
    for reason in record.reasons:
        yield f"- {REASONS.get(reason, reason)} [{reason}]"
    if nearest is not None and abs(nearest.distance) < MARGINAL:
        yield f"- The decision is marginal: a threshold is {abs(nearest.distance):.3f} away."


def _by_thresholds(record: DecisionRecord) -> str:
    """The action by the thresholds alone, without the gate's guard."""
    by_equations = Action(sum(record.gated_confidence < theta for theta in record.thresholds))
    held = "" if by_equations == record.action else f" (a rule of the gate made it {record.action.label})"
    return by_equations.label + held


def _signals(record: DecisionRecord) -> RenderableType:
    rows = [
        ("relevance", "M", record.relevance, _relevance_from(record)),
        ("reliability", "R", record.reliability, _reliability_from(record)),
        ("risk", "A", record.risk, f"{tier(record.risk)} tier; from {record.risk_rule}"),
    ]
    table = _grid(3)
    for name, symbol, value, made_of in rows:
        table.add_row(f"{name} {symbol}", f"{value:.3f}", _text(made_of))
    return table


def _relevance_from(record: DecisionRecord) -> str:
    known = [memory for memory in record.memories if memory.similarity is not None]
    if not known:
        return "given with the line" if record.agreement is None else "no memory"
    best = max(known, key=lambda memory: memory.similarity or 0.0)
    return f"cosine of the query and its closest memory, {best.id}"


def _reliability_from(record: DecisionRecord) -> str:
    relevant = sum(memory.relevant for memory in record.memories)
    if record.agreement is None or record.conflict_rate is None:
        return "given with the line" if not record.memories else "not measurable"
    if relevant < 2:
        return f"neutral: {relevant} relevant, two are needed to compare"
    pairs = relevant * (relevant - 1) // 2
    return (
        f"agreement {record.agreement:.3f} of {relevant} relevant memories, times (1 - {record.conflict_rate:.3f})²; "
        f"{record.conflict_count} of {pairs} pairs conflict. Agreement is not truth."
    )


def _steps(record: DecisionRecord) -> Iterator[str]:
    strength = f"the strength of the fused signals, ‖v_meta‖ = {record.norm:.3f}, on the scale of the calibration"
    yield f"confidence C {record.confidence:.3f}: {strength}"
    yield f"consistency α {record.consistency:.3f}: how far the fused signals point the way that relevance does"
    yield f"gain of relevance at this risk {record.gain:.3f}"
    yield f"gated confidence C_final {record.gated_confidence:.3f}: C, lowered where α is low"


def _boundary(record: DecisionRecord) -> Iterator[str]:
    assert record.audit is not None
    nearest, changes = record.audit.boundary.nearest, record.audit.boundary.change
    side = "above" if nearest.distance >= 0 else "below"
    upper, lower = nearest.between
    away = f"{abs(nearest.distance):.3f} {side} {nearest.threshold:.2f}"
    yield f"C_final is {away}, the threshold of {upper} and {lower}."
    for channel in CHANNELS:
        change, now = changes[channel], getattr(record, channel)
        if change.delta is None:
            yield f"- No change of {channel} alone would cross it."
        else:
            moved = f"{channel} {now:.3f} {change.delta:+.3f} = {now + change.delta:.3f}"
            yield f"- {moved} would make it {change.to_action}."


def _seeds(record: DecisionRecord, stability: ActionStability) -> Iterator[str]:
    same, seeds = stability.actions[stability.action], stability.seeds
    counts = ", ".join(f"{action} {count}" for action, count in stability.actions.items() if count)
    others = f"Of {seeds} controllers with a random basis each, and all else as in this one"
    yield f"{others}, {same} ({stability.share:.0%}) take the same action: {counts}."
    if record.status & INVALID:
        yield "They could do nothing else: a value was faulty, and then every controller abstains."


def _weights(record: DecisionRecord) -> RenderableType:
    assert record.audit is not None
    table = _grid(3)
    table.add_row("", "share of the fused signal", "energy of its subspace")
    for channel in CHANNELS:
        share, energy = record.audit.contributions[channel], record.audit.energy[channel]
        table.add_row(channel, f"{share:7.1%} {_bar(share)}", f"{energy:.3f}")
    table.add_row("", "", f"{record.audit.energy['total']:.3f} in all, ‖v_meta‖²; of several bases its mean")
    return table


def _bar(share: float, width: int = 16) -> str:
    return "#" * round(min(1.0, max(0.0, share)) * width)


def _memories(record: DecisionRecord, source: Retrieval | None) -> RenderableType:
    if not record.memories:
        return _text("  none" if record.agreement is not None else "  not measured: the signals were given")
    texts = [memory.text for memory in source.memories] if source is not None else []
    table = _grid(4)
    for place, memory in enumerate(record.memories[:MOST_SHOWN]):
        similarity = "not finite" if memory.similarity is None else f"{memory.similarity:.3f}"
        words = ["relevant" if memory.relevant else "not relevant"]
        words += ["injected"] if memory.id in record.injected else []
        words += ["read in part"] if memory.id in record.truncated else []
        text = texts[place] if place < len(texts) else None
        said = f": {_shortened(text, TEXT_SHOWN)}" if text else ""
        table.add_row(_text(memory.id), similarity, _text(", ".join(words) + said))
    rest = len(record.memories) - MOST_SHOWN
    return Group(table, _text(f"  and {rest:,} more")) if rest > 0 else table


def _conflicts(record: DecisionRecord) -> Iterator[str]:
    for conflict in record.conflicts[:MOST_SHOWN]:
        evidence = " / ".join(f"“{words}”" for words in conflict.evidence)
        yield f"- {conflict.a} against {conflict.b}: {conflict.rule}" + (f" ({evidence})" if evidence else "")
    rest = record.conflict_count - min(len(record.conflicts), MOST_SHOWN)
    if rest:
        yield f"  and {rest:,} more"


def _provenance(record: DecisionRecord) -> RenderableType:
    table = _grid()
    thresholds = ", ".join(f"{theta:g}" for theta in record.thresholds)
    encoder = record.encoder or "none: embeddings or signals were given"
    for name, value in (
        ("preset", f"{record.preset}, basis {record.basis}"),
        ("calibration", f"{record.calibration}, thresholds {thresholds}"),
        ("certificate", record.certificate),
        ("conflict detector", record.detector),
        ("risk policy", record.risk_policy),
        ("needs a relevant memory", "yes" if record.require_relevant else "no"),
        ("encoder", encoder),
        ("status bits", str(record.status)),
    ):
        table.add_row(name, _text(value))
    return table


def _section(title: str) -> RenderableType:
    return Text(f"\n{title}", style="bold")


def _lines(lines: Iterable[str]) -> RenderableType:
    """Lines with a hanging indent, so that a narrow console keeps them apart."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        dash = line.startswith("- ")
        table.add_row("  -" if dash else " ", _text(line.removeprefix("- ")))
    return table


def _grid(columns: int = 2) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns):
        table.add_column(overflow="fold")
    return table


def _text(value: str) -> Text:
    """Text of any origin, shown as it is: no markup, and no character that a terminal would obey."""
    return Text("".join(c if c.isprintable() or c == "\n" else "�" for c in value))


def _shortened(value: str, length: int) -> str:
    flat = " ".join(value[: 4 * length].split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _shortened(", ".join(str(v) for v in value) or "none", TEXT_SHOWN)
    return _shortened("none" if value is None else str(value), TEXT_SHOWN)
