"""The shipped sample of retrievals: valid input of `mdl score`, varied as retrievals in practice are."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime

import pytest
from jsonschema import Draft202012Validator

from mdl_torch.data import read_text
from mdl_torch.encoder import SentenceEncoder
from mdl_torch.gate import MemoryGate
from mdl_torch.outputs import Action
from mdl_torch.records import DecisionRecord
from mdl_torch.retrieval import Retrieval
from mdl_torch.risk import RiskPolicy

SCHEMA = Draft202012Validator(json.loads(read_text("input.schema.json")))
LINES = read_text("sample.jsonl").splitlines()
RECORDS = [json.loads(line) for line in LINES]
BY_STORE = {
    store: [r for r in RECORDS if r["meta"]["store"] == store] for store in {r["meta"]["store"] for r in RECORDS}
}


def texts(record):
    return [memory if isinstance(memory, str) else memory["text"] for memory in record["memories"]]


def timestamps(record):
    return [memory["timestamp"] for memory in record["memories"] if isinstance(memory, dict) and "timestamp" in memory]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_line_is_valid(record):
    SCHEMA.validate(record)
    assert set(record["meta"]) == {"domain", "store"}


def test_ids_are_unique():
    assert len({r["id"] for r in RECORDS}) == len(RECORDS) >= 60
    for record in RECORDS:
        ids = [memory["id"] for memory in record["memories"] if isinstance(memory, dict) and "id" in memory]
        assert len(set(ids)) == len(ids), record["id"]


def test_domains_and_stores_are_all_there():
    domains = Counter(r["meta"]["domain"] for r in RECORDS)
    assert set(domains) == {
        "medicine",
        "law",
        "finance",
        "conspiracy",
        "api_docs",
        "company_policy",
        "personal_assistant",
        "sport",
        "trivia",
    }
    assert min(domains.values()) >= 5
    expected = {"agreeing", "conflicting", "outdated", "off_topic", "duplicate", "empty", "single", "foreign_language"}
    assert set(BY_STORE) == expected
    assert min(map(len, BY_STORE.values())) >= 5


def test_stores_are_what_they_are_called():
    for record in RECORDS:
        store, memories = record["meta"]["store"], texts(record)
        assert (store == "empty") == (len(memories) == 0), record["id"]
        assert (store == "single") == (len(memories) == 1), record["id"]
        alike = len({text.lower().replace(";", ".") for text in memories})
        assert (store == "duplicate") == (alike < len(memories)), record["id"]
        if store == "outdated":
            dates = [datetime.fromisoformat(t) for t in timestamps(record)]
            assert len(dates) == len(memories) > 1, record["id"]
            assert len(set(dates)) == len(dates), record["id"]


def test_memories_are_texts_and_objects_short_and_long():
    memories = [memory for record in RECORDS for memory in record["memories"]]
    assert min(sum(isinstance(m, kind) for m in memories) for kind in (str, dict)) >= 50
    assert {key for m in memories if isinstance(m, dict) for key in m} == {"id", "text", "source", "timestamp", "score"}
    lengths = [len(text.split()) for record in RECORDS for text in texts(record)]
    assert min(lengths) <= 5
    assert max(lengths) >= 40


def test_every_way_to_a_risk_occurs():
    policy = RiskPolicy.default()
    assessed = [policy.assess(r["query"], category=r.get("category"), risk=r.get("risk")) for r in RECORDS]
    ways = Counter(a.rule.partition(":")[0] for a in assessed)
    assert set(ways) == {"explicit", "category", "keyword", "default"}
    assert min(ways.values()) >= 8
    tiers = Counter(a.tier for a in assessed)
    assert min(tiers[name] for name in ("low", "medium", "high")) >= 8
    keyword_tiers = {a.rule.split()[1] for a in assessed if a.rule.startswith("keyword")}
    assert keyword_tiers == {"health", "legal", "finance", "science"}


def test_two_other_languages():
    ids = [r["id"] for r in BY_STORE["foreign_language"]]
    german = [
        r
        for r in BY_STORE["foreign_language"]
        if {"der", "die", "darf", "wie"} & set(r["query"].lower().split()) or "ß" in r["query"]
    ]
    spanish = [r for r in BY_STORE["foreign_language"] if r["query"].startswith("¿")]
    assert len(german) == len(spanish) == 3
    assert len(ids) == 6


def test_lines_are_plain_json_in_one_form():
    for line, record in zip(LINES, RECORDS, strict=True):
        assert json.dumps(record, ensure_ascii=False, allow_nan=False) == line


@pytest.fixture(scope="module")
def decided(encoder: SentenceEncoder) -> dict[str, DecisionRecord]:
    """What the gate makes of the sample, with its defaults."""
    gate = MemoryGate.from_pretrained(encoder)
    return {record.id: record for record in gate.records([Retrieval.parse(r) for r in RECORDS])}


def test_all_four_actions_occur(decided):
    assert {record.action for record in decided.values()} == set(Action)


def test_empty_stores_inject_nothing(decided):
    for line in BY_STORE["empty"]:
        assert decided[line["id"]].action >= Action.SILENT
        assert "no_memory" in decided[line["id"]].reasons


def test_other_languages_are_told_and_english_is_not(decided):
    for record in RECORDS:
        foreign = record["meta"]["store"] == "foreign_language"
        assert ("language_unsupported" in decided[record["id"]].reasons) == foreign, record["id"]


def test_conflicts_are_found_where_they_were_planted(decided):
    """Most of them: the detector reads words, and the sample keeps two that it misses."""
    found = [decided[line["id"]].conflict_count > 0 for line in BY_STORE["conflicting"]]
    assert sum(found) >= 0.8 * len(found)


def test_time_does_not_count(decided):
    """The limit that the sample shows: with or without timestamps an outdated store is decided alike."""
    gate = MemoryGate.from_pretrained()
    injected = 0
    for line in BY_STORE["outdated"]:
        timeless = [{k: v for k, v in memory.items() if k != "timestamp"} for memory in line["memories"]]
        again = gate.records([Retrieval.parse({**line, "memories": timeless})])[0]
        assert again.action == decided[line["id"]].action
        injected += again.action <= Action.SUPP
    assert injected >= 1
