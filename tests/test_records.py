"""What goes out: reasons, injected memories, conflicts with their evidence, the audit, and the line that is written."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest
import torch
from jsonschema import Draft202012Validator

from mdl_torch import Action, Calibration, MemoryDecisionLayer, MemoryGate, Status
from mdl_torch.data import read_text
from mdl_torch.encoder import SentenceEncoder
from mdl_torch.records import (
    MAX_CONFLICTS,
    REASONS,
    DecisionRecord,
    Facts,
    NoDecisionError,
    conflicts_of,
    error_line,
    rows,
)
from mdl_torch.retrieval import Memory, ReadySignals, Retrieval
from mdl_torch.risk import KeywordTier, RiskPolicy
from mdl_torch.stance import detector

SCHEMA = Draft202012Validator(json.loads(read_text("output.schema.json")))
SAMPLE = [Retrieval.parse(json.loads(line)) for line in read_text("sample.jsonl").splitlines()]
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def bare() -> MemoryGate:
    """Without a calibration and without a model: for ready embeddings."""
    return MemoryGate("nobody/no-such-model", validate_args=False)


def record(gate, *args, **fields) -> DecisionRecord:
    (found,) = gate.records([Retrieval(*args, **{"risk": 0.5, **fields})])
    return found


def flat(*embeddings, texts=True):
    """Memories in the plane, each with a text of its own."""
    return [Memory(f"Fact {n}." if texts else None, embedding=e) for n, e in enumerate(embeddings)]


# --- reasons ------------------------------------------------------------------------------------------------------

EAST, NORTH, WEST = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]
AGREEING = [[1.0, 0.1], [1.0, -0.1]]


def test_a_plain_case_has_no_reason(gate):
    texts = ["The library opens at nine.", "The library opens at nine on weekdays."]
    assert record(gate, "When does the library open?", texts).reasons == ()


PLANAR = {
    "no_memory": {"memories": []},
    "no_relevant_memory": {"memories": flat(NORTH, WEST)},
    "irrelevant_store_withheld": {"memories": flat([0.3, 1.0]), "risk": 0.0},
    "top_tier_without_support": {"memories": flat([0.3, 1.0]), "risk": 0.7},
    "too_few_to_compare": {"memories": flat(EAST, NORTH)},
    "zero_vector": {"memories": flat(*AGREEING, [0.0, 0.0])},
    "not_finite": {"memories": flat(*AGREEING, [NAN, 0.0])},
    "out_of_range": {"memories": flat(*AGREEING), "risk": 1.5},
    "stance_unread": {"memories": flat(*AGREEING, texts=False)},
    "duplicate_ids": {"memories": [Memory("A.", id=1, embedding=EAST), Memory("B.", id="1", embedding=EAST)]},
    "conflicting_memories": {
        "memories": [
            Memory("The shop is open.", embedding=EAST),
            Memory("The shop is not open.", embedding=EAST),
        ]
    },
}


@pytest.mark.parametrize("reason", PLANAR)
def test_a_reason_is_given_where_it_holds(bare, reason):
    found = record(bare, query_embedding=EAST, **PLANAR[reason])
    assert reason in found.reasons
    SCHEMA.validate(found.to_dict())


COMPANIONS = {
    "irrelevant_store_withheld": {"no_relevant_memory"},
    "top_tier_without_support": {"no_relevant_memory", "irrelevant_store_withheld"},
}


@pytest.mark.parametrize("reason", PLANAR)
def test_no_other_reason_is_given(bare, reason):
    found = set(record(bare, query_embedding=EAST, **PLANAR[reason]).reasons)
    assert found - {"calibration_not_fitted"} == {reason} | COMPANIONS.get(reason, set())


def test_too_few_to_compare_is_not_said_of_a_store_without_a_relevant_memory(bare):
    for store in ([], flat(NORTH)):
        assert "too_few_to_compare" not in record(bare, query_embedding=EAST, memories=store).reasons


def test_an_empty_store_in_the_top_tier(bare):
    found = record(bare, query_embedding=EAST, memories=[], risk=0.7)
    assert found.action is Action.OPT_OUT
    assert {"no_memory", "top_tier_without_support"} <= set(found.reasons)
    assert "no_relevant_memory" not in found.reasons


def test_an_empty_store_is_not_called_irrelevant(bare):
    found = record(bare, query_embedding=EAST, memories=[], risk=0.0)
    assert found.gated_confidence >= found.thresholds[1]  # the equations know three scalars, and would inject
    assert set(found.reasons) == {"no_memory", "calibration_not_fitted"}


def test_top_tier_is_not_blamed_where_the_equations_abstain(gate):
    found = record(gate, query_embedding=[1.0, *[0.0] * 383], memories=[], risk=1.0)
    assert found.gated_confidence < found.thresholds[2]
    assert found.action is Action.OPT_OUT
    assert "top_tier_without_support" not in found.reasons


def test_top_tier_is_not_blamed_for_a_fault():
    facts = dict.fromkeys((f.name for f in dataclasses.fields(Facts)), True)
    status = Status.NOT_FINITE | Status.NO_RELEVANT_MEMORY
    reasons = set(Facts(**{**facts, "status": status}).reasons())
    assert "not_finite" in reasons
    assert "top_tier_without_support" not in reasons


def test_truncated_query_and_memory(encoder):
    long = "the library opens at nine and closes at five " * 40
    gate = MemoryGate.from_pretrained(SentenceEncoder.from_pretrained(long_text="truncate"))
    of_memory = gate.decide("When does the library open?", [Memory("At nine.", id="short"), Memory(long, id="long")])
    assert "truncated" in of_memory.reasons
    assert of_memory.truncated == ("long",)
    of_query = gate.decide(long, ["The library opens at nine."])
    assert "truncated" in of_query.reasons
    assert of_query.truncated == ()
    pooled = MemoryGate.from_pretrained(encoder).decide(long, [long])
    assert "truncated" not in pooled.reasons
    assert pooled.truncated == ()


GERMAN = "Die Bibliothek öffnet am Sonntag nicht vor neun Uhr, aber sie schließt erst um fünf."
ENGLISH = "The library does not open before nine on Sundays."


@pytest.mark.parametrize(
    ("query", "memory", "expected"),
    [(ENGLISH, ENGLISH, False), (ENGLISH, GERMAN, True), (GERMAN, ENGLISH, True), (GERMAN, GERMAN, True)],
)
def test_language_of_query_and_memories(gate, query, memory, expected):
    assert ("language_unsupported" in record(gate, query, [memory]).reasons) is expected


def test_language_of_a_query_that_comes_with_its_embedding(bare):
    store = flat(*AGREEING)
    assert "language_unsupported" in record(bare, GERMAN, store, query_embedding=EAST).reasons
    assert "language_unsupported" not in record(bare, ENGLISH, store, query_embedding=EAST).reasons


def test_a_foreign_neighbour_does_not_matter(gate):
    both = gate.records([Retrieval(ENGLISH, [ENGLISH]), Retrieval(ENGLISH, [GERMAN]), Retrieval(GERMAN, [ENGLISH])])
    assert ["language_unsupported" in found.reasons for found in both] == [False, True, True]


def test_ready_signals_are_not_looked_behind(gate):
    signals = ReadySignals(0.7, 0.3, 0.5)
    twice = [Memory(GERMAN, id=1), Memory(embedding=[NAN], id=1)]
    assert record(gate, GERMAN, twice, signals=signals).reasons == ()
    assert record(gate, signals=ReadySignals(0.7, 0.3, 0.9)).action in Action


def test_calibration_not_fitted(encoder, gate):
    texts = ["The library opens at nine."]
    assert "calibration_not_fitted" not in record(gate, "When?", texts).reasons
    unfitted = MemoryGate.from_pretrained(encoder, calibration=None)
    assert "calibration_not_fitted" in record(unfitted, "When?", texts).reasons


def test_encoder_unverified(encoder, gate):
    text = "The library opens at nine."
    ready = encoder.encode_documents([text]).embeddings[0]
    for store, query in (([Memory(text, embedding=ready), text], None), ([text], ready)):
        assert "encoder_unverified" in record(gate, "When?", store, query_embedding=query).reasons
    assert "encoder_unverified" not in record(gate, "When?", [text]).reasons
    # Nothing was fitted, so it does not matter whose the embeddings are.
    unfitted = MemoryGate.from_pretrained(encoder, calibration=None)
    assert "encoder_unverified" not in record(unfitted, "When?", [Memory(text, embedding=ready)]).reasons
    anyone = dataclasses.replace(Calibration.reference(), encoder=None)
    agnostic = MemoryGate.from_pretrained(encoder, calibration=anyone)
    assert "encoder_unverified" not in record(agnostic, "When?", [Memory(text, embedding=ready)]).reasons


def test_every_reason_has_a_case():
    elsewhere = {
        "truncated",
        "stance_truncated",
        "language_unsupported",
        "calibration_not_fitted",
        "encoder_unverified",
    }
    assert set(PLANAR) | elsewhere == set(REASONS)


def test_reasons_are_sentences_and_all_of_them_can_be_given():
    assert all(meaning[0].isupper() and meaning.endswith(".") for meaning in REASONS.values())
    everything = {field.name: True for field in dataclasses.fields(Facts)}
    nothing_known = ("compared", "languages_supported", "texts_known", "fitted", "encoder_known", "unique_ids")
    facts = Facts(**{**everything, **dict.fromkeys(nothing_known, False), "status": Status(31)})
    given = set(facts.reasons())
    facts = dataclasses.replace(facts, status=Status.NO_RELEVANT_MEMORY)
    given |= set(facts.reasons()) | set(dataclasses.replace(facts, status=Status(0)).reasons())
    assert given == set(REASONS)


# --- memories and conflicts ---------------------------------------------------------------------------------------


def test_injected_is_all_or_nothing(gate):
    seen = set()
    for found in gate.records(SAMPLE, audits=False):
        ids = tuple(memory.id for memory in found.memories)
        assert found.injected == (ids if found.action in (Action.ACTIVE, Action.SUPP) else ())
        seen.add(found.action)
    assert seen == set(Action)


def test_ids_are_strings_and_positions_where_there_are_none(bare):
    store = [
        Memory("A.", id="a", embedding=EAST),
        Memory("B.", embedding=NORTH),
        Memory("C.", id=7, embedding=EAST),
        Memory("D.", id="", embedding=EAST),
    ]
    found = record(bare, query_embedding=EAST, memories=store)
    assert [memory.id for memory in found.memories] == ["a", "1", "7", ""]
    assert [memory.relevant for memory in found.memories] == [True, False, True, True]
    assert [memory.similarity for memory in found.memories] == [1, 0, 1, 1]
    assert [record(bare, query_embedding=EAST, id=id).id for id in ("x", 5, None)] == ["x", "5", "1"]


def test_source_timestamp_and_score_change_nothing(gate):
    plain = ["The library opens at nine.", "The library opens at ten."]
    known = [
        {"text": text, "source": "web", "timestamp": time, "score": score}
        for text, time, score in zip(plain, ("1999-01-01", 2_000_000_000), (-INF, NAN), strict=True)
    ]
    query = "When does the library open?"
    assert gate.decide(query, known, risk=0.5) == gate.decide(query, plain, risk=0.5)


def test_a_conflict_names_memories_rule_and_words(gate):
    found = gate.decide(
        "Is the shop open?",
        [Memory("The shop is open.", id="yes"), "Penguins swim.", Memory("The shop is not open.", id="no")],
    )
    (conflict,) = found.conflicts
    assert (conflict.a, conflict.b, conflict.rule) == ("yes", "no", "negation")
    assert len(conflict.evidence) == 2
    assert ["not" in words.split() for words in conflict.evidence].count(True) == 1
    assert found.conflict_count == 1
    assert found.conflict_rate == 1


def test_conflicts_are_capped_and_all_of_them_counted(bare):
    texts = ["The shop is open."] * 7 + ["The shop is not open."] * 5
    store = [Memory(text, id=f"m{n}", embedding=EAST) for n, text in enumerate(texts)]
    store.insert(3, Memory("The shop is not open.", id="off", embedding=NORTH))
    found = record(bare, query_embedding=EAST, memories=store)
    assert found.conflict_count == 35
    assert len(found.conflicts) == MAX_CONFLICTS == 20
    expected = [(f"m{a}", f"m{b}") for a in range(7) for b in range(7, 12)]
    assert [(c.a, c.b) for c in found.conflicts] == expected[:20]
    assert found.conflict_rate == pytest.approx(35 / 66, abs=1e-6)


def test_conflicts_of_a_store_too_large_for_one_tensor(monkeypatch):
    monkeypatch.setattr("mdl_torch.records.MAX_PAIRS", 7)
    lexical = detector("lexical")
    texts = ["The shop is open.", "The shop is closed.", "The shop is not open.", "Penguins swim."] * 3
    relevant = torch.tensor([True, True, False, True] * 3)
    found = conflicts_of(lexical, lexical.features(texts), relevant, texts)
    kept = [n for n in range(12) if n % 4 != 2]
    expected = [(a, b) for a in kept for b in kept if a < b and lexical.evidence(texts[a], texts[b])]
    assert [(i, j) for i, j, _, _ in found.listed] == expected
    assert found.count == len(expected) == 9


def test_without_a_text_there_is_no_conflict(bare):
    found = record(bare, query_embedding=EAST, memories=flat(*AGREEING, texts=False))
    assert (found.conflict_count, found.conflict_rate) == (0, 0)
    half = [
        *flat(*AGREEING, texts=False),
        Memory("It is open.", embedding=EAST),
        Memory("It is not open.", embedding=EAST),
    ]
    found = record(bare, query_embedding=EAST, memories=half)
    assert [(c.a, c.b) for c in found.conflicts] == [("2", "3")]
    assert found.conflict_rate == pytest.approx(1 / 6)


# --- the audit ----------------------------------------------------------------------------------------------------


def test_the_audit_adds_up_and_its_changes_cross(gate):
    for found in gate.records(SAMPLE[::5]):
        audit, nearest = found.audit, found.audit.boundary.nearest
        assert sum(v for k, v in audit.energy.items() if k != "total") == pytest.approx(audit.energy["total"])
        assert audit.energy["total"] == pytest.approx(found.norm**2, rel=1e-5)
        assert sum(audit.contributions.values()) == pytest.approx(1)
        assert nearest.distance == pytest.approx(found.gated_confidence - nearest.threshold, abs=1e-6)
        assert abs(nearest.distance) == pytest.approx(
            min(abs(found.gated_confidence - threshold) for threshold in found.thresholds), abs=1e-6
        )
        upper, lower = nearest.between
        assert [a.label for a in Action].index(upper) + 1 == [a.label for a in Action].index(lower)
        for channel, change in audit.boundary.change.items():
            assert (change.delta is None) == (change.to_action is None)
            if change.delta is None:
                continue
            assert change.to_action == (lower if nearest.distance >= 0 else upper)
            signals = {name: getattr(found, name) for name in ("relevance", "reliability", "risk")}
            signals[channel] += change.delta
            assert 0 <= signals[channel] <= 1
            moved = gate.layer(*torch.tensor(list(signals.values()), dtype=torch.float64)).gated_confidence.item()
            crossed = (moved >= nearest.threshold) != (nearest.distance >= 0)
            assert crossed or moved == pytest.approx(nearest.threshold, abs=1e-6), "to 7 decimals of each number"


def test_without_audits_nothing_else_changes(gate):
    for full, short in zip(gate.records(SAMPLE), gate.records(SAMPLE, audits=False), strict=True):
        assert full.audit is not None
        assert dataclasses.replace(full, audit=None) == short


def test_a_faulty_row_has_nothing_to_account_for(bare):
    assert record(bare, query_embedding=EAST, **PLANAR["not_finite"]).audit is None
    assert record(bare, query_embedding=EAST, **PLANAR["zero_vector"]).audit is not None


# --- lines --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(gate, lenient, bare) -> list[DecisionRecord]:
    """Every kind of record: the sample with and without audits, ready signals, and every fault that is let pass."""
    signals = [
        ReadySignals(0.7, 0.3, 0.5),
        ReadySignals(NAN, 0.3, 0.5),
        ReadySignals(0.7, INF, 0.5),
        ReadySignals(2, 2, 2),
    ]
    values = [NAN, INF, -INF, 1e30, 1e-40, 0.0]
    faults = [
        Retrieval(query_embedding=query, memories=flat(EAST, AGREEING[0], memory), risk=risk)
        for query, memory, risk in [
            *((EAST, [value, 1.0], 0.5) for value in values),
            *(([value, 1.0], EAST, 0.5) for value in values),
            *((EAST, EAST, risk) for risk in (NAN, INF, -0.1, 1.1)),
        ]
    ]
    return [
        *gate.records(SAMPLE),
        *gate.records(SAMPLE[:3], audits=False),
        *lenient.records([Retrieval(signals=s) for s in signals]),
        *bare.records(faults),
        record(gate, "", [""]),
        record(gate, "\ud800", ["\udfff", Memory("a", id="\ud800")]),
        record(bare, query_embedding=EAST, memories=[]),
    ]


def test_every_line_is_valid_json_without_a_nan(records):
    for found in records:
        line = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        SCHEMA.validate(line)


def test_a_line_reads_back_as_what_was_written(records):
    for found in records:
        line = found.to_dict()
        assert DecisionRecord.from_dict(line).to_dict() == line
        again = DecisionRecord.from_dict(json.loads(json.dumps(line)))
        assert again == found, "the object has the numbers of the line"


def test_records_hold_no_nan_either(records):
    def numbers(value):
        if isinstance(value, float):
            yield value
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ():
            yield from numbers(inner)

    assert all(math.isfinite(n) for found in records for n in numbers(dataclasses.asdict(found)))


def test_numbers_are_rounded_to_what_float32_can_say(gate):
    found = gate.decide("When does the library open?", ["The library opens at nine."], risk=0.85)
    assert (found.risk, found.thresholds) == (0.85, (0.6, 0.4, 0.2))
    line = found.to_dict()
    assert line["risk"] == 0.85
    assert line["thresholds"] == [0.6, 0.4, 0.2]
    assert re.fullmatch(r"-?\d+(\.\d{1,7})?", repr(line["gated_confidence"]))


def test_the_risk_is_the_assessed_one_and_not_its_float32(bare):
    assessed = 0.7000000297  # its nearest float32, 0.69999999, would round to 0.7 with another digit
    for risk in (assessed, 0.12345675, 1 / 3):
        assert record(bare, query_embedding=EAST, memories=flat(EAST), risk=risk).risk == round(risk, 7)
    assert record(bare, query_embedding=EAST, memories=flat(EAST), risk=1.5).risk == 1, "that of a faulty row"


def test_no_negative_zero(bare):
    west = record(bare, query_embedding=EAST, memories=flat([-1e-9, 1.0]))
    assert west.memories[0].similarity == 0
    assert math.copysign(1, west.memories[0].similarity) == 1


def test_the_line_says_what_decided(gate):
    line = gate.decide("Is tea hot?", ["Tea is hot."], category="health").to_dict()
    assert line["schema_version"] == 1
    assert (line["preset"], line["basis"], line["certificate"]) == ("paper", gate.layer.basis, "none")
    assert line["calibration"] == gate.layer.calibration_label
    assert line["encoder"] == gate.encoder.identity
    assert line["detector"] == getattr(gate.detector, "identity", "lexical")
    assert line["risk_policy"] == RiskPolicy.default().fingerprint
    assert line["require_relevant"] is True
    assert (line["risk"], line["risk_rule"]) == (0.85, "category: Health")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"error": "bad", "line": 7}, ValueError, "unknown field of the output line"),
        ({"extra": 1}, ValueError, "unknown field of the output line 'extra'"),
        ({"relevence": 1}, ValueError, "did you mean 'relevance'?"),
        ({"schema_version": 2}, ValueError, "schema_version must be 1, got 2"),
        ({"action": "activ"}, ValueError, "unknown action 'activ'; did you mean 'active'?"),
        ({"action": []}, ValueError, "unknown action"),
        ({"id": 7}, ValueError, "id must be a string, got 7"),
        ({"gain": None}, ValueError, "gain must be a finite number, got None"),
        ({"gain": INF}, ValueError, "gain must be a finite number, got inf"),
        ({"gain": 10**400}, ValueError, "gain must be a finite number, got 1000"),
        ({"agreement": "0.5"}, ValueError, "agreement must be a finite number, got '0.5'"),
        ({"status": "0"}, ValueError, "status must be a whole number from 0 to 2147483647, got '0'"),
        ({"status": 0.5}, ValueError, "status must be a whole number from 0 to 2147483647, got 0.5"),
        ({"status": -1}, ValueError, "status must be a whole number from 0 to 2147483647, got -1"),
        ({"conflict_count": True}, ValueError, "conflict_count must be a whole number"),
        ({"conflict_count": NAN}, ValueError, "conflict_count must be a whole number"),
        ({"require_relevant": 1}, ValueError, "require_relevant must be true or false, got 1"),
        ({"reasons": "no_memory"}, ValueError, "reasons must be a list, got 'no_memory'"),
        ({"injected": [0]}, ValueError, "injected[0] must be a string, got 0"),
        ({"memories": 5}, ValueError, "memories must be a list, got 5"),
        ({"memories": [{"id": "a"}]}, ValueError, "memories[0] lacks similarity, relevant"),
        ({"memories": ["a"]}, ValueError, "memories[0] must be an object, got 'a'"),
        ({"conflicts": [{}]}, ValueError, "conflicts[0] lacks a, b, rule, evidence"),
        ({"thresholds": None}, ValueError, "thresholds must be a list, got None"),
        ({"thresholds": [0.6]}, ValueError, "thresholds must have 3 entries, got 1"),
        ({"audit": {"energy": {}}}, ValueError, "audit lacks contributions, boundary"),
        ({"audit": 5}, ValueError, "audit must be an object, got 5"),
    ],
    ids=str,
)
def test_what_is_no_output_line_is_refused(gate, change, error, message):
    line = gate.decide("Is tea hot?", ["Tea is hot."]).to_dict()
    with pytest.raises(error) as raised:
        DecisionRecord.from_dict({**line, **change})
    assert message in str(raised.value)


def paths(value, path=()):
    """The way to every key and every entry within a line."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from paths(inner, (*path, key))


def test_whatever_the_schema_refuses_for_its_form_is_refused(gate):
    """Each key left out, each value of another type, a key more in each object: a ValueError, never another one."""
    texts = [Memory("The shop is open.", id="a"), Memory("The shop is not open.", id="b")]
    line = json.loads(json.dumps(gate.decide("Is the shop open?", texts).to_dict()))
    assert line["conflicts"]
    assert line["audit"]
    tried = 0
    for path in list(paths(line)):
        for change in ("remove", "add", None, 5, "x", [], {}, True):
            altered = json.loads(json.dumps(line))
            inner = altered
            for key in path[:-1]:
                inner = inner[key]
            if change == "remove":
                del inner[path[-1]]
            elif change == "add":
                if not isinstance(inner, dict):
                    continue
                inner["surplus"] = 1
            else:
                inner[path[-1]] = change
            errors = [error.validator for error in SCHEMA.iter_errors(altered)]
            if not set(errors) & {"type", "required", "additionalProperties", "minItems", "const"}:
                continue
            with pytest.raises(ValueError, match=r"must|lacks|unknown"):
                DecisionRecord.from_dict(altered)
            tried += 1
    assert tried > 300


def test_a_whole_number_may_be_written_with_a_point_and_a_number_without(gate):
    line = gate.decide("Is tea hot?", ["Tea is hot."]).to_dict()
    again = DecisionRecord.from_dict({**line, "status": float(line["status"]), "conflict_count": 0.0, "risk": 1})
    assert (type(again.status), type(again.conflict_count), type(again.risk)) == (int, int, float)


def test_only_a_genuine_error_line_is_one(gate):
    with pytest.raises(NoDecisionError, match="line 7 could not be decided: bad"):
        DecisionRecord.from_dict(error_line(7, "bad"))
    for damaged in ({"line": None}, {"error": 5}, {"schema_version": 2}, {"action": "active"}):
        with pytest.raises(ValueError, match=r".") as raised:
            DecisionRecord.from_dict({**error_line(7, "bad"), **damaged})
        assert not isinstance(raised.value, NoDecisionError)


def test_missing_fields_and_other_things_are_refused(gate):
    line = gate.decide("Is tea hot?", ["Tea is hot."]).to_dict()
    del line["gain"], line["norm"]
    with pytest.raises(ValueError, match="lacks gain, norm"):
        DecisionRecord.from_dict(line)
    with pytest.raises(TypeError, match="an output line must be an object, got list"):
        DecisionRecord.from_dict([])


def test_the_line_tells_other_policies_and_guards_apart(encoder):
    policy = RiskPolicy(0.2, {"Law": 0.8}, {"money": KeywordTier(0.5, ("loan",))})
    same = RiskPolicy(0.2, {"Law": 0.8}, {"money": KeywordTier(0.5, ("loan",))})
    others = [
        RiskPolicy(0.3, policy.categories, policy.keywords),
        RiskPolicy(0.2, {"Law": 0.9}, policy.keywords),
        RiskPolicy(0.2, policy.categories, {"money": KeywordTier(0.6, ("loan",))}),
        RiskPolicy(0.2, policy.categories, {"money": KeywordTier(0.5, ("loan", "debt"))}),
    ]
    assert re.fullmatch("[0-9a-f]{8}", policy.fingerprint)
    assert same.fingerprint == policy.fingerprint
    assert len({p.fingerprint for p in (policy, *others)}) == 5
    gate = MemoryGate(encoder, detector="literal", risk_policy=policy, require_relevant=False)
    found = gate.decide("Is tea hot?", ["Tea is hot."])
    assert found.detector.split("@")[0] == "literal"
    assert (found.risk_policy, found.require_relevant) == (policy.fingerprint, False)


@pytest.mark.parametrize("error", [ValueError("risk must be in [0, 1], got 2"), ValueError(), "unreadable"])
def test_error_lines_are_valid(error):
    line = error_line(3, error, id=None)
    SCHEMA.validate(line)
    assert line["error"] in ("risk must be in [0, 1], got 2", "ValueError", "unreadable")


def test_rows_are_the_tensors_row_by_row():
    decision = MemoryDecisionLayer()(*torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.9]], dtype=torch.float64))
    found = list(rows(decision))
    assert len(found) == 2
    for row, values in enumerate(found):
        assert values == {f.name: getattr(decision, f.name)[row].item() for f in dataclasses.fields(decision)}
