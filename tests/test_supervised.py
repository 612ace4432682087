"""Cross-validated controllers: planted labels, leaks that folds by question close, and figures known by hand."""

from __future__ import annotations

import math

import analysis_cases as cases
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch import MemoryDecisionLayer
from mdl_torch.analysis import supervised as module
from mdl_torch.analysis.samples import FAVOURED
from mdl_torch.analysis.supervised import (
    FOLDS,
    GEOMETRIC,
    NoRangeError,
    Predicted,
    folds,
    out_of_fold,
    parameters,
    predict,
    supervised_tables,
    validate,
)
from mdl_torch.evaluation.controllers import CONTROLLERS
from mdl_torch.evaluation.fitting import refit
from mdl_torch.outputs import Action

EVERY = (*GEOMETRIC, *CONTROLLERS)


def answers(signals, labels):
    """Answers to questions: the signals of each, and the labels of its answers, as many for each."""
    labels = np.asarray(labels, bool)
    times = labels.shape[1]
    questions = np.repeat([f"q{i}" for i in range(len(labels))], times)
    return cases.samples(np.repeat(signals, times, axis=0), labels.reshape(-1), questions)


def spread(n: int, seed: int = 0):
    """Signals of n questions, evenly spread in M."""
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.permutation(n) / n, rng.random(n), rng.choice([0.2, 0.5], n)])


def cells(table):
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


@pytest.fixture
def paper_alone(monkeypatch):
    """Of the presets the first: the others take their time."""
    monkeypatch.setattr(module, "GEOMETRIC", ("paper",))


# ------------------------------------------------------------------------------------------------------------ folds


@given(st.lists(st.integers(0, 8), min_size=2, max_size=40).filter(lambda g: len(set(g)) >= 2), st.integers(0, 3))
def test_folds_keep_groups_together_and_are_of_equal_numbers_of_groups(groups, seed):
    count = min(FOLDS, len(set(groups)))
    of = folds(groups, count, seed=seed)
    assert all(len(set(of[np.array(groups) == group].tolist())) == 1 for group in groups)
    sizes = [len({g for g, fold in zip(groups, of, strict=True) if fold == each}) for each in range(count)]
    assert max(sizes) - min(sizes) <= 1
    assert (of == folds(groups, count, seed=seed)).all()


def test_folds_do_not_depend_on_the_order_of_the_rows_but_on_the_seed():
    groups = np.array([f"q{i % 20}" for i in range(60)])
    order = np.random.default_rng(0).permutation(60)
    assert (folds(groups)[order] == folds(groups[order])).all()
    assert (folds(groups, seed=1) != folds(groups)).any()
    assert (folds(groups) != np.arange(60) % 20 % FOLDS).any()  # shuffled


@pytest.mark.parametrize(("groups", "count"), [(["a", "a"], 2), ([], 5), (["a", "b"], 1), (["a", "b"], 3)])
def test_too_few_groups_or_folds_are_refused(groups, count):
    with pytest.raises(ValueError, match=f"count must be from 2 to the number of groups, {len(set(groups))}, got"):
        folds(groups, count)


# ------------------------------------------------------------------------------------------------------ predictions


@pytest.mark.parametrize("name", EVERY)
def test_out_of_fold_is_a_fit_on_the_other_folds(name):
    rng = np.random.default_rng(1)
    signals, fold = spread(60), np.arange(60) % 3
    adopt = (signals[:, 0] > 0.5) ^ (rng.random(60) < 0.2)
    found = out_of_fold(name, signals, adopt, fold)
    for held in range(3):
        train, test = fold != held, fold == held
        if name in CONTROLLERS:
            fitted = CONTROLLERS[name]().fit(signals[train], adopt[train])
            assert (found.adopt[test] == fitted.adopts(signals[test])).all()
            assert found.probability[test] == pytest.approx(fitted.probability(signals[test]))
        else:
            layer = refit(MemoryDecisionLayer.from_preset(name), signals[train], adopt[train])
            decided = layer(*torch.from_numpy(signals[test]).unbind(-1)).action.numpy()
            assert (found.adopt[test] == (decided == Action.ACTIVE)).all()
            assert found.probability is None


@pytest.mark.parametrize("name", ["paper", *CONTROLLERS])
def test_the_labels_of_a_fold_play_no_part_in_what_is_said_of_it(name):
    signals, fold = spread(50), np.arange(50) % FOLDS
    adopt = signals[:, 0] > 0.4
    turned = np.where(fold == 0, ~adopt, adopt)
    one, other = (out_of_fold(name, signals, labels, fold) for labels in (adopt, turned))
    assert (one.adopt[fold == 0] == other.adopt[fold == 0]).all()
    if one.probability is not None:
        assert one.probability[fold == 0] == pytest.approx(other.probability[fold == 0])


def test_a_preset_takes_its_thresholds_from_the_labels_and_adopts_by_active_alone():
    signals = np.array([[m, 0.5, 0.2] for m in np.linspace(0.05, 0.95, 60)])
    layer = MemoryDecisionLayer()
    score = refit(layer, signals, np.ones(60, bool))(*torch.from_numpy(signals).unbind(-1)).gated_confidence.numpy()
    for cut in (0.3, 0.5, 0.7):
        adopt = score > cut
        assert (predict("paper", signals, adopt, signals).adopt == adopt).mean() > 0.98
    supp = (score < 0.7) & (score > 0.55)  # less than δ = 0.2 below θ0
    assert supp.any()
    assert not predict("paper", signals, score > 0.7, signals).adopt[supp].any()


def test_log_loss_and_brier_score_by_hand():
    said = Predicted(np.array([True, True, False]), np.array([0.8, 0.5, 0.0]))
    assert said.log_loss([True, False, False]) == pytest.approx(-(math.log(0.8) + math.log(0.5)) / 3)
    assert said.brier([True, False, False]) == pytest.approx((0.04 + 0.25) / 3)
    assert said.log_loss([True, True, True]) == pytest.approx(-(math.log(0.4) - 52 * math.log(2)) / 3)  # 0 is ε
    assert Predicted(np.array([True]), None).log_loss([True]) is None
    assert Predicted(np.array([True]), None).brier([True]) is None


def test_parameters_that_are_taken_from_the_labels():
    signals = spread(40)
    adopt = signals[:, 0] > 0.5
    found = {name: parameters(name, signals, adopt) for name in EVERY}
    assert {name: found[name] for name in GEOMETRIC} == {"paper": 3, "certified": 1, "ensemble": 1}
    assert (found["lr"], found["mlp"], found["majority_class"], found["rule"]) == (4, 2369, 1, 1)
    assert found["tree"] == 3  # one threshold, two leaves
    assert found["xgboost"] == CONTROLLERS["xgboost"]().fit(signals, adopt).parameters


# --------------------------------------------------------------------------------------------------- the comparison


def test_a_planted_rule_is_found_by_those_that_can_say_it():
    signals = spread(80)
    samples = answers(signals, np.repeat(signals[:, :1] > 0.6, 2, axis=1))
    found, failed = validate(samples)
    accuracy = {each.name: float((each.grouped.adopt == samples.adopt).mean()) for each in found}
    assert failed == {}
    assert tuple(accuracy) == EVERY
    assert min(accuracy[name] for name in ("rule", "tree", "xgboost", "lr")) > 0.9
    assert accuracy["majority_class"] == pytest.approx(1 - samples.adopt.mean(), abs=0.02)


def test_answers_to_one_question_in_both_parts_look_like_knowledge(paper_alone):
    """Labels are the question's own: nothing tells them of a new question, and ungrouped folds recall them."""
    rng = np.random.default_rng(3)
    samples = answers(spread(80), np.repeat(rng.random((80, 1)) < 0.5, 6, axis=1))
    row = cells(supervised_tables(cases.study(samples))[0])["XGBoost"]
    assert 0.3 < row["accuracy"].value < 0.7
    assert row["accuracy, ungrouped folds"].value > 0.85
    gained = row["ungrouped minus grouped"]
    assert gained.value == pytest.approx(row["accuracy, ungrouped folds"].value - row["accuracy"].value)
    assert gained.interval.low > 0.1
    assert gained.questions == 80


def test_contradicting_answers_in_both_parts_mislead():
    """B1 and B2 labelled the other way round: what recalls the one is wrong about the other."""
    first = np.random.default_rng(4).random((100, 1)) < 0.5
    samples = answers(spread(100), np.hstack([first, ~first]))
    grouped, ungrouped = (
        (out_of_fold("xgboost", samples.signals, samples.adopt, folds(groups)).adopt == samples.adopt).mean()
        for groups in (samples.questions, np.arange(200))
    )
    assert ungrouped < grouped - 0.1


def test_the_table_says_what_is_known_of_each_controller(paper_alone):
    rng = np.random.default_rng(5)
    signals = spread(60)
    samples = answers(signals, (signals[:, :1] > 0.5) ^ (rng.random((60, 3)) < 0.2))
    table = supervised_tables(cases.study(samples))[0]
    found = cells(table)
    paper = found["MDL `paper`"]
    assert paper["minus `paper`"] is None
    assert (paper["accuracy (paper)"], paper["parameters (paper)"]) == (0.612, "0")
    assert [found[name]["accuracy (paper)"] for name in ("LR", "MLP", "XGBoost")] == [0.633, 0.630, 0.646]
    for name, row in found.items():
        assert row["accuracy"].questions == 60
        assert row["accuracy"].low < row["accuracy"].value < row["accuracy"].high
        if name != "MDL `paper`":
            assert row["minus `paper`"].value == pytest.approx(row["accuracy"].value - paper["accuracy"].value)
        assert (row["log-loss"] is None) == (row["Brier score"] is None) == name.startswith("MDL")
    lr = out_of_fold("lr", samples.signals, samples.adopt, folds(samples.questions))
    assert found["LR"]["log-loss"] == pytest.approx(lr.log_loss(samples.adopt))
    assert found["LR"]["Brier score"] == pytest.approx(lr.brier(samples.adopt))
    assert found["LR"]["accuracy"].value == pytest.approx((lr.adopt == samples.adopt).mean())
    assert "180 labelled answers of B1, B2 and B3 to 60 questions" in table.note
    assert table == supervised_tables(cases.study(samples))[0]


@pytest.fixture
def few(paper_alone, monkeypatch):
    """Beside it the controllers that are fitted at once."""
    monkeypatch.setattr(module, "CONTROLLERS", {name: CONTROLLERS[name] for name in ("majority_class", "rule")})


def test_intervals_are_by_bootstrap_over_questions(few):
    """Three answers to each of 60 questions, alike but for a few: over answers intervals would be 1/√3 as wide."""
    rng = np.random.default_rng(6)
    signals = spread(60)
    samples = answers(signals, np.repeat((signals[:, :1] > 0.5) ^ (rng.random((60, 1)) < 0.25), 3, axis=1))
    table = cells(supervised_tables(cases.study(samples))[0])
    by_question, by_answer = folds(samples.questions), folds(np.arange(180))
    names = {"paper": "MDL `paper`", "majority_class": "majority class", "rule": "rule M ≥ t, A < 0.7"}
    right = {
        kind: {
            name: (out_of_fold(name, samples.signals, samples.adopt, of).adopt == samples.adopt).reshape(60, 3)
            for name in names
        }
        for kind, of in (("grouped", by_question), ("ungrouped", by_answer))
    }
    drawn = rng.integers(0, 60, (4000, 60))  # whole questions, whose means are alike in number

    def bounds(values):
        return pytest.approx(np.quantile(values.mean(axis=1)[drawn].mean(axis=1), (0.025, 0.975)), abs=0.02)

    for name, shown in names.items():
        row, hits, strayed = table[shown], right["grouped"][name] * 1.0, right["ungrouped"][name] * 1.0
        assert (row["accuracy"].low, row["accuracy"].high) == bounds(hits)
        assert (row["accuracy, ungrouped folds"].low, row["accuracy, ungrouped folds"].high) == bounds(strayed)
        assert tuple(row["ungrouped minus grouped"].interval) == bounds(strayed - hits)
        assert row["accuracy"].questions == row["ungrouped minus grouped"].questions == 60
        if name != "paper":
            assert tuple(row["minus `paper`"].interval) == bounds(hits - right["grouped"]["paper"])
            assert (row["minus `paper`"].questions, row["minus `paper`"].samples) == (60, 180)
    wide = table["majority class"]["minus `paper`"].interval
    assert wide.high - wide.low > 0.2  # ten times what the comparison allows


def test_what_a_policy_does_with_the_signals_is_found_in_b3s_labels_alone(few):
    """B3's labels are M > ½, those of B1 and B2 are noise: the second table is fitted and tested on these alone."""
    rng = np.random.default_rng(7)
    signals = spread(80)
    labels = np.column_stack([rng.random((80, 2)) < 0.5, signals[:, 0] > 0.5])
    questions, systems = np.repeat([f"q{i}" for i in range(80)], 3), np.tile(["b1", "b2", "b3"], 80)
    samples = cases.samples(np.repeat(signals, 3, axis=0), labels.reshape(-1), questions, systems=systems)
    pooled, alone = supervised_tables(cases.study(samples))
    assert (pooled.name, alone.name) == ("supervised", "supervised_b1_b2")
    assert "B1 and B2 alone" in alone.title
    assert pooled.note.endswith(FAVOURED)
    assert FAVOURED not in alone.note
    assert "160 labelled answers of B1 and B2 to 80 questions" in alone.note
    other = cases.study(samples.of("b1", "b2"))
    assert alone.rows == supervised_tables(other)[0].rows == supervised_tables(other)[1].rows
    rule = "rule M ≥ t, A < 0.7"
    assert cells(pooled)[rule]["accuracy"].value > cells(alone)[rule]["accuracy"].value + 0.05


def test_an_error_that_is_no_missing_range_is_not_hidden(few, monkeypatch):
    """Neither a controller's nor that of a fit of a preset."""
    study = cases.study(answers(spread(20), np.ones((20, 2))))

    def broken(*_):
        raise ValueError("lengths differ")

    for patch in (
        lambda patched: patched.setattr(module, "refit", broken),
        lambda patched: patched.setitem(module.CONTROLLERS, "rule", broken),
    ):
        with monkeypatch.context() as patched:
            patch(patched)
            with pytest.raises(ValueError, match="lengths differ"):
                supervised_tables(study)


def test_norms_that_are_all_alike_leave_no_range():
    with pytest.raises(NoRangeError, match="norms must"):
        predict("paper", np.full((4, 3), 0.5), np.array([True, False, True, False]), np.full((1, 3), 0.5))


@pytest.mark.parametrize(("questions", "rows"), [(0, 0), (1, 0), (2, 7), (3, 7)])
def test_few_questions(questions, rows, paper_alone):
    signals = np.column_stack([np.linspace(0.1, 0.9, questions), np.full(questions, 0.5), np.full(questions, 0.2)])
    labels = np.arange(2 * questions).reshape(questions, 2) % 2 == 0
    table, _ = supervised_tables(cases.study(answers(signals, labels)))
    missing = table.note.count("could not be fitted")
    assert len(table.rows) + missing == rows
    assert "nan" not in (table.markdown() + table.csv()).lower()
    if questions < 2:
        needed = "Cross-validation by question needs two questions with labelled answers"
        assert table.note == f"{needed}; there are {questions}. {FAVOURED}"
    else:
        assert f"{questions} folds" in table.note
        assert "fewer questions than 5" in table.note
    if questions == 2:  # one question is no range
        assert "MDL `paper` could not be fitted: norms must" in table.note
        assert all(row[2] is None for row in table.rows)


def test_labels_that_are_all_alike(paper_alone):
    table, _ = supervised_tables(cases.study(answers(spread(20), np.ones((20, 2)))))
    found = cells(table)
    assert {found[name]["accuracy"].value for name in ("LR", "MLP", "XGBoost", "majority class")} == {1.0}
    assert found["LR"]["parameters"] == 1
    assert found["LR"]["log-loss"] == 0
    assert "All labels are the same" in table.note
    assert "nan" not in (table.markdown() + table.csv()).lower()


def test_a_fold_that_has_the_only_answers_of_a_label(paper_alone):
    signals = spread(20)
    labels = np.zeros((20, 2), bool)
    labels[3] = True
    samples = answers(signals, labels)
    found, failed = validate(samples)
    assert failed == {}
    lr = next(each for each in found if each.name == "lr")
    assert lr.grouped.probability[samples.adopt].tolist() == [0.0, 0.0]
    assert math.isfinite(lr.grouped.log_loss(samples.adopt))


def test_a_library_that_is_not_installed_is_said(paper_alone, monkeypatch):
    def missing():
        raise ImportError("controller 'xgboost' needs xgboost")

    monkeypatch.setitem(module.CONTROLLERS, "xgboost", missing)
    signals = spread(20)
    table, _ = supervised_tables(cases.study(answers(signals, np.repeat(signals[:, :1] > 0.5, 2, axis=1))))
    assert "XGBoost could not be fitted: controller 'xgboost' needs xgboost." in table.note
    assert len(table.rows) == len(CONTROLLERS)
