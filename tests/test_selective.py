"""Risk and coverage: areas known in closed form, ties by brute force, over-abstention of hand-made records."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from analysis_cases import samples, study
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl_torch.analysis.samples import Samples
from mdl_torch.analysis.selective import (
    BASELINES,
    area_of,
    area_table,
    curves,
    operating_point,
    operating_points,
    risk_coverage,
    scored,
    selective_table,
    ties,
)


def record(system: str, question: int, outcome: str | None, *, score: float = 0.5, seed: int = 0, **more):
    decision = {"relevance": 0.9, "reliability": 0.5, "risk": 0.2, "action": "active", "gated_confidence": score}
    return {
        "system": system,
        "question_id": f"q{question}",
        "seed": seed,
        "category": None,
        "decision": decision | more.pop("decision", {}),
        "injected": system != "b1",
        "outcome": outcome,
        "notes": {},
        **more,
    }


def run_of(*records):
    systems = tuple(dict.fromkeys(r["system"] for r in records))
    return study(Samples.from_records(records, systems), records=records)


# --------------------------------------------------------------------------------------------------------------- area


def test_perfect_order_has_the_best_area() -> None:
    found = risk_coverage("x", [0.9, 0.8, 0.7, 0.6], [False, False, True, True])
    assert found.coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert found.risk == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert found.area == pytest.approx((1 / 3 + 1 / 2) / 4)
    assert found.best == pytest.approx(found.area)
    assert found.excess == pytest.approx(0)


def test_reversed_order_has_the_worst_area() -> None:
    found = risk_coverage("x", [0.6, 0.7, 0.8, 0.9], [False, False, True, True])
    assert found.risk == pytest.approx([1, 1, 2 / 3, 1 / 2])
    assert found.area == pytest.approx((1 + 1 + 2 / 3 + 1 / 2) / 4)
    assert found.excess == pytest.approx((2 + 1 / 3) / 4)


def test_a_constant_score_has_the_risk_of_answering_all() -> None:
    found = risk_coverage("x", [0.5] * 7, [True, False, False, True, False, False, False])
    assert found.risk == pytest.approx([2 / 7] * 7)
    assert found.area == pytest.approx(2 / 7)
    assert found.random == pytest.approx(2 / 7)


@pytest.mark.parametrize(("wrong", "area"), [([True] * 3, 1.0), ([False] * 3, 0.0)])
def test_where_order_cannot_matter(wrong: list[bool], area: float) -> None:
    found = risk_coverage("x", [0.1, 0.3, 0.2], wrong)
    assert found.area == found.best == found.random == pytest.approx(area)


ANSWERS = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=60)
@given(ANSWERS)
def test_ties_have_the_mean_area_of_all_their_orders(answers: list[tuple[int, bool]]) -> None:
    scores, wrong = (list(column) for column in zip(*answers, strict=True))
    risks = []
    for order in itertools.permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order)):
            risks.append([sum(wrong[i] for i in order[:k]) / k for k in range(1, len(order) + 1)])
    found = risk_coverage("x", scores, wrong)
    assert found.risk == pytest.approx(np.mean(risks, axis=0))
    assert found.area == pytest.approx(np.mean(risks))
    assert found.best - 1e-12 <= found.area


@given(ANSWERS)
def test_area_is_the_mean_of_the_curve_and_depends_on_the_order_alone(answers: list[tuple[int, bool]]) -> None:
    scores, wrong = (list(column) for column in zip(*answers, strict=True))
    found = risk_coverage("x", scores, wrong)
    assert found.area == pytest.approx(found.risk.mean())
    assert risk_coverage("x", [np.exp(7 * s) for s in scores], wrong[:]).area == found.area
    assert found.risk[-1] == pytest.approx(found.random)


def test_area_of_repeated_answers() -> None:
    errors, counts = np.array([[0, 2, 1], [0, 0, 3]]), np.array([[1, 2, 2], [3, 0, 3]])
    expected = [risk_coverage("x", np.repeat([3, 2, 1], c), flags).area for c, flags in zip(
        counts, ([0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]), strict=True)]  # fmt: skip
    assert area_of(errors, counts) == pytest.approx(expected)


@pytest.mark.parametrize("scores", [[], [float("nan")], [[0.5]]])
def test_scores_that_order_nothing_are_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="scores must be finite"):
        ties(scores)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hallucinated must be \(2,\)"):
        risk_coverage("x", [0.1, 0.2], [True])


# ---------------------------------------------------------------------------------------------------- operating points


RECORDS = [
    *(record("b1", q, outcome) for q, outcome in enumerate(["correct", "hallucination", "hallucination", "other"])),
    *(
        record("b2", q, outcome)
        for q, outcome in enumerate(["hallucination", "correct", "hallucination", "abstention"])
    ),
    *(
        record("b3", q, outcome)
        for q, outcome in enumerate(["abstention", "abstention", "abstention", "hallucination"])
    ),
    *(record("abstain", q, "abstention") for q in range(4)),
]


def test_over_abstention_by_hand() -> None:
    found = operating_point("b3", RECORDS)  # B1 knew q0, B2 knew q1, neither q2
    assert (found.answers, found.abstentions) == (4, 3)
    assert (found.coverage.value, found.coverage.n) == (0.25, 4)
    assert (found.risk.value, found.risk.n) == (1.0, 1)
    assert (found.over_abstention.value, found.over_abstention.n) == (0.5, 4)
    assert (found.of_abstentions.value, found.of_abstentions.n) == (pytest.approx(2 / 3), 3)


def test_who_always_abstains_does_so_most() -> None:
    points = {point.system: point for point in operating_points(run_of(*RECORDS))}
    assert list(points) == ["b1", "b2", "b3", "abstain"]
    assert points["abstain"].over_abstention.value == 0.5
    assert points["abstain"].risk.value is None
    assert points["b2"].abstentions == 1
    assert points["b2"].over_abstention.value == 0
    assert points["b1"].of_abstentions.value is None


def test_another_seed_knowing_is_not_enough() -> None:
    records = [*RECORDS, record("b1", 2, "correct", seed=1), record("b2", 2, "correct", seed=1)]
    assert operating_point("b3", records).over_abstention.value == 0.5


def test_unscored_and_empty_answers() -> None:
    records = [record("b3", 0, "empty"), record("b3", 1, None), record("b3", 2, "correct"), record("b3", 3, "other")]
    found = operating_point("b3", records)
    assert (found.answers, found.coverage.value, found.risk.value, found.abstentions) == (3, 2 / 3, 0.0, 0)
    assert found.over_abstention.value is None  # there is neither B1 nor B2


def test_slots_that_a_reference_lacks_do_not_count() -> None:
    records = [r for r in RECORDS if (r["system"], r["question_id"]) != ("b2", "q0")]
    assert operating_point("b3", records).over_abstention.n == 3
    alone = [r for r in RECORDS if r["system"] != "b2"]
    assert operating_point("b3", alone).over_abstention.value == 0.25


# --------------------------------------------------------------------------------------------------------------- a run


def many():
    """Of 20 questions B2 hallucinates in the last ten; b3 knows, `lr` has it the wrong way round, A knows too."""
    for q in range(20):
        bad = q >= 10
        signals = {"risk": 0.8 if bad else 0.2, "relevance": 0.9, "reliability": 0.5 + q / 100}
        outcome = "hallucination" if bad else "correct"
        yield record("b2", q, outcome, decision=signals)
        yield record("b3", q, "abstention" if bad else "correct", score=1 - q / 20, decision=signals)
        yield record("lr", q, outcome, decision=signals, notes={"probability": q / 20})
        yield record("crag", q, outcome, decision=signals, notes={"grade": "correct"})


def test_scores_of_a_run_are_judged_by_what_b2_said() -> None:
    found = {curve.system: curve for curve in curves(run_of(*many()))}
    assert list(found) == ["b3", "lr", *BASELINES]
    best = np.mean([max(0, k - 10) / k for k in range(1, 21)])
    worst = np.mean([min(k, 10) / k for k in range(1, 21)])
    assert found["b3"].area == pytest.approx(best)
    assert found["lr"].area == found["R alone"].area == pytest.approx(worst)
    assert found["M alone"].area == pytest.approx(0.5)
    assert found["1 − A alone"].area == pytest.approx((10 * 0 + sum((k - 10) / k for k in range(11, 21))) / 20)


def test_answers_of_b2_that_are_none_are_left_out() -> None:
    records = [*many(), record("b2", 20, "abstention"), record("b2", 21, "empty"), record("b2", 22, None)]
    assert {len(columns.scores) for columns in scored(run_of(*records, record("b3", 20, "correct")))} == {20}


def test_area_table_compares_with_relevance() -> None:
    rows = {row[0]: row for row in area_table(run_of(*many())).rows}
    perfect, best = rows["B3 MDL"], np.mean([max(0, k - 10) / k for k in range(1, 21)])
    assert perfect[1:2] == (20,)
    assert (perfect[2].value, perfect[3], perfect[4], perfect[5]) == pytest.approx((best, best, 0.5, 0))
    assert perfect[2].low < best < perfect[2].high
    assert perfect[6].value == pytest.approx(best - 0.5)
    assert perfect[6].interval.high < 0
    assert rows["logistic regression"][6].interval.low > 0
    assert rows["M alone"][6] is None


def test_selective_table_has_every_system() -> None:
    table = selective_table(run_of(*many()))
    assert [row[0] for row in table.rows] == ["B2 standard RAG", "B3 MDL", "logistic regression", "CRAG"]
    assert table.rows[1][2].value == 0.5


@pytest.mark.parametrize("records", [[], [record("b1", 0, "correct"), record("b3", 0, "abstention")]])
def test_without_answers_of_b2(records) -> None:
    of = run_of(*records) if records else study(samples(np.zeros((0, 3)), []))
    assert curves(of) == []
    assert area_table(of).rows == ()
    assert "no answers of B2" in area_table(of).note
    assert "nan" not in selective_table(of).csv().lower()


def test_one_answer_has_no_interval() -> None:
    table = area_table(run_of(record("b2", 0, "hallucination"), record("b3", 0, "abstention")))
    assert [row[2].low for row in table.rows] == [None] * 4
    assert "nan" not in table.csv()
