"""Figures of the analyses: what they draw is what the records hold, and they can be read without colour."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from analysis_cases import samples, study
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch import Calibration, MemoryDecisionLayer
from mdl_torch.analysis import plots
from mdl_torch.analysis.gating import GateGrid
from mdl_torch.analysis.selective import risk_coverage
from mdl_torch.evaluation.results import Rate
from mdl_torch.figures import save, style
from mdl_torch.outputs import Action

pytest.importorskip("matplotlib")

PAPER = MemoryDecisionLayer().calibrated(Calibration.reference())


@pytest.fixture(autouse=True)
def in_style():
    with style():
        yield


@pytest.fixture
def run():
    """Four questions at A = 0.2, two at 0.5, one at 0.85, by B2 and B3; and one just beside 0.2."""
    risks = [0.2, 0.2, 0.2, 0.2, 0.5, 0.5, 0.85, 0.21]
    signals = [[0.1 * (i + 1), 0.9 - 0.1 * i, risk] for i, risk in enumerate(risks)]
    b2 = [True, True, True, False, False, True, False, True]
    actions = [0, 0, 1, 1, 2, 2, 3, 3]
    adopt = [True, False, True, False, False, False, False, False]
    questions = [f"q{i}" for i in range(8)]
    return study(
        samples(
            signals + signals,
            b2 + adopt,
            questions * 2,
            systems=["b2"] * 8 + ["b3"] * 8,
            injected=[True] * 8 + [action < 2 for action in actions],
            actions=actions * 2,
        ),
        layers={"paper": PAPER},
    )


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


def grid_of(accuracy, constants=(0.3, 1.0), coefficients=(0.0, 0.7)):
    found = np.ma.masked_invalid(accuracy)
    return GateGrid(np.array(constants), np.array(coefficients), found, found / 50, found)


def point(system, coverage, risk):
    rates = [Rate(value, None, None, "none", 4, 4) for value in (coverage, risk)]
    return SimpleNamespace(system=system, coverage=rates[0], risk=rates[1])


# -------------------------------------------------------------------------------------------------------- numbers


def test_the_plane_is_what_the_layer_decides():
    axis, gated, actions = plots.plane(PAPER, 0.5, points=11)
    for row, column in ((0, 0), (10, 3), (4, 10)):
        decision = PAPER(*(PAPER.policy.thresholds.new_tensor(v) for v in (axis[column], axis[row], 0.5)))
        assert gated[row, column] == pytest.approx(decision.gated_confidence.item(), abs=1e-12)
        assert actions[row, column] == decision.action


def test_rates_are_binned_by_both_signals():
    signals = np.array([[0.0, 0.0, 0.8], [0.19, 0.0, 0.8], [0.2, 0.0, 0.8], [1.0, 1.0, 0.8], [0.5, 0.9, 0.8]])
    rates, counts = plots.binned_rate(signals, np.array([True, False, True, False, True]))
    assert counts.sum() == 5
    assert (counts[0, 0], rates[0, 0]) == (2, 0.5)
    assert (counts[0, 1], rates[0, 1]) == (1, 1.0)
    assert (counts[4, 4], rates[4, 4]) == (1, 0.0)
    assert (counts[4, 2], rates[4, 2]) == (1, 1.0)
    assert np.isnan(rates).sum() == 21


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 2, st.booleans()), max_size=30), st.integers(1, 7))
def test_every_row_is_in_one_cell(rows, bins):
    signals = np.array([(m, r, 0.8) for m, r, _ in rows]).reshape(-1, 3)
    rates, counts = plots.binned_rate(signals, np.array([hit for *_, hit in rows], bool), bins)
    assert counts.sum() == len(rows)
    assert np.nansum(rates * counts) == pytest.approx(sum(hit for *_, hit in rows))
    assert ((counts == 0) == np.isnan(rates)).all()


def test_a_retrieval_counts_once(run):
    assert plots.retrievals(run.samples).questions.tolist() == [f"q{i}" for i in range(8)]
    moved = samples([[0.5, 0.5, 0.5], [0.5, 0.5, 0.6], [0.5, 0.5, 0.5]], [True] * 3, ["q"] * 3, [0, 1, 2])
    assert plots.retrievals(moved).seeds.tolist() == [0, 1]
    assert len(plots.retrievals(moved.of("b9"))) == 0


def test_seeds_are_compared_with_the_layer():
    found = plots.SeedDecisions(np.array([0, 3], np.int8), np.array([[0, 0, 1, 3], [3, 3, 3, 3]], np.int8))
    assert found.agreement.tolist() == [0.5, 1.0]
    assert found.mix.tolist() == [0.5, 0.0, 0.0, 0.5]
    assert found.mixes.tolist() == [[0.5, 0, 0, 0.5], [0.5, 0, 0, 0.5], [0, 0.5, 0, 0.5], [0, 0, 0, 1.0]]


def test_a_seed_decides_as_the_layer_of_that_seed():
    """With its range fitted on the retrievals of the calibration, and the thresholds kept."""
    from dataclasses import replace

    import torch

    from mdl_torch.layer import refit_norm_range

    signals = np.random.default_rng(0).random((50, 3))
    found = plots.seed_decisions(PAPER, signals, 3)
    for seed in range(3):
        bare = MemoryDecisionLayer(replace(PAPER.config.uncalibrated(), seed=seed))
        layer = bare.ranged(refit_norm_range(PAPER.calibration, bare), PAPER.config.thresholds)
        assert found.others[:, seed].tolist() == layer(*torch.tensor(signals).unbind(-1)).action.tolist()
    assert found.own.tolist() == PAPER(*torch.tensor(signals).unbind(-1)).action.tolist()


@given(st.lists(st.floats(0, 1), max_size=20).map(sorted), st.sampled_from([0.01, 0.045, 0.3]))
def test_labels_are_a_gap_apart_and_in_order(values, gap):
    found = plots.spread(values, gap)
    assert len(found) == len(values)
    assert ((found >= -1e-9) & (found <= 1 + 1e-9)).all()
    apart = np.diff(found)
    if (len(values) - 1) * gap <= 1:
        assert (apart >= gap - 1e-9).all()
    assert (apart >= 0).all()
    if (np.diff(values) >= gap).all():
        assert found == pytest.approx(values, abs=1e-9)


def test_labels_move_as_little_as_they_can():
    assert plots.spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert plots.spread([0.0, 0.0, 1.0], 0.1) == pytest.approx([0.0, 0.1, 1.0])


def test_luminance_is_that_of_wcag():
    """The contrast of white on #767676 is 4.54 : 1."""
    grey = plots.luminance((0x76 / 255,) * 3 + (1.0,))
    assert 1.05 / (grey + 0.05) == pytest.approx(4.54, abs=0.005)


# -------------------------------------------------------------------------------------------------------- Figure 4


def test_the_map_marks_the_answers_of_b2_at_that_very_risk(run):
    panels = plots.decision_map(run).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["A = 0.2, n = 4", "A = 0.5, n = 2", "A = 0.85, n = 1"]
    for axes, safe, wrong in zip(panels, (3, 1, 0), (1, 1, 1), strict=True):
        dots, crosses = axes.lines
        assert (dots.get_marker(), crosses.get_marker()) == ("o", "x")
        assert (len(dots.get_xdata()), len(crosses.get_xdata())) == (safe, wrong)
        assert (axes.get_xlabel(), axes.get_xlim(), axes.get_ylim()) == ("relevance M", (0, 1), (0, 1))
    dots, crosses = panels[0].lines
    assert (dots.get_xdata().tolist(), dots.get_ydata().tolist()) == (
        pytest.approx([0.1, 0.2, 0.3]),
        pytest.approx([0.9, 0.8, 0.7]),
    )
    assert (crosses.get_xdata().item(), crosses.get_ydata().item()) == pytest.approx((0.4, 0.6))
    assert panels[0].get_ylabel() == "reliability R"


def filled(axes):
    """The regions, from low C_final to high, and the contours."""
    return axes.collections[0], axes.collections[1]


def test_the_map_shades_what_the_gate_decides(run):
    for axes, risk in zip(plots.decision_map(run).axes, (0.2, 0.5, 0.85), strict=True):
        regions, _ = filled(axes)
        assert regions.levels.tolist() == [-1.0, *sorted(PAPER.config.thresholds), 2.0]
        axis, _, actions = plots.plane(PAPER, risk, points=21)
        inside = [path.contains_points([(m, r) for r in axis for m in axis]) if len(path.vertices) else np.zeros(441)
                  for path in regions.get_paths()]  # fmt: skip
        inner = np.array([(0 < m < 1) and (0 < r < 1) for r in axis for m in axis])
        drawn = 3 - np.argmax(inside, axis=0)
        assert np.mean(drawn[inner] == actions.reshape(-1)[inner]) > 0.99  # an edge may pass through a point


def test_contours_are_labelled_and_thresholds_heavy(run):
    axes = plots.decision_map(run).axes[0]
    _, lines = filled(axes)
    heavy = [level for level, width in zip(lines.levels, lines.get_linewidths(), strict=True) if width > 1]
    assert heavy == sorted(PAPER.config.thresholds)
    labels = {float(text) for text in texts_of(axes)}
    assert labels <= {round(level, 2) for level in lines.levels.tolist()}
    assert labels >= {0.4, 0.6}


def test_labels_keep_clear_of_marks_and_edges():
    line = np.stack([np.linspace(0, 1, 101), np.full(101, 0.5)], axis=1)
    marks = np.array([[0.1, 0.5], [0.2, 0.5], [0.3, 0.5]])
    (place,) = plots._label_places([line], marks)
    assert place == pytest.approx((0.6, 0.5))  # the first that is 0.3 from every mark
    assert plots._label_places([line * [1, 0]], marks) == []


def test_neighbouring_actions_differ_in_grey(run):
    colors = [plots.luminance(color) for color in filled(plots.decision_map(run).axes[0])[0].get_facecolors()]
    assert colors == sorted(colors, reverse=True)
    for lighter, darker in itertools.pairwise(colors):
        assert (lighter + 0.05) / (darker + 0.05) > 1.5


def test_a_gate_that_decides_alike_everywhere_is_one_region(run):
    layer = MemoryDecisionLayer().ranged((50.0, 60.0))  # C is 0
    (axes,) = plots.decision_map(study(run.samples, layers={"paper": layer}), risks=[0.2]).axes
    assert texts_of(axes) == []


def test_an_unknown_gate_is_named(run):
    for make in (plots.decision_map, plots.seed_figure):
        with pytest.raises(ValueError, match="unknown gate 'papr'; did you mean 'paper'"):
            make(run, name="papr")


# -------------------------------------------------------------------------------------------------------- Figure 5


def test_the_confusion_counts_actions_by_the_oracle(run):
    (axes,) = plots.confusion(run).axes
    assert texts_of(axes) == ["1\n12.5%", "1\n12.5%", "1\n12.5%", "1\n12.5%", "0\n0.0%", "2\n25.0%", "0\n0.0%",
                              "2\n25.0%"]  # fmt: skip
    assert axes.collections[0].get_array().tolist() == [[1, 1], [1, 1], [0, 2], [0, 2]]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["Active", "Supp", "Silent", "Opt-Out"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["adopt", "reject"]
    assert axes.yaxis_inverted()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("the paper's oracle", "B3's action")
    frames = [(round(frame.get_x() + 0.44), round(frame.get_y() + 0.44)) for frame in axes.patches]
    assert frames == [(0, Action.ACTIVE), (1, Action.SUPP), (1, Action.SILENT), (1, Action.OPT_OUT)]


def test_the_grid_is_drawn_with_the_constant_along_and_the_coefficient_up():
    figure = plots.gate_grid_figure(grid_of([[np.nan, 0.61], [0.59, 0.64]]))
    axes = figure.axes[0]
    assert axes.collections[0].get_array().tolist() == [[None, 59.0], [61.0, 64.0]]
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [
        ("59.0\n±1.2", (1, 0)),
        ("61.0\n±1.2", (0, 1)),
        ("64.0\n±1.3", (1, 1)),
    ]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.3", "1"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "0.7"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("constant $g_a$", "coefficient of α, $g_b$")
    assert figure.axes[1].get_ylabel() == "decision accuracy, %"
    assert axes.collections[0].get_clim() == pytest.approx((61.5 - 2.56, 61.5 + 2.56))  # two deviations of 1.28
    hatched, paper, alone = axes.patches
    assert (hatched.get_hatch(), hatched.get_xy()) == ("////", (-0.5, -0.5))
    assert (paper.get_xy(), paper.get_linestyle()) == (pytest.approx((-0.44, 0.56)), "-")
    assert (alone.get_xy(), alone.get_linestyle()) == (pytest.approx((0.56, -0.44)), ":")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["the paper's (0.3, 0.7)", "C alone, (1, 0)"]


def test_a_grid_that_lacks_the_marked_cells_marks_nothing():
    figure = plots.gate_grid_figure(grid_of([[0.5, 0.6]], constants=[0.25]))
    assert (figure.legends, list(figure.axes[0].patches)) == ([], [])


def test_a_run_without_a_grid_says_so():
    (said,) = plots.gate_grid_figure(None).texts
    assert "no calibration split" in said.get_text()


def test_ink_is_legible_on_every_cell():
    axes = plots.gate_grid_figure(grid_of(np.linspace(0.5, 0.7, 121).reshape(11, 11), range(11), range(11))).axes[0]
    mesh = axes.collections[0]
    for text, value in zip(axes.texts, mesh.get_array().reshape(-1), strict=True):
        ink, shade = plots.luminance({"black": (0, 0, 0), "white": (1, 1, 1)}[text.get_color()]), mesh.to_rgba(value)
        lighter, darker = sorted((ink, plots.luminance(shade)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5  # of WCAG, for small text


def test_abstention_is_shared_out_over_cells_at_high_risk():
    signals = [[0.9, 0.1, 0.70], [0.95, 0.15, 0.85], [0.9, 0.1, 0.69], [0.1, 0.9, 0.9], [0.1, 0.9, 0.9]]
    found = samples(signals, [True] * 5, ["a", "b", "c", "d", "d"], [0, 0, 0, 0, 1], actions=[3, 1, 3, 3, 3])
    figure = plots.abstention_map(study(found))
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "A ≥ 0.70, n = 3 retrievals"
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [
        ("50%\nn = 2", (4, 0)),
        ("100%\nn = 1", (0, 4)),
    ]
    assert [patch.get_hatch() for patch in axes.patches] == ["////"] * 23
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("relevance M", "reliability R")
    assert (axes.get_xlim(), axes.get_ylim()) == ((-0.5, 4.5), (-0.5, 4.5))
    assert figure.axes[1].get_ylabel() == "Opt-Out, % of the cell"


# ------------------------------------------------------------------------------------------- seeds, and risk-coverage


def test_seeds_are_counted_by_question_and_by_action(run):
    left, right = plots.seed_figure(run, seeds=5).axes
    signals = plots.retrievals(run.samples).signals
    found = plots.seed_decisions(PAPER, signals, 5)
    assert sum(bar.get_height() for bar in left.patches) == len(signals) == 8
    top = [bar for bar in left.patches if bar.get_x() + bar.get_width() / 2 == 95]
    assert sum(bar.get_height() for bar in top) == (found.agreement > 0.9).sum()
    assert (left.get_xlabel(), left.get_xlim()) == ("seeds that decide as the run's gate, %", (0, 100))
    assert left.get_title(loc="left").endswith(f"alike on {(found.agreement == 1).mean():.0%}")
    strips = [line for line in right.lines if line.get_marker() == "o"]
    assert [line.get_ydata().tolist() for line in strips] == (100 * found.mixes.T).tolist()
    (own,) = [line for line in right.lines if line.get_label() == "the run's gate"]
    assert own.get_ydata().tolist() == (100 * found.mix).tolist()
    assert right.get_ylabel() == "share of the decisions, %"
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["Active", "Supp", "Silent", "Opt-Out"]


def test_curves_and_points_are_where_they_belong():
    curves = [
        risk_coverage("b3", [0.9, 0.8, 0.2, 0.1], [False, False, True, True]),
        risk_coverage("M alone", [0.1, 0.2, 0.8, 0.9], [False, False, True, True]),
        risk_coverage("R alone", [0.5] * 4, [False, False, True, True]),  # in the tables only
    ]
    points = [point("crag", 1.0, 0.5), point("b3", 0.5, 0.0), point("lr", 0.75, 0.5), point("abstain", 0.0, None)]
    figure = plots.risk_coverage_figure(curves, points)
    left, right = figure.axes
    b3, m = left.lines
    assert (b3.get_xdata().tolist(), b3.get_ydata().tolist()) == (
        [0.25, 0.5, 0.75, 1.0],
        [0, 0, pytest.approx(1 / 3), 0.5],
    )
    assert m.get_ydata().tolist() == [1, 1, pytest.approx(2 / 3), 0.5]
    assert b3.get_linestyle() != m.get_linestyle()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["B3 MDL, 0.208", "M alone, 0.792"]
    marks = [
        (*map(float, line.get_xydata()[0]),) for line in right.lines if line.get_marker() not in (None, "None", "")
    ]
    assert marks == [(0.5, 0.0), (1.0, 0.5), (0.75, 0.5)]
    assert texts_of(right) == ["B3 MDL", "CRAG", "logistic regression"]
    heights = [text.get_position()[1] for text in right.texts]
    assert heights[0] == 0
    assert heights[2] - heights[1] == pytest.approx(0.045)
    for axes in (left, right):
        assert (axes.get_xlim(), axes.get_ylim()) == ((0, 1), (0, 1))
    assert (left.get_xlabel(), right.get_xlabel()) == ("coverage", "coverage\n(none: always abstain)")
    assert left.get_ylabel() == "risk: hallucination rate of what is answered"


def test_curves_begin_where_there_are_answers_enough():
    curve = risk_coverage("b3", np.arange(200.0), np.arange(200) == 199)  # the most trusted answer is wrong
    figure = plots.risk_coverage_figure([curve])
    (axes,) = figure.axes
    assert axes.lines[0].get_xdata()[0] == 0.05
    assert axes.get_ylim() == (0, pytest.approx(0.2))


def test_lines_are_told_apart_without_colour():
    looks = list(plots.LINES.values())
    assert len({look.marker for look in looks}) == len(looks) <= 8
    same = [(one, two) for one, two in itertools.combinations(looks, 2) if one.dash == two.dash]
    for one, two in same:
        lights = sorted(
            plots.luminance([int(look.color[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for look in (one, two)
        )
        assert (lights[1] + 0.05) / (lights[0] + 0.05) > 2


# -------------------------------------------------------------------------------------------------------- as files


def figures_of(found):
    yield "decision_map", plots.decision_map(found)
    yield "confusion", plots.confusion(found)
    yield "gate_grid_figure", plots.gate_grid_figure(grid_of([[np.nan, 0.61], [0.59, 0.64]]))
    yield "abstention_map", plots.abstention_map(found)
    yield "seed_figure", plots.seed_figure(found, seeds=3)
    curve = risk_coverage("b3", [0.9, 0.8], [False, True])
    yield "risk_coverage_figure", plots.risk_coverage_figure([curve], [point("b3", 0.5, 0.0)])


def test_every_figure_is_saved_as_vector_and_as_pixels(run, tmp_path):
    made = dict(figures_of(run))
    assert set(made) == set(plots.CAPTIONS)
    for name, figure in made.items():
        assert save(figure, tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(save(figure, tmp_path / f"{name}.svg")).getroot().tag.endswith("svg")


def test_no_text_is_cut_off(run, monkeypatch):
    """At the edge of the figure."""
    from matplotlib.text import Text

    drawn, draw = [], Text.draw

    def noting(text, renderer):
        drawn.append(text)
        draw(text, renderer)

    monkeypatch.setattr(Text, "draw", noting)
    for name, figure in figures_of(run):
        drawn.clear()
        figure.draw_without_rendering()
        width, height = figure.bbox.size
        written = [text for text in drawn if text.get_text().strip()]
        assert len(written) > 5
        for text in written:
            box = text.get_window_extent()
            assert min(box.x0, box.y0, width - box.x1, height - box.y1) >= -1, (name, text.get_text())
            assert text.get_fontsize() >= 5.5, (name, text.get_text())


def test_a_run_without_answers_has_figures_too(run):
    nothing = study(run.samples.of("none"), layers={"paper": PAPER})
    assert plots.decision_map(nothing).axes[0].get_title(loc="left") == "A = 0.2, n = 0"
    assert texts_of(plots.confusion(nothing).axes[0]) == ["0"] * 8
    assert len(plots.abstention_map(nothing).axes[0].patches) == 25
    assert plots.seed_figure(nothing).axes[0].get_title(loc="left") == "the run has no answers"
    assert plots.risk_coverage_figure([], []).axes[0].get_title(loc="left") == "no scored answer of B2"
