"""What is read from a run and what is made of it, on records written by hand whose rates are known."""

from __future__ import annotations

import json
import math
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch.evaluation.results import (
    GROUPS,
    PAPER_TEST,
    Rate,
    implied_degrees,
    paper_results,
    rate,
    read_run,
    summarise,
    weighting_fits,
)
from mdl_torch.evaluation.statistics import wilson

SAMPLING = {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 40, "stop": []}
GATES = {"paper": {"preset": "paper", "calibration": "fitted"}, "certified": {"preset": "certified"}}
RISKS = {"q0": 0.2, "q1": 0.5, "q2": 0.85, "q3": 0.75}
CODES = {"h": "hallucination", "c": "correct", "a": "abstention", "e": "empty", "o": "other", "?": None}
ACTIONS = {"q0": "active", "q1": "supp", "q2": "opt_out", "q3": "silent"}


def experiment(**changes):
    """``experiment.json``."""
    given = {
        "data": "folder/TruthfulQA.csv",
        "model": {"kind": "local", "model": "google/gemma-4-E4B-it"},
        "sampling": SAMPLING,
        "questions": 4,
        "seeds": [0],
        "systems": ["b1", "b2", "b3"],
        "condition": "paper",
        "calibration": "fit",
        "calibration_questions": 2,
        "at_top_risk": 0,
        "split_seed": 0,
        "store_seed": 0,
    }
    return {
        "experiment": given | changes,
        "label": "now",
        "revision": "r1",
        "backend": "gemma@1",
        "scorer": "embedding",
        "gates": GATES,
        "calibration_questions": ["c0", "c1"],
        "evaluated_questions": list(RISKS),
    }


def record(system="b1", question="q0", seed=0, outcome="h", **changes):
    gate = "certified" if system == "certified" else "paper"
    return {
        "key": f"{system}-{question}-{seed}",
        "experiment": "now",
        "data": "truthfulqa",
        "revision": "r1",
        "condition": "paper",
        "system": system,
        "gate": GATES[gate],
        "model": "gemma@1",
        "sampling": SAMPLING,
        "seed": seed,
        "question_id": question,
        "memories": [{"id": "m", "text": "Tea."}],
        "decision": {
            "action": ACTIONS.get(question, "active"),
            "relevance": 0.8,
            "reliability": 0.5,
            "risk": RISKS.get(question, 0.2),
            "reasons": [],
        },
        "answer": "So it is.",
        "injected": system == "b2",
        "notes": {},
        "calls": 1,
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "seconds": {"q0": 1.0, "q1": 2.0, "q2": 3.0, "q3": 10.0}.get(question, 1.0),
        "outcome": CODES[outcome],
        "failure": None,
    } | changes


def answers(seed=0, **codes):
    """Records of systems, one letter a question."""
    return [
        record(system, question, seed, code)
        for system, letters in codes.items()
        for question, code in zip(RISKS, letters, strict=True)
    ]


@pytest.fixture
def written(tmp_path):
    def write(records, described=None, tail=""):
        (tmp_path / "experiment.json").write_text(json.dumps(described or experiment()), "utf-8")
        lines = "".join(json.dumps(one) + "\n" for one in records)
        (tmp_path / "answers.jsonl").write_text(lines + tail, "utf-8")
        return tmp_path

    return write


def summary_of(folder):
    return summarise(read_run(folder), resamples=200)


# ------------------------------------------------------------------------------------------------------- the records


@pytest.mark.parametrize(
    "changes",
    [
        {"revision": "r0"},
        {"condition": "off_topic"},
        {"model": "another"},
        {"sampling": SAMPLING | {"temperature": 1.0}},
        {"gate": {"preset": "paper", "calibration": "exact-range"}},
        {"scorer": "judge"},
        {"store_seed": 1},
        {"seed": 5},
        {"system": "crag"},
        {"question_id": "c0"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_only_records_of_this_experiment_count(written, changes):
    run = read_run(written([record(), record(**changes), record(system="b2")]))
    assert [one["system"] for one in run.records] == ["b1", "b2"]
    assert (run.foreign, run.duplicates, run.damaged) == (1, 0, 0)


def test_a_record_of_an_earlier_experiment_counts_if_all_that_determines_it_is_the_same(written):
    assert len(read_run(written([record(experiment="before")])).records) == 1


def test_no_answer_counts_twice(written):
    again = [record(), record(), record(experiment="before", outcome="c", key="other")]
    for records in (again, again[::-1]):
        run = read_run(written(records))
        assert [one["outcome"] for one in run.records] == ["hallucination"]  # this experiment's own comes first
        assert run.duplicates == 2


@pytest.mark.parametrize("tail", ['{"key": "b1-q1', "\x00\x00\n", "[1]\n", '{"key": 1}\n'])
def test_a_damaged_line_is_skipped_with_a_warning_and_stays_where_it_is(written, tail):
    folder = written([record()], tail=tail)
    before = (folder / "answers.jsonl").read_bytes()
    with pytest.warns(RuntimeWarning, match=r"answers\.jsonl: 1 damaged lines were skipped; 1 are whole"):
        run = read_run(folder)
    assert (len(run.records), run.damaged) == (1, 1)
    assert (folder / "answers.jsonl").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["answers.jsonl", "experiment.json"]


def test_a_line_end_within_a_text_ends_no_record(written, tmp_path):
    odd = record(answer="one\u2028two\u0085three")
    written([])
    (tmp_path / "answers.jsonl").write_text(json.dumps(odd, ensure_ascii=False) + "\n", "utf-8")
    assert read_run(tmp_path).records[0]["answer"] == odd["answer"]


def test_what_is_no_run_is_refused(tmp_path, written):
    with pytest.raises(FileNotFoundError, match=r"experiment\.json is missing"):
        read_run(tmp_path)
    folder = written([])
    (folder / "experiment.json").write_text("{", "utf-8")
    with pytest.raises(ValueError, match=r"experiment\.json is no JSON"):
        read_run(folder)
    (folder / "experiment.json").write_text("{}", "utf-8")
    with pytest.raises(ValueError, match=r"must hold experiment, label"):
        read_run(folder)


def test_names_hold_no_folders(written):
    described = experiment(model={"kind": "local", "model": "/home/someone/models/tiny.gguf"})
    run = read_run(written([record(data="/home/someone/TruthfulQA.csv")], described))
    assert (run.data, run.model) == ("truthfulqa", "tiny")


def test_parquet_holds_every_answer_and_the_oracles_action(written, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run = read_run(written(answers(b1="hcae", b2="hco?")))
    rows = parquet.read_table(run.to_parquet(tmp_path / "new" / "answers.parquet")).to_pylist()
    assert [row["oracle_action"] for row in rows] == [
        "adopt", "reject", "reject", None, "reject", "adopt", "adopt", None]  # fmt: skip
    assert [row["decision_action"] for row in rows[:4]] == list(ACTIONS.values())
    assert rows[0]["memories"] == [{"id": "m", "text": "Tea."}]
    assert rows[0]["decision_reasons"] == []
    assert rows[0]["sampling_temperature"] == 0.7
    assert rows[0]["notes"] == "{}"


# --------------------------------------------------------------------------------------------------------- the rates


def test_rates_of_known_records(written):
    summary = summary_of(written(answers(b1="hcha", b2="hhhe", b3="coac")))
    b1, b2, b3 = summary.systems
    assert [b1.hallucination[group].value for group in GROUPS] == [0.5, 1.0, 0.0, 0.5, 1.0]
    assert [b2.hallucination[group].value for group in GROUPS] == [0.75, 1.0, 1.0, 0.5, 1.0]
    assert [b3.hallucination[group].value for group in GROUPS] == [0.0] * 5
    assert b1.risk_weighted.value == pytest.approx((0.2 + 0.85) / 2.3)
    assert b1.risk_weighted.method == "bootstrap"  # Wilson's is of answers that weigh alike
    assert b1.weightings["risk"] == b1.risk_weighted.value
    assert b1.weightings["tiers alike"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert b1.among_answered.value == pytest.approx(2 / 3)
    assert b2.among_answered.value == 1.0  # an empty output is no answer
    assert (b2.empty.value, b2.abstention["overall"].value) == (0.25, 0.0)
    assert (b3.correct.value, b3.abstention["overall"].value, b3.abstention["high_risk"].value) == (0.5, 0.25, 1.0)
    assert b3.outcomes == {"correct": 2, "hallucination": 0, "abstention": 1, "empty": 0, "other": 1}
    assert b3.actions["overall"] == {"active": 0.25, "supp": 0.25, "silent": 0.25, "opt_out": 0.25}
    assert b3.actions["high_risk"] == {"active": 0.0, "supp": 0.0, "silent": 0.0, "opt_out": 1.0}
    assert (b1.actions, b2.actions) == ({}, {})
    assert [rate.value for rate in (b1.calls, b1.prompt_tokens, b1.completion_tokens)] == [1.0, 10.0, 4.0]
    assert (b1.seconds.value, b1.seconds_median) == (4.0, 2.5)
    assert (b1.calls.low, b1.seconds.method) == (None, "bootstrap")  # all alike; not alike
    assert summary.questions == {"overall": 4, "low": 1, "medium": 1, "high": 2, "high_risk": 1}
    assert (summary.answers, summary.expected) == (12, 12)
    json.dumps(summary.to_dict(), allow_nan=False)


def test_what_systems_noted_is_counted(written):
    """The paper's 400 of 400 Ambiguous and 34 of 400 regenerated, by hand on four answers."""
    described = experiment(systems=["crag", "self_rag"])
    grades = [("Ambiguous", 1), ("Ambiguous", 0), ("Correct", 4), ("no grade read", 1)]
    records = [
        record("crag", question, notes={"action": action, "memories graded Correct": correct})
        for question, (action, correct) in zip(RISKS, grades, strict=True)
    ]
    tokens = [("5", False), ("1", True), (None, False), ("5", True)]
    records += [
        record("self_rag", question, notes={"ISUSE": use, "regenerated": again})
        for question, (use, again) in zip(RISKS, tokens, strict=True)
    ]
    summary = summary_of(written(records, described))
    crag = {noted.label: (noted.count, noted.rate.value) for noted in summary.of("crag").notes}
    assert crag == {
        "action: Ambiguous": (2, 0.5),
        "action: Correct": (1, 0.25),
        "action: no grade read": (1, 0.25),
        "memories graded Correct": (6, 1.5),
    }
    self_rag = {noted.label: (noted.count, noted.rate.value) for noted in summary.of("self_rag").notes}
    assert self_rag == {
        "ISUSE: 1": (1, 0.25),
        "ISUSE: 5": (2, 0.5),
        "ISUSE: not read": (1, 0.25),
        "regenerated: no": (2, 0.5),
        "regenerated: yes": (2, 0.5),
    }
    found = next(noted for noted in summary.of("self_rag").notes if noted.label == "regenerated: yes").rate
    assert (found.low, found.high) == wilson(2, 4)
    assert ("self_rag", "regenerated: yes", 34 / 400, "deepseek-v4-flash") in summary.paper_notes
    assert ("crag", "action: Ambiguous", 400 / 400, "deepseek-v4-flash") in summary.paper_notes


def test_records_of_another_identity_are_not_its_own(written):
    """A system with other prompts, or fitted to other outcomes, is another system."""
    described = experiment(systems=["b1", "crag"]) | {"identities": {"b1": "", "crag": "any 1"}}
    mine, other = record("crag", identity="any 1"), record("crag", "q1", identity="any 2")
    run = read_run(written([*answers(b1="cccc"), mine, other], described))
    assert [one["question_id"] for one in run.of("crag")] == ["q0"]
    assert (len(run.of("b1")), run.foreign) == (4, 1)


def test_one_seed_has_wilsons_interval(written):
    found = summary_of(written(answers(b1="hcha"))).of("b1").hallucination["overall"]
    assert found == Rate(0.5, *wilson(2, 4), "wilson", 4, 4)


def test_two_seeds_are_drawn_by_question(written):
    described = experiment(seeds=[0, 1], systems=["b1"])
    records = answers(b1="hhcc") + answers(seed=1, b1="hhcc")
    found = summary_of(written(records, described)).of("b1").hallucination["overall"]
    assert (found.value, found.method, found.n, found.questions) == (0.5, "bootstrap", 8, 4)
    assert found.high - found.low > 2 * (0.5 - wilson(4, 8).low) * 0.9  # as wide as four answers, not eight, allow


def test_answers_that_all_agree_are_not_certain(written):
    described = experiment(seeds=[0, 1], systems=["b1"])
    b1 = summary_of(written(answers(b1="cccc") + answers(seed=1, b1="cccc"), described)).of("b1")
    assert b1.hallucination["overall"] == Rate(0.0, *wilson(0, 4), "wilson over questions", 8, 4)
    kish = math.floor(2.3**2 / sum(a * a for a in RISKS.values()))
    assert (b1.risk_weighted.low, b1.risk_weighted.high) == wilson(0, kish)
    assert (b1.correct.low, b1.correct.high) == wilson(4, 4)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef")), min_size=1, max_size=12))
def test_an_interval_holds_its_rate(pairs):
    hits, asked = [float(hit) for hit, _ in pairs], [question for _, question in pairs]
    found = rate(hits, [1.0] * len(pairs), asked, resamples=50)
    assert found.value == pytest.approx(sum(hits) / len(hits))
    if found.low is not None and found.method != "bootstrap":
        assert found.low <= found.value <= found.high
    assert (found.n, found.questions) == (len(pairs), len(set(asked)))


def test_missing_and_unscored_answers_are_said_and_in_no_rate(written):
    records = answers(b1="h?cc", b2="hhhh")[:-1]
    b1, b2, b3 = summary_of(written(records)).systems
    assert (b1.answers, b1.expected, b1.unscored) == (4, 4, 1)
    assert b1.hallucination["overall"].value == pytest.approx(1 / 3)
    assert (b2.answers, b2.expected, b2.hallucination["overall"].n) == (3, 4, 3)
    assert (b3.answers, b3.hallucination["overall"].value, b3.calls.value) == (0, None, None)


def test_seeds_as_mean_and_standard_deviation(written):
    described = experiment(seeds=[0, 1], systems=["b1"])
    b1 = summary_of(written(answers(b1="hccc") + answers(seed=1, b1="hhhc"), described)).of("b1")
    assert (b1.seeds["overall"].mean, b1.seeds["overall"].n) == (0.5, 2)
    assert b1.seeds["overall"].std == pytest.approx(math.sqrt(0.125))
    assert b1.seeds["high_risk"].mean == 0.5


# --------------------------------------------------------------------------------------------------- the comparisons


def test_differences_are_paired(written):
    summary = summary_of(written(answers(b1="hccc", b2="hhhc", b3="ccac")))
    found = {(one.system, one.reference): one for one in summary.comparisons}
    assert list(found) == [("b2", "b1"), ("b3", "b1"), ("b3", "b2")]
    rag = found["b2", "b1"]
    assert rag.hallucination["overall"].value == 0.5
    assert rag.risk_weighted.value == pytest.approx((0.5 + 0.85) / 2.3)
    assert rag.correct.value == -0.5
    assert (rag.mcnemar.only_first, rag.mcnemar.only_second, rag.mcnemar.p) == (2, 0, 0.5)
    differences = [0, 1, 1, 0]
    assert rag.over_questions.d_z == pytest.approx(0.5 / math.sqrt(sum((d - 0.5) ** 2 for d in differences) / 3))
    assert rag.over_questions.t == pytest.approx(2 * rag.over_questions.d_z)
    assert rag.over_seeds is None
    assert found["b3", "b2"].hallucination["overall"].value == -0.75


def test_pairs_are_of_answers_that_both_have(written):
    records = [one for one in answers(b1="hhcc", b2="hh?c") if (one["system"], one["question_id"]) != ("b1", "q0")]
    (rag,) = summary_of(written(records)).comparisons
    assert (rag.pairs, rag.hallucination["overall"].value) == (2, 0.0)


def test_seeds_are_tested_with_one_degree_less_than_there_are(written):
    described = experiment(seeds=[0, 1, 2], systems=["b1", "b2"])
    records = answers(b1="cccc", b2="hccc") + answers(1, b1="cccc", b2="hhcc") + answers(2, b1="hccc", b2="hhhh")
    (rag,) = summary_of(written(records, described)).comparisons
    assert (rag.over_seeds.n, rag.over_questions.n) == (3, 4)
    assert rag.over_seeds.difference == pytest.approx((0.25 + 0.5 + 0.75) / 3)
    assert (rag.mcnemar.only_first, rag.mcnemar.only_second) == (1, 0)  # of the first seed alone


# --------------------------------------------------------------------------------------------------------- the paper


def test_the_papers_figures():
    """Section 5.2, Tables 4 and 5, copied here a second time."""
    rates = {name: study["rates"] for name, study in paper_results().items()}
    gemma = rates["gemma-4-E4B-it, TruthfulQA"]
    assert [gemma[name]["overall"] for name in ("b1", "b2", "b3")] == [0.230, 0.530, 0.233]
    assert (gemma["b2"]["medium"], gemma["b3"]["medium"]) == (0.526, 0.276)
    assert (gemma["b2"]["high_risk"], gemma["b3"]["high_risk"], gemma["b3"]["risk_weighted"]) == (0.630, 0.0, 0.170)
    table4 = [rates[f"deepseek-v4-flash, {data}, Table 4"] for data in ("TruthfulQA", "HaluEval")]
    assert [[study[b][m] for study in table4 for m in ("overall", "high_risk")] for b in ("b1", "b2", "b3")] == [
        [0.160, 0.124, 0.083, 0.040],
        [0.043, 0.107, 0.065, 0.027],
        [0.047, 0.000, 0.070, 0.013],
    ]
    assert [table4[0][b]["risk_weighted"] for b in ("b1", "b2", "b3")] == [0.142, 0.058, 0.035]
    table5 = rates["deepseek-v4-flash, TruthfulQA, Table 5"]
    columns = ("overall", "high_risk", "abstention")
    assert [[row[column] for column in columns] for row in table5.values()] == [
        [0.155, 0.110, 0.380],
        [0.048, 0.119, 0.880],
        [0.050, 0.059, 0.645],
        [0.005, 0.000, 0.833],
        [0.048, 0.000, 0.877],
    ]


def test_the_papers_test_implies_three_seeds_though_it_names_two():
    assert PAPER_TEST == {"t": 11.82, "p": 0.007, "seeds": 2}
    assert implied_degrees(11.82, 0.007) == 2
    assert PAPER_TEST["seeds"] - 1 == 1
    # of one degree of freedom, p = 1 − 2·arctan(t)/π; of two, 1 − t/√(t² + 2)
    assert 1 - 2 * math.atan(11.82) / math.pi == pytest.approx(0.0537, abs=5e-5)
    assert 1 - 11.82 / math.hypot(11.82, math.sqrt(2)) == pytest.approx(0.0071, abs=5e-5)


def test_the_papers_figures_stand_beside_those_of_the_same_data(written):
    found = summary_of(written(answers(b1="hcha"))).paper
    assert {one.model for one in found if one.same_model} == {"gemma-4-E4B-it"}
    assert not any(one.same_n for one in found)
    assert {one.system for one in found} == {"b1", "b2", "b3"}
    assert not any(one.source == "Table 4" for one in found)  # HaluEval's


def test_same_n_means_questions_and_seeds(written):
    described = experiment(seeds=[0, 1])
    described["evaluated_questions"] = [f"q{place}" for place in range(150)]
    found = summary_of(written(answers(b1="hcha"), described)).paper
    assert {one.model for one in found if one.same_n} == {"gemma-4-E4B-it"}


def test_other_stores_and_other_data_have_no_figures_of_the_paper(written):
    off_topic = experiment(condition="off_topic")
    assert summary_of(written([record(condition="off_topic")], off_topic)).paper == ()
    own = summary_of(written([record(data="mine")]))
    assert (own.data, own.paper, own.weightings) == ("mine", (), ())


def test_the_weighting_that_made_a_figure_fits_it(monkeypatch):
    """Rates of tiers are invented, the figures of a paper made of them by one weighting, and that weighting fits."""
    risks = [0.2] * 5 + [0.5] * 3 + [0.85] * 2
    h = {0.2: 0.4, 0.5: 0.2, 0.85: 0.1}
    overall = sum(h[a] for a in risks) / 10
    study = deepcopy(paper_results()["gemma-4-E4B-it, TruthfulQA"])
    for name, weight in {"risk": lambda a: a, "risk squared": lambda a: a * a}.items():
        weighted = sum(weight(a) * h[a] for a in risks) / sum(map(weight, risks))
        for known in ({"medium": 0.2}, {}):
            study["rates"] = {"b3": {"overall": overall, "high_risk": 0.1, "risk_weighted": weighted} | known}
            monkeypatch.setattr("mdl_torch.evaluation.results.paper_results", lambda: {"study": study})
            fits = {fit.weighting: fit for fit in weighting_fits(risks, "truthfulqa")}
            assert fits[name].distance == pytest.approx(0, abs=1e-12)
            assert fits[name].low - 1e-12 <= weighted <= fits[name].high + 1e-12
            if known:
                assert fits[name].low == pytest.approx(weighted) == fits[name].high
                assert min(fit.distance for key, fit in fits.items() if key != name) > 0.001
            else:
                assert fits[name].low < fits[name].high


def test_tiers_that_the_paper_leaves_open_give_a_range():
    """B1 of deepseek-v4-flash: 0.160 overall and 0.124 at high risk; all else in the low tier, or in the medium one."""
    fits = weighting_fits([0.2] * 5 + [0.5] * 3 + [0.85] * 2, "truthfulqa")
    found = next(fit for fit in fits if (fit.weighting, fit.system, fit.published) == ("risk", "b1", 0.142))
    rest = 0.160 * 10 - 2 * 0.124
    assert found.low == pytest.approx((0.2 * rest + 1.7 * 0.124) / 4.2)
    assert found.high == pytest.approx((0.5 * rest + 1.7 * 0.124) / 4.2)
    crowded = weighting_fits([0.2] * 9 + [0.5] * 10 + [0.85], "truthfulqa")
    assert len(crowded) == 24  # six weightings of four figures


def test_the_data_sets_own_risks_weigh_where_the_run_has_them(written):
    described = experiment() | {"risks": {"0.2": 222, "0.5": 254, "0.75": 20, "0.85": 96}}
    summary = summary_of(written(answers(b1="hcha"), described))
    assert summary.weightings_from == 592
    distances = summary.weighting_distances()
    assert next(iter(distances)) == "risk"  # Σ A·h / Σ A comes nearest to the paper
    b3 = next(f for f in summary.weightings if (f.weighting, f.model) == ("risk", "gemma-4-E4B-it"))
    low = (0.233 - 254 / 592 * 0.276) / (222 / 592)
    assert b3.low == b3.high == pytest.approx((222 * 0.2 * low + 127 * 0.276) / (44.4 + 127 + 15 + 81.6))


def test_the_error_floor_is_that_of_the_run(written):
    floor = {"false_alarm_rate": 0.07, "miss_rate": 0.2, "questions": 500}
    assert summary_of(written([record()], experiment() | {"error_floor": floor})).error_floor == floor
    assert summary_of(written([record()])).error_floor is None
