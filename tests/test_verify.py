"""Verification: what was stored comes out again, and what was altered is found."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl_torch import Action, MDLConfig, MemoryDecisionLayer, MemoryGate
from mdl_torch.calibration import Calibration
from mdl_torch.data import read_text
from mdl_torch.records import DecisionRecord
from mdl_torch.retrieval import Memory, ReadySignals, Retrieval
from mdl_torch.risk import RiskPolicy
from mdl_torch.verify import TOLERANCE, Verification, verify

unit = st.floats(0, 1, allow_nan=False)


@pytest.fixture(scope="module")
def sample(gate: MemoryGate) -> list[tuple[Retrieval, dict[str, Any]]]:
    """The sample with its stored lines."""
    asked = [Retrieval.parse(json.loads(line)) for line in read_text("sample.jsonl").splitlines()]
    return [(r, stored(record)) for r, record in zip(asked, gate.records(asked), strict=True)]


def stored(record: DecisionRecord) -> dict[str, Any]:
    return json.loads(json.dumps(record.to_dict(), allow_nan=False))  # type: ignore[no-any-return]


def verified(line: dict[str, Any], gate: MemoryGate, source: Retrieval | None = None) -> Verification:
    return verify(DecisionRecord.from_dict(line), gate, source)


def fields(verification: Verification) -> list[str]:
    return [check.field for check in verification.differing]


def test_the_sample_comes_out_again_with_and_without_its_source(
    sample: list[tuple[Retrieval, dict[str, Any]]], gate: MemoryGate
) -> None:
    for source, line in sample:
        assert verified(line, gate).outcome == "verified", line["id"]
        assert verified(line, gate, source).outcome == "verified", line["id"]
        assert verify(gate.records([source])[0], gate).outcome == "verified", "as the gate hands it out"


@settings(max_examples=60)
@given(m=st.floats(-1, 1), r=unit, a=unit, audits=st.booleans())
def test_ready_signals_come_out_again(m: float, r: float, a: float, audits: bool) -> None:
    gate = MemoryGate.from_pretrained()
    record = gate.records([Retrieval(signals=ReadySignals(m, r, a))], audits=audits)[0]
    assert fields(verified(stored(record), gate)) == []


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), count=st.integers(0, 6), risk=unit, config=st.integers(0, 4))
def test_embeddings_come_out_again_under_any_configuration(seed: int, count: int, risk: float, config: int) -> None:
    layer = MemoryDecisionLayer(
        [
            MDLConfig(),
            MDLConfig(thresholds=(0.55, 0.3, 0.123456789)),
            MDLConfig(norm_range=(2.2, 2.5), gate=(0.1, 0.9)),
            MDLConfig(alpha_gate=False, bias=0.1),
            MDLConfig(bases=3),
        ][config]
    )
    gate = MemoryGate(layer=layer, require_relevant=bool(seed % 2))
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(6, generator=generator)
    memories = tuple(Memory(embedding=query + 1.5 * torch.randn(6, generator=generator)) for _ in range(count))
    source = Retrieval(query_embedding=query, memories=memories, risk=risk, id="x")
    line = stored(gate.records([source])[0])
    assert fields(verified(line, gate)) == []
    assert fields(verified(line, gate, source)) == []


@pytest.mark.parametrize(
    "source",
    [
        Retrieval(signals=ReadySignals(math.nan, 0.5, 0.5)),
        Retrieval(signals=ReadySignals(0.5, 2.0, 0.5)),
        Retrieval(query_embedding=torch.tensor([1.0, math.nan]), memories=(Memory(embedding=torch.ones(2)),), risk=0.2),
        Retrieval(query_embedding=torch.ones(2), memories=(Memory(embedding=torch.tensor([1.0, math.inf])),), risk=0.2),
        Retrieval(query_embedding=torch.tensor([math.inf, 1.0]), memories=(), risk=0.2),
        Retrieval(query_embedding=torch.ones(2), memories=(Memory(embedding=torch.ones(2)),), risk=7.0),
        Retrieval(query_embedding=torch.zeros(2), memories=(Memory(embedding=torch.ones(2)),), risk=0.2),
        Retrieval(query_embedding=torch.ones(2), memories=(Memory(embedding=torch.zeros(2)),) * 2, risk=0.9),
    ],
)
def test_faulty_rows_come_out_again(source: Retrieval) -> None:
    gate = MemoryGate(validate_args=False)
    line = stored(gate.records([replace(source, id="x")])[0])
    assert fields(verified(line, gate)) == []
    assert fields(verified(line, gate, source)) == []


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Every number of a line with the way to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*path, key))
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield from numbers(inner, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def changed(line: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    line = copy.deepcopy(line)
    place = line
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return line


def is_derivable(path: tuple[Any, ...], line: dict[str, Any]) -> bool:
    """Whether the rest of the line determines a number. What only the texts can show is not."""
    if path[0] == "schema_version":
        return False
    if path[0] == "memories":
        return path[2] == "similarity" and line["memories"][path[1]]["similarity"] == line["relevance_raw"]
    return not (path[0] == "agreement" and (line["conflict_rate"] == 1 or line["agreement"] < 0))


def test_a_changed_digit_is_found(sample: list[tuple[Retrieval, dict[str, Any]]], gate: MemoryGate) -> None:
    tried = 0
    for _, line in sample[::16]:
        for path, value in numbers(line):
            if not is_derivable(path, line):
                continue
            steps = (1,) if isinstance(value, int) else (0.1, 0.001, 4 * TOLERANCE * max(1.0, abs(value)))
            for step in steps:
                altered = changed(line, path, round(value + (step if value + step <= 1 or value > 1.01 else -step), 7))
                assert verified(altered, gate).outcome == "differs", (line["id"], path, value, step)
                tried += 1
    assert tried > 200


def test_a_changed_action_is_found(sample: list[tuple[Retrieval, dict[str, Any]]], gate: MemoryGate) -> None:
    for _, line in sample:
        for action in Action:
            if action.label != line["action"]:
                ids = [memory["id"] for memory in line["memories"]]
                altered = {**line, "action": action.label, "injected": ids if action <= Action.SUPP else []}
                assert "action" in fields(verified(altered, gate)), line["id"]


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("injected", [], "injected"),
        ("injected", ["0"], "injected"),
        ("reasons", ["conflicting_memories"], "reasons"),
        ("reasons", ["no_memory"], "reasons"),
        ("reasons", ["calibration_not_fitted"], "reasons.calibration_not_fitted"),
        ("reasons", ["made_up"], "reasons"),
        ("status", 8, "status"),
        ("status", 64, "status"),
        ("certificate", "valid", "certificate"),
        ("encoder", "another@1", "encoder"),
        ("encoder", None, "reasons.encoder_unverified"),
        ("risk_rule", "category: Health", "risk"),
        ("risk_rule", "keyword: health (dose)", "risk"),
        ("risk_rule", "default", "risk"),
        ("risk_rule", "made up", "risk"),
        ("truncated", ["nobody"], "truncated"),
        ("conflict_count", 1, "conflict_rate"),
        ("conflicts", [{"a": "0", "b": "1", "rule": "negation", "evidence": []}], "conflicts"),
        ("memories", [], "relevance_raw"),
        ("relevance_raw", None, "relevance_raw"),
        ("agreement", None, "agreement"),
    ],
)
def test_a_changed_field_is_named(gate: MemoryGate, field: str, value: Any, found: str) -> None:
    line = stored(gate.decide("What is tea?", ["Tea is a drink.", "Tea is drunk hot."], risk=0.3))
    assert fields(verified(line, gate)) == []
    assert found in fields(verified({**line, field: value}, gate))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("preset", "custom"),
        ("basis", "00000000"),
        ("calibration", "exact-range"),
        ("detector", "literal@00000000"),
        ("risk_policy", "00000000"),
        ("require_relevant", False),
    ],
)
def test_another_gate_is_no_judge(gate: MemoryGate, field: str, value: str) -> None:
    line = stored(gate.decide("What is tea?", ["Tea is a drink."], risk=0.3))
    checked = verified({**line, field: value}, gate)
    assert checked.outcome == "not_verifiable"
    assert checked.obstacles == (f"{field} is {value} in the line, {line[field]} in this gate",)
    both = verified({**line, field: value, "injected": []}, gate)
    assert (both.outcome, fields(both)) == ("differs", ["injected"]), "the line contradicts itself"


def test_another_encoder_is_no_judge_of_the_texts(gate: MemoryGate) -> None:
    exact = MemoryGate(gate.encoder)
    source = Retrieval.parse({"id": "x", "query": "What is tea?", "memories": ["Tea is a drink."], "risk": 0.3})
    line = {**stored(exact.records([source])[0]), "encoder": "another@1"}
    assert verified(line, exact).outcome == "verified", "without texts the encoder is not needed"
    assert verified(line, exact, source).outcome == "not_verifiable"


def test_another_text_is_found(gate: MemoryGate) -> None:
    source = Retrieval.parse({"id": "x", "query": "What is tea?", "memories": ["Tea is a drink."], "risk": 0.3})
    line = stored(gate.records([source])[0])
    other = replace(source, memories=(Memory(text="Tea is a hot drink."),))
    assert verified(line, gate, source).outcome == "verified"
    assert "source.memories[0].similarity" in fields(verified(line, gate, other))
    assert "source.risk" in fields(verified(line, gate, replace(source, risk=0.4)))


def test_require_relevant_of_the_gate_counts(gate: MemoryGate) -> None:
    lenient = MemoryGate(gate.encoder, require_relevant=False)
    source = Retrieval(
        query_embedding=torch.tensor([1.0, 0.0]), memories=(Memory(embedding=torch.tensor([0.29, 1.0])),), risk=0.9
    )
    line = stored(lenient.records([source])[0])
    assert verified(line, lenient).outcome == "verified"
    assert line["action"] in ("active", "supp")
    strict = verified(line, MemoryGate(gate.encoder))
    assert strict.outcome == "not_verifiable"
    assert strict.obstacles == ("require_relevant is False in the line, True in this gate",)
    claimed = verified({**line, "require_relevant": True}, MemoryGate(gate.encoder))
    assert "action" in fields(claimed), "a strict gate does not decide so"


def test_a_line_of_another_policy_or_detector_does_not_come_out_as_different(gate: MemoryGate) -> None:
    source = Retrieval.parse({"id": "x", "query": "What dosage is safe?", "memories": ["The dosage is safe."]})
    others = [
        MemoryGate(gate.encoder, layer=gate.layer, risk_policy=RiskPolicy(0.9)),
        MemoryGate(gate.encoder, detector="literal"),
    ]
    here = [gate, MemoryGate(gate.encoder)]
    for other, mine, name in zip(others, here, ("risk_policy", "detector"), strict=True):
        line = stored(other.records([source])[0])
        assert verified(line, other, source).outcome == "verified"
        checked = verified(line, mine, source)
        assert (checked.outcome, checked.scope) == ("not_verifiable", "line")
        assert [obstacle.split(" is ")[0] for obstacle in checked.obstacles] == [name]


def test_the_outcome_says_what_was_checked(gate: MemoryGate) -> None:
    source = Retrieval.parse({"id": "x", "query": "What is tea?", "memories": ["Tea is a drink."], "risk": 0.3})
    line = stored(gate.records([source])[0])
    assert verified(line, gate).to_dict()["scope"] == "line"
    assert verified(line, gate, source).to_dict()["scope"] == "line_and_source"


@pytest.mark.parametrize("change", [{"norm": 1e308}, {"relevance": 1e308}, {"gain": -1e308}, {"conflict_count": 9**9}])
def test_far_fetched_numbers_differ_and_break_nothing(gate: MemoryGate, change: dict[str, Any]) -> None:
    line = stored(gate.decide("What is tea?", ["Tea is a drink.", "Tea is drunk hot."], risk=0.3))
    checked = verified({**line, **change}, gate)
    assert checked.outcome == "differs"
    json.dumps(checked.to_dict(), allow_nan=False)


def test_an_action_on_the_threshold_may_be_that_of_either_side() -> None:
    layer = MemoryDecisionLayer()
    gated = layer(*torch.tensor([0.7, 0.3, 0.5], dtype=torch.float64)).gated_confidence.item()
    for shift, outcome in ((TOLERANCE / 2, "verified"), (10 * TOLERANCE, "differs")):
        on_edge = MemoryGate(layer=MemoryDecisionLayer(MDLConfig(thresholds=(gated + shift, 0.4, 0.2))))
        line = stored(on_edge.records([Retrieval(signals=ReadySignals(0.7, 0.3, 0.5))])[0])
        assert line["action"] == "supp"
        assert verified(line, on_edge).outcome == "verified"
        altered = verified({**line, "action": "active"}, on_edge)
        assert altered.outcome == outcome
        if outcome == "verified":
            assert {c.field for c in altered.checks if c.agreement == "boundary"} == {"action"}


def test_numbers_must_be_numbers(gate: MemoryGate) -> None:
    line = stored(gate.decide("What is tea?", ["Tea is a drink."], risk=0.3))
    for path, _ in list(numbers(line)):
        if path[0] in ("schema_version",):
            continue
        with pytest.raises(ValueError, match="number"):
            verified(changed(line, path, "0.5"), gate)


def test_the_outcome_is_plain_json(gate: MemoryGate) -> None:
    line = stored(gate.decide("What is tea?", ["Tea is a drink."], risk=0.3))
    values = verified({**line, "confidence": 0.1}, gate).to_dict()
    json.dumps(values, allow_nan=False)
    assert values["outcome"] == "differs"
    assert values["differing"] == ["confidence"]
    check = next(c for c in values["checks"] if c["field"] == "confidence")
    assert (check["stored"], round(check["recomputed"], 5)) == (0.1, round(line["confidence"], 5))


def test_the_calibration_is_told_apart_by_its_values(gate: MemoryGate) -> None:
    line = stored(gate.decide("What is tea?", ["Tea is a drink."], risk=0.3))
    other = replace(Calibration.reference(), norm_range=(2.0, 3.2))
    checked = verified(line, MemoryGate.from_pretrained(gate.encoder, calibration=other))
    assert checked.outcome == "not_verifiable"
