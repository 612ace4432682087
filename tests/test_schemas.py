"""The JSON Schemas of `mdl score`: what they accept, what they refuse, and that every property is documented."""

from __future__ import annotations

import copy
import json

import pytest
from jsonschema import Draft202012Validator

from mdl_torch.data import read_text, resource
from mdl_torch.retrieval import Retrieval

INPUT = Draft202012Validator(json.loads(read_text("input.schema.json")))
OUTPUT = Draft202012Validator(json.loads(read_text("output.schema.json")))
ERROR_LINE = {"schema_version": 1, "id": None, "line": 12, "error": "expected a JSON object"}


def decision_line():
    no_change = {"delta": None, "to_action": None}
    return {
        "schema_version": 1,
        "id": "q1",
        "action": "supp",
        "relevance": 1.0,
        "relevance_raw": 1.0000001,
        "reliability": 0.3,
        "agreement": 0.68,
        "conflict_rate": 0.3333,
        "risk": 0.85,
        "risk_rule": "keyword: health (dosage)",
        "gain": 0.83,
        "norm": 2.7,
        "confidence": 0.5,
        "consistency": 0.96,
        "gated_confidence": 0.49,
        "thresholds": [0.6, 0.4, 0.2],
        "preset": "paper",
        "basis": "3f2a",
        "calibration": "reference-1c9d",
        "certificate": "none",
        "detector": "lexical@1f2e3d4c",
        "risk_policy": "5b6a7988",
        "require_relevant": True,
        "encoder": "all-MiniLM-L6-v2",
        "status": 0,
        "reasons": ["language_unsupported"],
        "injected": ["a", "1"],
        "memories": [
            {"id": "a", "similarity": 1.0000001, "relevant": True},
            {"id": "1", "similarity": -0.02, "relevant": False},
        ],
        "truncated": [],
        "conflicts": [{"a": "a", "b": "1", "rule": "negation", "evidence": ["can't"]}],
        "conflict_count": 1,
        "audit": {
            "energy": {"relevance": 3.0, "reliability": 2.0, "risk": 2.29, "total": 7.29},
            "contributions": {"relevance": 0.6, "reliability": 0.45, "risk": -0.05},
            "boundary": {
                "nearest": {"between": ["supp", "silent"], "threshold": 0.4, "distance": 0.09},
                "change": {
                    "relevance": no_change,
                    "reliability": {"delta": -0.1, "to_action": "silent"},
                    "risk": no_change,
                },
            },
        },
    }


def edited(line, path, value):
    """The line with the value at a path of keys replaced or added."""
    line = copy.deepcopy(line)
    inner = line
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return line


@pytest.mark.parametrize("name", ["input.schema.json", "output.schema.json"])
def test_is_a_schema_of_draft_2020_12(name):
    schema = json.loads(read_text(name))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


def objects(schema):
    """Every object type within a schema that states properties of its own."""
    if isinstance(schema, dict):
        if "object" in schema.get("type", "") and "properties" in schema:
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


@pytest.mark.parametrize("validator", [INPUT, OUTPUT], ids=["input", "output"])
def test_every_object_is_closed_and_every_property_described(validator):
    defs = validator.schema["$defs"]
    for schema in objects(validator.schema):
        assert schema["additionalProperties"] is False, schema.get("title")
        assert set(schema.get("required", [])) <= set(schema["properties"])
        for name, prop in schema["properties"].items():
            definition = defs.get(prop.get("$ref", "").rpartition("/")[2], {})
            described = prop.get("description") or definition.get("description") or definition.get("properties")
            assert described, name


GOOD = [
    {"id": "q1", "query": "Is it open?", "memories": ["It is open.", "It is not open."]},
    {"id": 7, "query": "Is it open?", "memories": []},
    {"query": "", "memories": [""], "risk": 0},
    {"query": "Is it open?", "memories": [{"text": "It is."}, {"embedding": [0.5, 1]}], "category": "Law"},
    {"query_embedding": [0.1, 0.2], "memories": [{"id": 3, "embedding": [1, 0], "score": None}], "risk": 1},
    {
        "query": "Is it open?",
        "memories": [{"id": "m", "text": "It is.", "source": "web", "timestamp": "2024-05-01", "score": 12.5}],
        "risk": 0.5,
        "category": None,
        "meta": {"anything": [1, {"of": "yours"}]},
    },
    {
        "id": None,
        "query": None,
        "query_embedding": [1],
        "memories": [{"text": None, "embedding": [1]}],
        "signals": None,
    },
    {"id": "s", "signals": {"relevance": 0.7, "reliability": 0.3, "risk": 0.5}},
    {"query": "Why?", "signals": {"relevance": 1.0000001, "reliability": 0, "risk": 1}, "meta": None, "memories": None},
]

BAD = [
    ([], "is not of type 'object'"),
    ({"query": "Is it open?"}, "not valid"),
    ({"query": "Is it open?", "memories": None}, "not valid"),
    ({"memories": []}, "not valid"),
    ({"query": None, "memories": []}, "not valid"),
    ({"signals": None}, "not valid"),
    ({"query": "Is it open?", "memories": [], "memorys": []}, "'memorys' was unexpected"),
    ({"query": "Is it open?", "memories": "It is."}, "'It is.' is not of type"),
    ({"query": "Is it open?", "memories": [7]}, "7 is not valid"),
    ({"query": "Is it open?", "memories": [{"id": "a"}]}, "not valid"),
    ({"query": "Is it open?", "memories": [{"text": "It is.", "sorce": "web"}]}, "not valid"),
    ({"query": "Is it open?", "memories": [{"text": None}]}, "not valid"),
    ({"query": "Is it open?", "memories": [], "risk": "high"}, "'high' is not of type"),
    ({"query": "Is it open?", "memories": [], "risk": True}, "True is not of type"),
    ({"query": "Is it open?", "memories": [], "category": 5}, "5 is not of type"),
    ({"query": "Is it open?", "memories": [], "meta": "mine"}, "'mine' is not of type"),
    ({"query": 5, "memories": []}, "5 is not of type"),
    ({"query_embedding": [], "memories": []}, "non-empty"),
    ({"query_embedding": ["a"], "memories": []}, "'a' is not of type"),
    ({"signals": {"relevance": 0.7, "reliability": 0.3}}, "'risk' is a required property"),
    ({"signals": {"relevance": "0.7", "reliability": 0.3, "risk": 0.5}}, "'0.7' is not of type"),
    ({"signals": {"relevance": 0.7, "reliability": 0.3, "risk": 0.5, "riks": 1}}, "'riks' was unexpected"),
]


@pytest.mark.parametrize("line", GOOD)
def test_schema_and_reader_accept_good_input(line):
    INPUT.validate(line)
    Retrieval.parse(line)


@pytest.mark.parametrize(("line", "message"), BAD)
def test_schema_and_reader_refuse_bad_input(line, message):
    errors = [error.message for error in INPUT.iter_errors(line)]
    assert any(message in error for error in errors), errors
    with pytest.raises((TypeError, ValueError)):
        Retrieval.parse(line)


@pytest.mark.parametrize(
    "line",
    [
        {"query": "Is it open?", "memories": [], "risk": 1.2},
        {"query": "Is it open?", "memories": [], "risk": -0.1},
        {"signals": {"relevance": 1.2, "reliability": 0.3, "risk": 0.5}},
        {"signals": {"relevance": 0.7, "reliability": -0.3, "risk": 0.5}},
        {"signals": {"relevance": 0.7, "reliability": 0.3, "risk": 1.5}},
    ],
)
def test_schema_refuses_values_out_of_range(line):
    (error,) = INPUT.iter_errors(line)
    assert "than the m" in error.message  # greater than the maximum, less than the minimum


def test_output_accepts_a_decision_and_an_error_line():
    OUTPUT.validate(decision_line())
    OUTPUT.validate(ERROR_LINE)
    OUTPUT.validate({**ERROR_LINE, "id": "q9"})


def test_output_accepts_what_could_not_be_measured():
    unmeasured = edited(decision_line(), ["memories", 0, "similarity"], None)
    OUTPUT.validate({**unmeasured, "relevance_raw": None, "audit": None})


def test_output_accepts_the_line_of_ready_signals():
    nothing = dict.fromkeys(("relevance_raw", "agreement", "conflict_rate", "encoder"))
    empty = {key: [] for key in ("injected", "memories", "conflicts", "truncated", "reasons")}
    OUTPUT.validate({**decision_line(), **nothing, **empty, "conflict_count": 0, "risk_rule": "explicit"})


@pytest.mark.parametrize("rule", ["explicit", "default", "category: Confusion: People", "keyword: finance (401(k))"])
def test_output_accepts_the_rules_of_the_risk_policy(rule):
    OUTPUT.validate({**decision_line(), "risk_rule": rule})


@pytest.mark.parametrize("status", ["valid", "none", "void"])
def test_output_accepts_the_states_of_a_certificate(status):
    OUTPUT.validate({**decision_line(), "certificate": status})


def test_the_schema_tells_what_the_total_is_of_several_bases():
    total = OUTPUT.schema["$defs"]["audit"]["properties"]["energy"]["properties"]["total"]
    assert "of several bases the mean" in total["description"]


@pytest.mark.parametrize("field", sorted(decision_line()))
def test_output_needs_every_field_of_a_decision(field):
    line = decision_line()
    del line[field]
    assert not OUTPUT.is_valid(line)


@pytest.mark.parametrize("field", sorted(ERROR_LINE))
def test_output_needs_every_field_of_an_error_line(field):
    assert not OUTPUT.is_valid({key: value for key, value in ERROR_LINE.items() if key != field})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema_version"], 2),
        (["id"], 7),
        (["action"], "ACTIVE"),
        (["relevance"], 1.0000001),
        (["relevance"], None),
        (["relevance_raw"], 1.5),
        (["reliability"], -0.1),
        (["conflict_rate"], 1.1),
        (["risk_rule"], "because"),
        (["certificate"], "proved"),
        (["certificate"], None),
        (["detector"], None),
        (["risk_policy"], ""),
        (["require_relevant"], 1),
        (["thresholds"], [0.6, 0.4]),
        (["status"], -1),
        (["reasons"], ["Not a name"]),
        (["injected"], [0]),
        (["memories", 0, "relevant"], 1),
        (["memories", 0, "text"], "no texts in the output"),
        (["conflicts", 0, "evidence"], "can't"),
        (["conflict_count"], 0.5),
        (["audit", "energy", "total"], -1),
        (["audit", "contributions", "relevance"], None),
        (["audit", "boundary", "nearest", "between"], ["supp"]),
        (["audit", "boundary", "change", "risk"], None),
        (["audit", "boundary", "change", "risk", "to_action"], "flee"),
        (["extra"], 1),
        (["error"], "both at once"),
    ],
    ids=str,
)
def test_output_refuses(path, value):
    assert not OUTPUT.is_valid(edited(decision_line(), path, value))


@pytest.mark.parametrize(
    "line", [{**ERROR_LINE, "line": 0}, {**ERROR_LINE, "error": ""}, {**ERROR_LINE, "error": {"type": "ValueError"}}]
)
def test_output_refuses_error_lines(line):
    assert not OUTPUT.is_valid(line)


def test_a_missing_data_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"mdl_torch ships no data file 'nothing\.json'"):
        resource("nothing.json")
