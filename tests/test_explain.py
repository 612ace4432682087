"""The audit card: what a reader who answers for a decision must find on it, at any width and without colour."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console, RenderableType

from mdl_torch import Action, MDLConfig, MemoryDecisionLayer, MemoryGate
from mdl_torch.config import CHANNELS
from mdl_torch.data import read_text
from mdl_torch.explain import IN_WORDS, ThresholdBar, card, decision_table, summary_table, verification_table
from mdl_torch.records import REASONS, DecisionRecord
from mdl_torch.retrieval import ReadySignals, Retrieval
from mdl_torch.score import Summary
from mdl_torch.stability import ActionStability, stability_of
from mdl_torch.verify import verify

CLAIMS = ["Opened software can be returned.", "Opened software can't be returned."]


@pytest.fixture(scope="module")
def conflicting(gate: MemoryGate) -> DecisionRecord:
    return gate.decide("Can opened software be returned?", CLAIMS, risk=0.85)


def shown(renderable: RenderableType, width: int = 100) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable, highlight=False)
    return captured.get()


def words(renderable: RenderableType, width: int = 100) -> str:
    """What is shown, whatever the line breaks."""
    return " ".join(shown(renderable, width).split())


def test_a_card_says_what_happens_and_why(conflicting: DecisionRecord) -> None:
    text = words(card(conflicting))
    assert IN_WORDS[conflicting.action] in text
    for symbol in ("relevance M", "reliability R", "risk A"):
        assert symbol in text
    assert f"{conflicting.relevance:.3f}" in text
    assert f"times (1 - {conflicting.conflict_rate:.3f})²; 1 of 1 pairs conflict" in text
    assert f"C_final {conflicting.gated_confidence:.3f}" in text
    for reason in conflicting.reasons:
        assert REASONS[reason] in text
    assert "0 against 1: negation" in text
    assert f"calibration {conflicting.calibration}, thresholds 0.6, 0.4, 0.2" in text
    assert str(conflicting.encoder) in text
    assert "certificate none" in text
    assert f"conflict detector {conflicting.detector}" in text
    assert f"risk policy {conflicting.risk_policy}" in text
    assert "needs a relevant memory yes" in text


def test_a_card_says_what_would_have_changed_the_decision(gate: MemoryGate) -> None:
    record = gate.records([Retrieval(signals=ReadySignals(0.7, 0.5, 0.5))])[0]
    assert record.audit is not None
    text = words(card(record))
    crossing = 0
    for channel in CHANNELS:
        change, now = record.audit.boundary.change[channel], getattr(record, channel)
        if change.delta is None:
            assert f"No change of {channel} alone would cross it." in text
        else:
            crossing += 1
            moved = now + change.delta
            assert f"{channel} {now:.3f} {change.delta:+.3f} = {moved:.3f} would make it {change.to_action}." in text
    assert crossing


def test_a_card_says_how_much_hangs_on_the_seed(gate: MemoryGate) -> None:
    record = gate.records([Retrieval(signals=ReadySignals(0.7, 0.3, 0.5))])[0]
    found = stability_of(record, gate, 12)
    text = words(card(record, stability=found))
    same = found.actions[record.action.label]
    counts = ", ".join(f"{action} {count}" for action, count in found.actions.items() if count)
    assert 0 < same < 12
    said = f"Of 12 controllers with a random basis each, and all else as in this one, {same} ({same / 12:.0%}) take"
    assert f"How much hangs on the random basis {said} the same action: {counts}." in text
    assert "random basis" not in words(card(record))


def test_a_card_in_the_words_of_its_counts(gate: MemoryGate, conflicting: DecisionRecord) -> None:
    record = replace(conflicting, action=Action.ACTIVE)
    found = ActionStability(40, 0, "active", {"active": 31, "supp": 9, "silent": 0, "opt_out": 0})
    for audits in (record.audit, None):
        text = words(card(replace(record, audit=audits), stability=found))
        assert "Of 40 controllers" in text
        assert "31 (78%) take the same action: active 31, supp 9." in text


def test_a_card_of_a_faulty_decision_makes_nothing_of_the_seeds(lenient: MemoryGate) -> None:
    record = lenient.records([Retrieval(signals=ReadySignals(0.7, 2.0, 0.5))])[0]
    text = words(card(record, stability=stability_of(record, lenient, 5)))
    assert "5 (100%) take the same action: opt_out 5. They could do nothing else: a value was faulty" in text


def test_the_energies_of_several_bases_add_up_to_a_mean() -> None:
    gate = MemoryGate(layer=MemoryDecisionLayer(MDLConfig(bases=3)))
    record = gate.records([Retrieval(signals=ReadySignals(0.7, 0.5, 0.5))])[0]
    assert record.audit is not None
    point = torch.tensor((0.7, 0.5, 0.5), dtype=torch.float64)
    mean = sum(MemoryDecisionLayer(MDLConfig(seed=seed))(*point).norm.item() ** 2 for seed in (42, 43, 44)) / 3
    assert record.audit.energy["total"] == pytest.approx(mean, abs=1e-6)
    assert record.norm**2 < mean - 1e-4, "it is not the square of the mean"
    assert f"{mean:.3f} in all, ‖v_meta‖²; of several bases its mean" in words(card(record))


def test_a_card_shows_texts_where_it_has_the_source(gate: MemoryGate) -> None:
    source = Retrieval.parse({"query": "Can opened software be returned?", "memories": CLAIMS, "risk": 0.2})
    record = gate.records([source])[0]
    assert "software can't" not in words(card(record))
    text = words(card(record, source))
    assert "Query: Can opened software be returned?" in text
    assert CLAIMS[1] in text


@pytest.mark.parametrize("width", [30, 44, 80, 200])
def test_every_card_of_the_sample_fits_any_console(gate: MemoryGate, width: int) -> None:
    asked = [Retrieval.parse(json.loads(line)) for line in read_text("sample.jsonl").splitlines()][::5]
    for source, record in zip(asked, gate.records(asked), strict=True):
        text = shown(card(record, source), width)
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text, "no colour is needed"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"signals": {"relevance": 0.9, "reliability": 0.8, "risk": 0.2}}, "not measured: the signals were given"),
        ({"query": "q", "memories": [], "risk": 0.2}, "The store holds no memory"),
        (
            {"query_embedding": [1, 0], "memories": [{"embedding": [1, 0]}], "risk": 0.2},
            "embeddings or signals were given",
        ),
        ({"query": "What is tea?", "memories": ["Tea is a drink."] * 30, "risk": 0.2}, "and 18 more"),
    ],
)
def test_a_card_of_any_kind_of_decision(gate: MemoryGate, source: dict[str, Any], expected: str) -> None:
    for audits in (True, False):
        assert expected in words(card(gate.records([Retrieval.parse(source)], audits=audits)[0]))


def test_a_rule_of_the_gate_that_overrode_the_equations_is_told(conflicting: DecisionRecord) -> None:
    record = replace(conflicting, gated_confidence=0.7, action=Action.OPT_OUT)
    assert "C_final is 0.700, which the thresholds call active (a rule of the gate made it opt_out)." in words(
        card(record)
    )


def test_texts_are_shown_as_they_are_and_command_no_terminal(gate: MemoryGate) -> None:
    source = Retrieval.parse(
        {"id": "[red]x[/red]", "query": "[bold]q[/] \x1b[31m", "memories": ["[/nope] \x07"], "risk": 0.2}
    )
    record = gate.records([source])[0]
    text = shown(card(record, source)) + shown(decision_table([(record.id, source.query or "", record)]))
    assert "[red]x[/red]" in text
    assert "[bold]q[/]" in text
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("width", [24, 60, 120])
@pytest.mark.parametrize("value", [-0.3, 0.0, 0.2, 0.399, 0.4, 0.6, 0.999, 1.0])
def test_the_marker_stands_in_the_zone_of_its_action(conflicting: DecisionRecord, value: float, width: int) -> None:
    zones, _, marker, label = shown(ThresholdBar(replace(conflicting, gated_confidence=value)), width).splitlines()
    assert label.split() == ["C_final", f"{value:.3f}"]
    place = marker.index("^")
    starts = [0, *(match.start() for match in re.finditer(r"\|", zones))][1:]
    zone = sum(start <= place for start in starts) - 1
    expected = 3 - int(Action(sum(value < theta for theta in conflicting.thresholds)))
    assert min(zone, 3) == expected


def test_the_table_has_a_row_for_each_line(conflicting: DecisionRecord) -> None:
    text = words(
        decision_table([("a", "Can it be returned?", conflicting), ("b", "", ValueError("risk must be 0"))]), 120
    )
    assert f"a Can it be returned? {conflicting.action.label} {conflicting.relevance:.2f}" in text
    assert "b risk must be 0 error" in text


def test_the_table_keeps_its_columns_in_eighty_characters(conflicting: DecisionRecord) -> None:
    text = shown(decision_table([("med-02", "Can opened software be returned? " * 9, conflicting)]), 80)
    for column in ("id", "query", "action", "C_final", "reasons"):
        assert column in text.splitlines()[1]
    assert f"{conflicting.gated_confidence:.2f}" in text


def test_the_summary_is_readable(conflicting: DecisionRecord) -> None:
    summary = Summary(lines=4, errors=2, seconds=2.0)
    summary.actions["opt_out"] = 2
    summary.reasons.update(conflicting.reasons)
    summary.first_errors = [{"line": 3, "error": "risk must be in [0, 1], got 2"}]
    text = words(summary_table(summary.to_dict()))
    assert "lines 4 in 2.0 s, 2 a second" in text
    assert "opt_out 2 (100%)" in text
    assert "line 3: risk must be in [0, 1], got 2" in text


def test_a_verification_is_told_in_words(gate: MemoryGate, conflicting: DecisionRecord) -> None:
    text = words(verification_table(verify(conflicting, gate)), 140)
    assert "VERIFIED: consistent in itself; the texts were not checked (give --source)" in text
    source = Retrieval.parse({"query": "Can opened software be returned?", "memories": CLAIMS, "risk": 0.85})
    text = words(verification_table(verify(conflicting, gate, source)), 140)
    assert "VERIFIED: comes out again from its texts" in text
    altered = verify(replace(conflicting, confidence=0.99), gate)
    text = words(verification_table(altered, all_checks=False), 140)
    assert "DIFFERS: the stored decision does not come out" in text
    assert f"confidence 0.99 {conflicting.confidence:.7g}"[:20] in text
    other = verify(replace(conflicting, preset="custom"), gate)
    assert "preset is custom in the line, paper in this gate" in words(verification_table(other))
