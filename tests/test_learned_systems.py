"""Supervised controllers as systems: what they are trained on, and what they ask."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from mdl_torch.evaluation.controllers import CONTROLLERS
from mdl_torch.evaluation.systems.base import Answer
from mdl_torch.evaluation.systems.learned import LearnedDecision
from mdl_torch.generation.backend import Completion
from mdl_torch.generation.prompts import ask, inject

TEA = "What is tea?"
MEMORIES = ["Tea is a drink.", "Tea is a metal."]
SAFE = ("correct", "abstention", "other")


def record(system: str, signals, outcome: str | None, *, injected: bool | None = None) -> dict:
    return {
        "system": system,
        "injected": system == "b2" if injected is None else injected,
        "outcome": outcome,
        "decision": dict(zip(("relevance", "reliability", "risk"), signals, strict=True)),
    }


def split(n: int = 60, seed: int = 0) -> tuple[np.ndarray, list[dict]]:
    """Records in which memories help exactly where M is above 0.5; at every fifth question they make no difference."""
    signals = np.random.default_rng(seed).random((n, 3)) * (1, 1, 0.6)
    records = []
    for place, row in enumerate(signals.tolist()):
        helps, idle = row[0] > 0.5, place % 5 == 0
        records.append(record("b1", row, "hallucination" if helps and not idle else SAFE[place % 3]))
        records.append(record("b2", row, SAFE[place % 3] if helps or idle else "hallucination"))
    return signals, records


def item_of(relevance: float, memories=MEMORIES, risk: float = 0.2):
    decision = SimpleNamespace(relevance=relevance, reliability=0.5, risk=risk)
    return SimpleNamespace(question=SimpleNamespace(text=TEA), memories=list(memories), decision=decision)


def driven(system, item):
    """What it asks, and its answer to the reply "It is wet."."""
    steps = system.answer(item)
    prompt = next(steps)
    with pytest.raises(StopIteration) as done:
        steps.send(Completion("It is wet.", "stop", 1, 1, 0.0, "scripted"))
    return prompt, done.value.value


@pytest.fixture(scope="module", params=["lr", "mlp", "xgboost", "tree", "rule"])
def system(request):
    return LearnedDecision(request.param).fit(split(300)[1])


# ------------------------------------------------------------------------------------------------------------ to answer


def test_adopting_asks_with_all_memories(system):
    prompt, answer = driven(system, item_of(0.95))
    assert prompt == inject(TEA, MEMORIES)
    assert answer == Answer("It is wet.", injected=True, notes={"decision": "adopt", **probability(system, 0.95)})
    assert answer.notes["probability"] >= 0.5


def test_rejecting_asks_the_model_alone(system):
    prompt, answer = driven(system, item_of(0.05))
    assert prompt == ask(TEA)
    assert answer == Answer("It is wet.", injected=False, notes={"decision": "reject", **probability(system, 0.05)})
    assert answer.notes["probability"] < 0.5


def test_adopting_an_empty_store_asks_the_model_alone(system):
    prompt, answer = driven(system, item_of(0.95, memories=()))
    assert prompt == ask(TEA)
    assert answer == Answer("It is wet.", injected=False, notes={"decision": "adopt", **probability(system, 0.95)})
    assert driven(system, item_of(0.05, memories=()))[1].notes["decision"] == "reject"


def probability(system, relevance: float) -> dict[str, float]:
    """P(adopt) of a controller that is fitted here to the oracle's labels, written down by hand."""
    signals, records = split(300)
    labels = []
    for one in records:
        safe = one["outcome"] != "hallucination"
        labels.append(safe == (one["system"] == "b2"))
    own = CONTROLLERS[system.name]().fit(np.repeat(signals, 2, axis=0), labels)
    return {"probability": round(float(own.probability([[relevance, 0.5, 0.2]])[0]), 6)}


def test_each_signal_is_in_its_place():
    rows = [(m, r, a) for m in (0.1, 0.9) for r in (0.2, 0.8) for a in (0.0, 0.3)]
    for place, name in enumerate(("relevance", "reliability", "risk")):
        middle = (0.5, 0.5, 0.15)[place]
        records = [
            record(one, row, "correct" if (row[place] > middle) == (one == "b2") else "hallucination")
            for row in rows
            for one in ("b1", "b2")
        ]
        fitted = LearnedDecision("tree").fit(records)
        item = item_of(0.5)
        for value in (0.0, 1.0):
            setattr(item.decision, name, value)
            assert driven(fitted, item)[1].notes == {"decision": "adopt" if value else "reject", "probability": value}


def test_the_rule_decides_itself_where_its_score_says_otherwise():
    """High risk is rejected though every label says adopt."""
    rule = LearnedDecision("rule").fit(
        [record("b1", (0.9, 0.5, 0.9), "hallucination"), record("b2", (0.9, 0.5, 0.9), "correct")]
    )
    assert driven(rule, item_of(0.9, risk=0.9)) == (
        ask(TEA),
        Answer("It is wet.", injected=False, notes={"decision": "reject", "probability": 1.0}),
    )


# ------------------------------------------------------------------------------------------------------------- to learn


@pytest.mark.parametrize("name", CONTROLLERS)
def test_it_is_named_after_its_controller_and_learns(name):
    system = LearnedDecision(name)
    assert (system.name, system.gate, system.learns) == (name, None, True)
    assert (system.identity, system.description()) == ("not fitted", {})
    with pytest.raises(RuntimeError, match=f"system '{name}' is not fitted"):
        system.answer(item_of(0.5))


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_fit_leaves_the_system_alone(name):
    system = LearnedDecision(name)
    first, second = system.fit(split()[1]), system.fit(split(seed=1)[1])
    assert (system.identity, system.description()) == ("not fitted", {})
    with pytest.raises(RuntimeError):
        system.answer(item_of(0.5))
    before = first.identity, first.description(), driven(first, item_of(0.7))
    again = first.fit(split(seed=1)[1])
    assert (first.identity, first.description(), driven(first, item_of(0.7))) == before
    assert (again.identity, again.description()) == (second.identity, second.description())
    assert type(first) is LearnedDecision
    assert first.name == name


@pytest.mark.parametrize("name", CONTROLLERS)
def test_the_identity_is_that_of_the_training_rows(name):
    records = split()[1]
    identity = LearnedDecision(name).fit(records).identity
    assert LearnedDecision(name).fit(records[::-1]).identity == identity
    assert len(identity) == 16
    flipped = [*records[1:], {**records[0], "outcome": "hallucination" if records[0]["outcome"] in SAFE else "correct"}]
    moved = [{**records[0], "decision": {**records[0]["decision"], "risk": 0.61}}, *records[1:]]
    others = {
        LearnedDecision(name).fit(rows).identity for rows in (flipped, moved, records[1:], [*records, records[0]])
    }
    assert len(others) == 4
    assert identity not in others


def test_the_identity_is_that_of_the_method(monkeypatch):
    records = split()[1]
    found = {name: LearnedDecision(name).fit(records).identity for name in CONTROLLERS}
    assert len(set(found.values())) == len(CONTROLLERS)
    for name in CONTROLLERS:
        kind = CONTROLLERS[name]
        with monkeypatch.context() as patch:
            patch.setattr(kind, "library", "scikit-learn 99")
            assert LearnedDecision(name).fit(records).identity != found[name]
    monkeypatch.setattr(CONTROLLERS["lr"], "settings", {**CONTROLLERS["lr"].settings, "C": 2.0})
    assert LearnedDecision("lr").fit(records).identity != found["lr"]


def test_other_systems_and_answers_without_a_label_are_left_out():
    records = split()[1]
    plain = LearnedDecision("lr").fit(records)
    more = [
        record("b1", (0.1, 0.2, 0.3), "empty"),
        record("b2", (0.1, 0.2, 0.3), None),
        *(record("b3", (0.9, 0.9, 0.1), "hallucination", injected=True) for _ in range(30)),
    ]
    fitted = LearnedDecision("lr").fit([*more, *records])
    assert fitted.identity == plain.identity
    assert fitted.description() == plain.description()


def test_a_store_that_was_empty_has_two_answers_without_memories():
    """Both are B1's: what is injected decides, not the system's name."""
    rows = [record("b1", (0.0, 0.5, 0.2), "correct"), record("b2", (0.0, 0.5, 0.2), "correct", injected=False)]
    assert LearnedDecision("majority_class").fit(rows).description()["learned"] == {"constant": 0.0}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_the_description_accounts_for_the_fit(name):
    records = split(40)[1]
    fitted = LearnedDecision(name).fit(records)
    found = fitted.description()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    labels = [(one["outcome"] != "hallucination") == (one["system"] == "b2") for one in records]
    assert (found["controller"], found["rows"]) == (name, 80)
    assert found["share of adopt"] == round(np.mean(labels), 4)
    assert found["settings"] == CONTROLLERS[name].settings
    if name in ("tree", "rule"):  # the best there is: half of the rows that contradict each other are wrong
        assert found["agreement with the oracle"] == 0.9
    if name == "majority_class":
        assert found["agreement with the oracle"] == round(max(np.mean(labels), 1 - np.mean(labels)), 4)
    found["learned"].clear()
    assert fitted.description()["learned"], "what it hands out is a copy"


def test_what_the_rule_and_the_regression_learned_is_said():
    signals, records = split(100)
    t = LearnedDecision("rule").fit(records).description()["learned"]["t"]
    used = np.delete(signals[:, 0], np.s_[::5])
    assert used[used <= 0.5].max() < t < used[used > 0.5].min()
    learned = LearnedDecision("lr").fit(records).description()["learned"]
    assert learned["coefficients"]["M"] > 2 > abs(learned["coefficients"]["R"])


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "records must be of b1 and b2 on a calibration split, got none"),
        ([record("b1", (0.5, 0.5, 0.5), "correct")], "got b1$"),
        ([record("b3", (0.5, 0.5, 0.5), "correct"), record("b2", (0.5, 0.5, 0.5), "correct")], "got b2, b3$"),
        ([record("b1", (0.5, 0.5, 0.5), "empty"), record("b2", (0.5, 0.5, 0.5), None)], "every answer is empty or"),
        ([record("b1", (0.5, 2.0, 0.5), "correct"), record("b2", (0.5, 0.5, 0.5), "correct")], "got R = 2 in row 0"),
    ],
)
def test_records_that_teach_nothing_are_refused(records, message):
    with pytest.raises(ValueError, match=message):
        LearnedDecision("rule").fit(records)


def test_an_unknown_controller_is_named():
    with pytest.raises(ValueError, match="unknown controller 'xgbost'; did you mean 'xgboost'"):
        LearnedDecision("xgbost")
