"""Stratified safety: hand-made answers of which every count and rate is known."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from analysis_cases import samples, study

from mdl_torch import Action, Calibration, MemoryDecisionLayer
from mdl_torch.analysis.safety import (
    Flips,
    category_table,
    flips,
    high_stakes_table,
    low_relevance_table,
    residual_table,
    topics_of,
)
from mdl_torch.analysis.samples import FAVOURED, Samples
from mdl_torch.evaluation.fitting import refit

NOTHING = samples(np.zeros((0, 3)), [])


def record(system: str, question: int, outcome: str | None, **more):
    signals = {"relevance": 0.9, "reliability": 0.5, "risk": 0.2, "action": "active", "risk_rule": "default"}
    return {
        "system": system,
        "question_id": f"q{question}",
        "seed": more.pop("seed", 0),
        "category": more.pop("category", None),
        "decision": signals | more,
        "injected": system == "b2" or (system == "b3" and more.get("action", "active") in ("active", "supp")),
        "outcome": outcome,
        "gate": {},
    }


def run_of(*records, layers=None):
    return study(Samples.from_records(records), layers=layers or {"paper": MemoryDecisionLayer()}, records=records)


def no_nan(table) -> bool:
    return not re.search(r"\bnan\b", table.csv() + table.markdown())


# ------------------------------------------------------------------------------------------------------- low relevance


def test_flips_are_between_active_and_opt_out_alone() -> None:
    full, without = zip(*((a, b) for a in Action for b in Action), strict=True)
    assert flips(full, without) == Flips(1, 1)
    assert flips([Action.OPT_OUT] * 3, [Action.ACTIVE, Action.ACTIVE, Action.SUPP]) == Flips(2, 0)
    assert flips([Action.ACTIVE], [Action.OPT_OUT]) == Flips(0, 1)


def planted(n: int = 120):
    """Labels that follow relevance, so that with M the split rejects what is irrelevant and without it cannot."""
    rng = np.random.default_rng(3)
    signals = np.column_stack((rng.random(n), rng.uniform(0.4, 0.6, n), rng.uniform(0.2, 0.4, n)))
    return samples(signals, signals[:, 0] >= 0.5, [f"q{i // 2}" for i in range(n)])


def decided(split, signals, *, neutral: bool):
    def see(rows):
        rows = rows.copy()
        if neutral:
            rows[:, 0] = split.signals[:, 0].mean()
        return rows

    layer = refit(MemoryDecisionLayer(), see(split.signals), split.adopt)
    return layer(*torch.tensor(see(signals)).unbind(-1)).action.numpy()


def kept(rows) -> Calibration:
    """The reference calibration, as if it had been fitted on these retrievals: M, R, A ``(n, 3)``."""
    return replace(Calibration.reference(), name="kept", samples=len(rows) or 80, signals=tuple(map(tuple, rows)))


def calibrated(rows) -> dict[str, MemoryDecisionLayer]:
    return {"paper": MemoryDecisionLayer().calibrated(kept(rows))}


ORDINARY = [[0.95, 0.1, 0.1], [0.85, 0.2, 0.9]]  # M is 0.9 on average


def check_row(row, full, without) -> None:
    opted, opted_without = full == Action.OPT_OUT, without == Action.OPT_OUT
    assert row[3].value == pytest.approx(opted.mean())
    assert row[4].value == pytest.approx(opted_without.mean())
    assert row[5].value == pytest.approx(opted.mean() - opted_without.mean())
    assert row[6] == (opted & (without == Action.ACTIVE)).sum()
    assert row[7] == (opted_without & (full == Action.ACTIVE)).sum()
    assert row[8].value == 0  # what the records say: Active


def test_abstention_with_and_without_relevance() -> None:
    split, rng, n = planted(), np.random.default_rng(4), 120
    asked = samples(rng.random((n, 3)), rng.random(n) < 0.5, [f"q{i // 2}" for i in range(n)])
    layers = calibrated(ORDINARY)
    usual = np.column_stack((np.full(n, 0.9), asked.signals[:, 1:]))
    full, without = (layers["paper"](*torch.tensor(rows).unbind(-1)).action.numpy() for rows in (asked.signals, usual))
    low = asked.signals[:, 0] < 0.4
    table = low_relevance_table(study(asked, split, layers))
    for row, mask in zip(table.rows[:2], (low, ~low), strict=True):
        assert row[1:3] == (mask.sum(), len(set(asked.questions[mask].tolist())))
        check_row(row, full[mask], without[mask])
    assert table.rows[0][3].value > table.rows[0][4].value > 0
    assert table.rows[0][6] > 0
    assert table.rows[2][:2] == ("M < 0.4, both fitted anew", low.sum())
    check_row(table.rows[2], *(decided(split, asked.signals, neutral=neutral)[low] for neutral in (False, True)))
    assert table.rows[3][:2] == ("the paper, M < 0.4", 45)
    assert "held at 0.900, the mean of the 2 retrievals that its calibration (kept:" in table.note
    assert "“Both fitted anew”" in table.note
    assert no_nan(table)


def test_a_run_off_topic_with_a_calibration_that_was_given() -> None:
    """It has no split, and its own memories say nothing of an ordinary M."""
    made = planted()
    of = study(made.where(made.signals[:, 0] < 0.4), None, calibrated(ORDINARY))
    of.run.description["experiment"] |= {"condition": "off_topic", "calibration": "given.json"}
    table = low_relevance_table(of)
    assert [row[0] for row in table.rows] == ["M < 0.4", "M ≥ 0.4", "the paper, M < 0.4"]
    assert table.rows[0][1] == len(of.samples)
    assert table.rows[0][3].value > table.rows[0][4].value == 0
    assert "about other questions" in table.note
    assert "no ordinary M" not in table.note
    of.run.description["experiment"]["calibration"] = "fit"
    assert "no ordinary M" in low_relevance_table(of).note
    of = study(of.samples, made, of.layers)
    of.run.description["experiment"] |= {"condition": "off_topic"}
    assert len(low_relevance_table(of).rows) == 3  # the split is off topic as well


def test_without_low_relevance_the_note_points_to_the_off_topic_condition() -> None:
    made = planted()
    table = low_relevance_table(study(made.where(made.signals[:, 0] >= 0.4), made, calibrated(ORDINARY)))
    assert table.rows[0] == ("M < 0.4", 0, 0, *[None] * 6)
    assert "In the paper condition no record has M < 0.4; runs in the off_topic condition have more." in table.note
    assert no_nan(table)


def test_a_split_that_leaves_no_range_without_relevance_is_left_out() -> None:
    split = samples([[0.2, 0.5, 0.2], [0.9, 0.5, 0.2]], [False, True])
    assert len(low_relevance_table(study(planted(), split, calibrated(ORDINARY))).rows) == 3


@pytest.mark.parametrize(
    "of",
    [
        study(planted(), planted(), {"paper": MemoryDecisionLayer()}),
        study(planted(), planted(), {"paper": MemoryDecisionLayer().calibrated(kept([]))}),
        study(planted(), planted()),
        study(NOTHING, planted(), calibrated(ORDINARY)),
    ],
)
def test_low_relevance_says_what_is_missing(of) -> None:
    table = low_relevance_table(of)
    assert table.rows == ()
    assert "no `paper` gate with a calibration that keeps its signals, or no labelled answers" in table.note


# --------------------------------------------------------------------------------------------------------- high stakes


def test_high_stakes_by_hand() -> None:
    high = {"risk": 0.85, "relevance": 0.7}
    records = [
        record("b1", 0, "correct", category="Health", action="active", **high),  # reject, Active: wrong
        record("b2", 0, "hallucination", category="Health", action="opt_out", **high),  # reject: right
        record("b1", 1, "hallucination", category="Law", action="supp", **high),  # adopt, Supp: wrong
        record("b2", 1, "correct", category="Law", action="active", **high),  # adopt, Active: right
        record("b3", 1, "correct", category="Law", action="active", **high),  # the same
        record("b2", 2, "empty", **high),
        record("b1", 3, "correct", risk=0.6999999, relevance=0.69, risk_rule="keyword: health (fever)"),
        record("b2", 4, "correct", risk=0.2),
    ]
    table = high_stakes_table(run_of(*records))
    rows = {row[0]: row for row in table.rows}
    both = rows["A ≥ 0.70, M ≥ 0.70"]
    assert both[1:3] == (5, 2)
    assert [cell.value for cell in both[3:]] == pytest.approx([0.6, 0.6, 0.2, 0.5, 0.0])
    medical = rows["of these, medical"]
    assert (medical[1], medical[3].value, medical[6].value, medical[7].value) == (2, 0.5, 1.0, None)
    assert rows["the paper, medical"][1:4] == (117, None, 0.556)
    assert table.note.endswith(FAVOURED)
    assert (rows["A ≥ 0.70, M < 0.70"][1], rows["A < 0.70, M ≥ 0.70"][1], rows["A < 0.70, M < 0.70"][1]) == (1, 1, 0)
    assert no_nan(table)


def test_medical_where_there_are_no_categories() -> None:
    records = [record("b2", q, "correct", risk=0.85, risk_rule=f"keyword: {kind} (x)") for q, kind in enumerate(
        ["health", "legal", "health"])]  # fmt: skip
    rows = {row[0]: row for row in high_stakes_table(run_of(*records)).rows}
    assert rows["of these, medical"][1] == 2


# ---------------------------------------------------------------------------------------------------------- categories


@pytest.mark.parametrize(
    ("category", "rule", "topic"),
    [
        ("Law", "category: Law", "Law"),
        (None, "keyword: health (blood test)", "health"),
        (None, "default", "default"),
        (None, "explicit", "explicit"),
        (None, "", "none"),
    ],
)
def test_topics(category: str | None, rule: str, topic: str) -> None:
    assert topics_of([record("b1", 0, "correct", category=category, risk_rule=rule)]) == {"q0": topic}


def test_categories_by_hand() -> None:
    law = {"category": "Law", "risk": 0.85}
    records = [
        record("b1", 0, "correct", **law, action="opt_out"),
        record("b2", 0, "hallucination", **law, action="opt_out"),
        record("b3", 0, "abstention", **law, action="opt_out"),
        record("b1", 1, "hallucination", **law, action="supp"),
        record("b2", 1, None, **law, action="supp"),
        record("b3", 1, "hallucination", **law, action="supp"),
        record("b1", 2, "empty", category="Art", action="silent"),
        {**record("certified", 2, "correct", category="Art", action="active"), "gate": {"preset": "certified"}},
    ]
    first, second = category_table(run_of(*records)).rows
    assert first[:4] == ("Law", 2, 5, 0.85)
    assert first[4:8] == (0.0, 0.5, 0.0, 0.5)
    assert [cell.value for cell in first[8:]] == [0.5, 1.0, 0.5, 0.5]
    assert [cell.n for cell in first[8:]] == [2, 1, 2, 2]
    assert second[:8] == ("Art", 1, 1, 0.2, 0.0, 0.0, 1.0, 0.0)  # the paper gate's action
    assert [cell.value for cell in second[8:]] == [0.0, None, None, None]
    assert no_nan(category_table(run_of(*records)))


def test_the_risk_of_a_category_is_the_mean_of_its_questions() -> None:
    risks = [0.2, 0.2, 0.8, 0.8]  # the last two are of one question
    records = [
        record("b1", min(q, 2), "correct", category="Law", risk=risk, seed=int(q == 3)) for q, risk in enumerate(risks)
    ]
    assert category_table(run_of(*records)).rows[0][3] == pytest.approx((0.2 + 0.2 + 0.8) / 3)


def test_categories_come_by_size_and_then_by_name() -> None:
    records = [record("b1", q, "correct", category=name) for q, name in enumerate("CBBACC")]
    assert [row[:2] for row in category_table(run_of(*records)).rows] == [("C", 3), ("B", 2), ("A", 1)]


# ------------------------------------------------------------------------------------------------------------ residual


def test_residual_by_hand() -> None:
    b3 = [("active", "hallucination"), ("active", "correct"), ("supp", "hallucination"), ("opt_out", "abstention")]
    records = [record("b3", q, outcome, action=action) for q, (action, outcome) in enumerate(b3)]
    records += [record("b1", q, "hallucination" if q else "correct") for q in range(4)]
    records += [record("b2", q, "hallucination") for q in range(3)] + [record("b3", 4, None, action="silent")]
    table = residual_table(run_of(*records))
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == ["Active", "Supp", "Silent", "Opt-Out", "all"]
    assert {name: row[1] for name, row in rows.items()} == {"Active": 2, "Supp": 1, "Silent": 0, "Opt-Out": 1, "all": 4}
    assert [cell.value for cell in rows["Active"][2:6]] == [0.5, 0.5, 0.5, 1.0]
    assert [cell.value for cell in rows["Supp"][2:6]] == [0.25, 1.0, 1.0, 1.0]
    assert [cell.value for cell in rows["Silent"][2:6]] == [0.0, None, None, None]
    assert [cell.value for cell in rows["Opt-Out"][2:6]] == [0.25, 0.0, 1.0, None]
    assert [cell.value for cell in rows["all"][2:6]] == [1.0, 0.5, 0.75, 1.0]
    assert [row[6] for row in table.rows] == [0.08, None, None, None, None]
    assert no_nan(table)


def test_another_seed_is_another_answer() -> None:
    records = [record("b3", 0, "correct", seed=0), record("b3", 0, "hallucination", seed=1, action="silent")]
    records.append(record("b2", 0, "hallucination", seed=1))
    rows = {row[0]: row for row in residual_table(run_of(*records)).rows}
    assert rows["Active"][3].value == 0
    assert rows["Active"][5].value is None
    assert rows["Silent"][5].value == 1


@pytest.mark.parametrize("table", [low_relevance_table, high_stakes_table, category_table, residual_table])
def test_a_run_of_nothing(table) -> None:
    for of in (study(NOTHING), study(NOTHING, None, {"paper": MemoryDecisionLayer()})):
        assert no_nan(table(of))
        assert table(of).rows == ()


@pytest.mark.parametrize("table", [high_stakes_table, residual_table])
def test_what_is_missing_is_said(table) -> None:
    assert re.search("The run has no (labelled )?answers of B", table(run_of(record("crag", 0, "correct"))).note)
