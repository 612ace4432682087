"""The ablation: each mechanism taken out, recalibrated, and compared with the full controller."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_cases import adopts_by, pairs, samples, study, three_answers_a_question

from mdl_torch.analysis import ablation
from mdl_torch.analysis.ablation import FULL, PAPER, ablation_table, ablations
from mdl_torch.config import ABLATIONS, MDLConfig
from mdl_torch.evaluation.fitting import refit
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Action


def labelled_by(config: MDLConfig, n: int = 80, seed: int = 0):
    """Answers whose label is what a controller of the exact range decides, Active or not, of signals all over."""
    signals = np.random.default_rng(seed).random((n, 3))
    gated = MemoryDecisionLayer(config)(*torch.from_numpy(signals).unbind(-1)).gated_confidence.numpy()
    return samples(signals, gated >= np.median(gated))


def row(table, name: str) -> dict:
    [found] = [cells for cells in table.rows if cells[0] == name]
    return dict(zip(table.columns, found, strict=True))


def test_each_is_the_ablation_of_its_name_recalibrated():
    split = labelled_by(MDLConfig())
    found = ablations(split)
    assert list(found) == [FULL, *ABLATIONS] == list(PAPER)
    for name, layer in found.items():
        config = MDLConfig() if name == FULL else MDLConfig().ablate(name)
        assert layer.config.uncalibrated() == config.uncalibrated()
        assert layer.digest() == refit(MemoryDecisionLayer(config), split.signals, split.adopt).digest()
        norms = layer(*torch.from_numpy(split.signals).unbind(-1)).norm
        assert layer.head.norm_range.tolist() == pytest.approx([norms.min().item(), norms.max().item()])


def test_the_figures_are_those_of_the_layers():
    split, told = labelled_by(MDLConfig()), labelled_by(MDLConfig(), seed=1)
    table, layers = ablation_table(study(told, split=split)), ablations(split)
    active = {
        name: layer(*torch.from_numpy(told.signals).unbind(-1)).action.numpy() == Action.ACTIVE
        for name, layer in layers.items()
    }
    accuracy = {name: float((decided == told.adopt).mean()) for name, decided in active.items()}
    assert len(set(accuracy.values())) > 3  # else the rows could be mixed up
    for name in layers:
        found = row(table, name if name == FULL else f"without {name.replace('_', ' ')}")
        assert found["accuracy"].value == pytest.approx(accuracy[name])
        assert found["adopts"] == pytest.approx(active[name].mean())
        assert found["paper"] == PAPER[name]
        difference = found["difference (points)"]
        if name == FULL:
            assert difference is None
        else:
            assert difference.value == pytest.approx(100 * (accuracy[name] - accuracy[FULL]))
            assert difference.interval.low <= difference.value <= difference.interval.high


@pytest.mark.parametrize("name", ["risk_inversion", "value_encoding"])
def test_labels_made_without_a_mechanism_are_best_told_without_it(name):
    """What the ablated controller would label is a planted answer: it wins, and its interval says so."""
    made = MDLConfig().ablate(name)
    table = ablation_table(study(labelled_by(made, 300, seed=1), split=labelled_by(made, 300)))
    best = row(table, f"without {name.replace('_', ' ')}")
    assert best["accuracy"].value > 0.95
    assert best["difference (points)"].interval.low > 0


def test_the_labels_of_the_full_controller_are_best_told_by_it():
    table = ablation_table(study(labelled_by(MDLConfig(), 300, seed=1), split=labelled_by(MDLConfig(), 300)))
    assert row(table, FULL)["accuracy"].value > 0.95
    assert row(table, "without risk inversion")["difference (points)"].interval.high < 0


def test_the_pairs_have_their_own_figures():
    """Pairs that the full controller decides all wrongly, and one that tells nothing."""
    split = labelled_by(MDLConfig())
    full = ablations(split)[FULL]
    signals = np.random.default_rng(2).random((40, 3))
    active = full(*torch.from_numpy(signals).unbind(-1)).action.numpy() == Action.ACTIVE
    opposed = [*("only_b1" if adopts else "only_b2" for adopts in active), "neither"]
    table = ablation_table(study(split, split=split, pairs=pairs(np.vstack([signals, [[0.5] * 3]]), opposed)))
    found = row(table, FULL)["accuracy (B1 and B2 together)"]
    assert (found.value, found.n) == (0.0, 40)
    other = row(table, "without risk inversion")
    assert other["difference (B1 and B2 together, points)"].value == pytest.approx(
        100 * other["accuracy (B1 and B2 together)"].value
    )


def test_without_pairs_their_columns_are_empty():
    split = labelled_by(MDLConfig())
    table = ablation_table(study(split, split=split))
    assert row(table, FULL)["accuracy (B1 and B2 together)"].value is None
    assert row(table, "without alpha gate")["difference (B1 and B2 together, points)"].value is None
    assert "nan" not in (table.markdown() + table.csv()).lower()


def test_a_split_that_does_not_vary_leaves_no_range():
    still = samples([[0.5, 0.5, 0.2]] * 4, [True, False] * 2)
    table = ablation_table(study(still, split=still))
    assert [cells[2:-1] for cells in table.rows] == [(None,) * 5] * 6
    assert [cells[-1] for cells in table.rows] == [0.612, 0.596, 0.595, 0.640, 0.557, 0.434]
    assert "leaves no range" in table.note


@pytest.mark.parametrize("lacking", ["samples", "split"])
def test_what_a_run_lacks_is_said(lacking):
    told = labelled_by(MDLConfig(), 4)
    nothing = told.where(np.zeros(4, np.bool_))
    table = ablation_table(study(nothing, split=told) if lacking == "samples" else study(told))
    assert table.rows == ()
    assert ("calibration split" in table.note) == (lacking == "split")


@pytest.fixture
def decided_by(monkeypatch):
    """The table of ``three_answers_a_question``, where each controller decides by one signal, the full one by A."""

    def make(**columns: int):
        layers = {name: adopts_by(column) for name, column in {FULL: 2, **columns}.items()}
        monkeypatch.setattr(ablation, "ablations", lambda split: layers)
        return ablation_table(three_answers_a_question())

    return make


def test_every_column_by_hand(decided_by):
    """By question the one gains 1, ⅓, −⅔ and 0 of answers and 1, −½ and ½ of pairs; see ``test_complementarity.py``.

    Were each pair an observation of its own, the interval of their difference would not reach either end.
    """
    table = decided_by(alpha_gate=0, risk_inversion=1)
    found = row(table, "without alpha gate")
    assert found["what is left"] == ABLATIONS["alpha_gate"]
    assert (found["accuracy"].value, found["accuracy"].low, found["accuracy"].high) == (
        0.5, pytest.approx(1 / 6), pytest.approx(5 / 6),
    )  # fmt: skip
    assert found["adopts"] == 0.5
    difference = found["difference (points)"]
    assert (difference.value, difference.questions, difference.samples) == (pytest.approx(100 / 6), 4, 12)
    assert difference.interval == (pytest.approx(-500 / 12), pytest.approx(75.0))
    together = found["accuracy (B1 and B2 together)"]
    assert (together.value, together.low, together.high, together.n) == (pytest.approx(5 / 6), 0.5, 1.0, 6)
    difference = found["difference (B1 and B2 together, points)"]
    assert (difference.value, difference.questions, difference.samples) == (pytest.approx(100 / 3), 3, 6)
    assert difference.interval == (-50.0, 100.0)
    assert found["paper"] == 0.596
    full = row(table, FULL)
    assert full["adopts"] == pytest.approx(4 / 12)
    assert (full["difference (points)"], full["difference (B1 and B2 together, points)"]) == (None, None)


def test_what_only_labels_that_favour_the_full_controller_show_is_said(decided_by):
    """By R is 58 points better, [33, 83], and no better of the pairs; by M no interval excludes 0."""
    said = ": the interval of the difference excludes 0 only under the pooled labels"
    assert f" without risk inversion{said}" in decided_by(alpha_gate=0, risk_inversion=1).note
    assert said not in decided_by(alpha_gate=0).note


def test_what_the_pairs_show_too_is_not(monkeypatch):
    """Where one is right on all pairs as on all answers, and the full controller on none."""
    signals, adopt = np.tile([[0.9, 0.5, 0.1], [0.1, 0.5, 0.9]], (10, 1)), [True, False] * 10
    monkeypatch.setattr(ablation, "ablations", lambda split: {FULL: adopts_by(2), "alpha_gate": adopts_by(0)})
    told = samples(signals, adopt)
    table = ablation_table(study(told, split=told, pairs=pairs(signals, ["only_b2", "only_b1"] * 10)))
    found = row(table, "without alpha gate")
    assert found["difference (points)"].value == found["difference (B1 and B2 together, points)"].value == 100.0
    assert "excludes 0" not in table.note
