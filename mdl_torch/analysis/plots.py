"""The paper's Figs. 4 and 5 over a run, and two that it leaves out: seeds of the basis, and risk against coverage.

What a figure shows is computed by a function of its own. Every figure is to be made within ``figures.style``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from mdl_torch.analysis.gating import NO_GRID, PAPER, PURE
from mdl_torch.analysis.safety import ACTION_NAMES
from mdl_torch.errors import unknown_name
from mdl_torch.evaluation.report import name_of
from mdl_torch.figures import ACTION_STYLES
from mdl_torch.outputs import Action
from mdl_torch.risk import HIGH_RISK, RISK_TOLERANCE
from mdl_torch.stability import seeded, seeded_actions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure
    from matplotlib.patheffects import AbstractPathEffect
    from numpy.typing import ArrayLike, NDArray

    from mdl_torch.analysis.gating import GateGrid
    from mdl_torch.analysis.samples import Floats, Samples
    from mdl_torch.analysis.selective import OperatingPoint, RiskCoverage
    from mdl_torch.analysis.study import Study
    from mdl_torch.layer import MemoryDecisionLayer

    Dash = Literal["-", ":"]
    Integers = NDArray[np.int64]

EDGE = 0.07
"""How near to the edge of a panel no contour is labelled."""

CAPTIONS = {
    "decision_map": (
        "Gated confidence C_final (contours; the heavy ones are the thresholds) and the actions of the calibrated gate"
        " over M and R, at three risks. Marks are B2's answers at exactly that risk: memories were in every prompt. A"
        " dot is a safe answer, a cross a hallucination; seeds of a question fall on one place, crosses on top. The"
        " paper marks its pooled end-to-end records."
    ),
    "confusion": (
        "B3's action against the paper's oracle, over B3's answers: counts, and shares of all of them. Outlined: cells"
        " in which the decision agrees with the oracle, Active being adopt and every other action reject."
    ),
    "gate_grid_figure": (
        "Decision accuracy in per cent with C_final = C·(g_a + g_b·α), thresholds fitted anew in each cell for C_final"
        " over g_a + g_b, so that only the ratio g_a : g_b matters; beneath, its standard deviation over bootstrap"
        " resamples. Outlined: the paper's setting, and C alone. A best cell is chosen on these answers. Colours"
        " span at least two such deviations either way. Hatched: no gate, its value being 0."
    ),
    "abstention_map": (
        "Share of retrievals with A ≥ 0.70 that the paper's gate answers with Opt-Out, by M and R, and how many there"
        " are; a retrieval counts once, however many seeds and systems answered it. Hatched: no retrieval."
    ),
    "seed_figure": (
        "The gate with other random bases, its range fitted for each on the same calibration, thresholds kept. Left:"
        " how large a share of the seeds decides as the run's gate does, by what that decides. Right: the share of each"
        " action, a dot a seed; box: quartiles, whiskers: 2.5% to 97.5%; diamond: the run's gate."
    ),
    "risk_coverage_figure": (
        "Left: hallucination among the B2 answers that a score trusts most, against their share, from 5% on; the area"
        " under each curve in the legend, lower being better. Right: where every system stands by its own answers and"
        " abstentions; light grey: systems without a curve here."
    ),
}
"""What a reader has to know of each figure, by the function that makes it."""


# ------------------------------------------------------------------------------------------- what the figures show


def plane(layer: MemoryDecisionLayer, risk: float, points: int = 101) -> tuple[Floats, Floats, NDArray[np.int8]]:
    """What a layer decides over M and R at one risk.

    Args:
        layer: Of any configuration.
        risk: A, in [0, 1].
        points: Along M and R, evenly from 0 to 1.

    Returns:
        The axis ``(points,)``; C_final and the action, ``(points, points)``, R down and M along.

    Example:
        >>> from mdl_torch import MemoryDecisionLayer
        >>> axis, gated, actions = plane(MemoryDecisionLayer(), 0.2, points=3)
        >>> axis.tolist(), actions[2, 2].item()
        ([0.0, 0.5, 1.0], 0)
    """
    axis = torch.linspace(0.0, 1.0, points, dtype=torch.float64)
    reliability, relevance = torch.meshgrid(axis, axis, indexing="ij")
    decision = layer(relevance, reliability, torch.full_like(relevance, risk))
    return axis.numpy(), decision.gated_confidence.numpy(), decision.action.numpy()


def action_counts(samples: Samples) -> Integers:
    """Answers by action and the paper's oracle, int ``(4, 2)``: a row an action, adopt before reject.

    Args:
        samples: Of one system.
    """
    found = np.zeros((len(Action), 2), np.int64)
    np.add.at(found, (samples.actions.astype(np.int64), np.where(samples.adopt, 0, 1)), 1)
    return found


def retrievals(samples: Samples) -> Samples:
    """The first answer to each question with the same signals: what a gate decides once, whatever seeds and systems."""
    first = {(q, *row): i for i, (q, row) in reversed(list(enumerate(zip(samples.questions.tolist(),
             samples.signals.tolist(), strict=True))))}  # fmt: skip
    return samples.where(np.sort(np.array(list(first.values()), np.int64)))


def binned_rate(signals: Floats, happened: NDArray[np.bool_], bins: int = 5) -> tuple[Floats, Integers]:
    """How often something happens in cells of M and R.

    Args:
        signals: M, R and A, ``(n, 3)`` in [0, 1].
        happened: bool ``(n,)``.
        bins: Along M and R, of equal width; each holds its lower edge, the last one 1, too.

    Returns:
        Rate and number of rows, ``(bins, bins)``, R down and M along; the rate is NaN where there is no row.

    Example:
        >>> rate, n = binned_rate(np.array([[0.9, 0.1, 0.8], [1.0, 0.4, 0.8]]), np.array([True, False]), bins=2)
        >>> n.tolist(), rate[0].tolist()
        ([[0, 2], [0, 0]], [nan, 0.5])
    """
    places = np.minimum((signals[:, :2] * bins).astype(np.int64), bins - 1)
    counts, hits = np.zeros((bins, bins), np.int64), np.zeros((bins, bins), np.int64)
    np.add.at(counts, (places[:, 1], places[:, 0]), 1)
    np.add.at(hits, (places[:, 1], places[:, 0]), happened.astype(np.int64))
    rates = np.full((bins, bins), np.nan)
    np.divide(hits, counts, out=rates, where=counts > 0)
    return rates, counts


@dataclass(frozen=True)
class SeedDecisions:
    """What layers of other seeds decide where a layer decides.

    Attributes:
        own: Of the layer, ``Action`` values, int8 ``(n,)``.
        others: Of the seeds, int8 ``(n, seeds)``.
    """

    own: NDArray[np.int8]
    others: NDArray[np.int8]

    @property
    def agreement(self) -> Floats:
        """Share of the seeds that decide as the layer, ``(n,)``."""
        found: Floats = (self.others == self.own[:, None]).mean(axis=1)
        return found

    @property
    def mixes(self) -> Floats:
        """Share of each action, ``(seeds, 4)``."""
        return np.stack([(self.others == action).mean(axis=0) for action in Action], axis=-1)

    @property
    def mix(self) -> Floats:
        """Of the layer itself, ``(4,)``."""
        return np.array([(self.own == action).mean() for action in Action])


def seed_decisions(layer: MemoryDecisionLayer, signals: Floats, seeds: int) -> SeedDecisions:
    """Decide on signals with the layers of the seeds 0, 1 and so on, each with its own range (``stability.seeded``).

    Args:
        layer: What they are compared with.
        signals: M, R and A, ``(n, 3)`` in [0, 1], n >= 1.
        seeds: How many, from 2.

    Raises:
        ValueError: As ``stability.seeded`` does.

    Example:
        >>> from mdl_torch import MemoryDecisionLayer
        >>> found = seed_decisions(MemoryDecisionLayer(), np.array([[0.9, 0.9, 0.1], [0.1, 0.1, 0.9]]), 3)
        >>> found.agreement.tolist()
        [1.0, 1.0]
    """
    columns = torch.as_tensor(signals, dtype=torch.float64).unbind(-1)
    others = seeded_actions(seeded(layer, seeds), *columns)
    return SeedDecisions(layer(*columns).action.numpy(), others.numpy())


# -------------------------------------------------------------------------------------------------------- Figure 4


def decision_map(study: Study, name: str = "paper", risks: Sequence[float] = (0.2, 0.5, 0.85)) -> Figure:
    """Fig. 4: actions and C_final over M and R at some risks, and what came of B2's answers there.

    Args:
        study: The run.
        name: Of its gate.
        risks: A panel each, at least one.

    Raises:
        ValueError: The run has no such gate.
    """
    from matplotlib.figure import Figure

    layer, answers = _layer(study, name), study.samples.of("b2")
    drawn = Figure(figsize=(0.6 + 2.3 * len(risks), 3.35), layout="constrained")
    panels = drawn.subplots(1, len(risks), sharex=True, sharey=True, squeeze=False)[0]
    for axes, risk in zip(panels, risks, strict=True):
        at_risk = answers.where(np.abs(answers.signals[:, 2] - risk) <= RISK_TOLERANCE)
        _draw_plane(axes, layer, risk, at_risk.signals[:, :2])
        marks = _draw_answers(axes, at_risk)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="relevance M", aspect="equal")
        axes.set_title(f"A = {risk:g}, n = {len(at_risk)}", loc="left")
    panels[0].set_ylabel("reliability R")
    thresholds = ", ".join(f"{value:.2g}" for value in layer.policy.thresholds.tolist())
    drawn.suptitle(f"gate: {name}, thresholds {thresholds}", x=0.01, ha="left", fontsize=9)
    drawn.legend(handles=[*_action_patches(), *marks], loc="outside lower center", ncols=3, handleheight=1.2)
    return drawn


def _draw_plane(axes: Axes, layer: MemoryDecisionLayer, risk: float, marks: Floats) -> None:
    """Regions of the actions, and contours of C_final with labels that keep clear of marks at ``(n, 2)``."""
    axis, gated, _ = plane(layer, risk)
    thresholds = layer.policy.thresholds.tolist()
    looks = [ACTION_STYLES[action] for action in reversed(Action)]  # from low C_final to high
    axes.contourf(
        axis,
        axis,
        gated,
        levels=[-1.0, *reversed(thresholds), 2.0],
        colors=[look.color for look in looks],
        hatches=[look.hatch for look in looks],
    )
    levels = sorted({0.2, 0.4, 0.6, 0.8, *thresholds})
    inside = [level for level in levels if gated.min() < level < gated.max()]
    if not inside:
        return
    widths = [1.3 if level in thresholds else 0.5 for level in inside]
    lines = axes.contour(axis, axis, gated, levels=inside, colors="black", linewidths=widths)
    lines.set_path_effects(_halo(1.2))
    places = _label_places([path.vertices for path in lines.get_paths()], marks)
    for label in axes.clabel(lines, fmt="%.2g", fontsize=6.5, inline_spacing=2, manual=places) if places else []:
        label.set_path_effects(_halo(1.6))


def _label_places(lines: Iterable[ArrayLike], marks: Floats) -> list[tuple[float, float]]:
    """A place on each line for its label, far from marks, other labels and edges; none on a line along an edge."""
    taken = [tuple(mark) for mark in marks.tolist()]
    found: list[tuple[float, float]] = []
    for line in lines:
        points = np.asarray(line, np.float64)
        points = points[((points > EDGE) & (points < 1 - EDGE)).all(axis=1)]
        if not len(points):
            continue
        gaps = np.full(len(points), 0.3)  # no farther than this matters
        for at in taken:
            gaps = np.minimum(gaps, np.hypot(*(points - at).T))
        x, y = points[np.flatnonzero(gaps == gaps.max())[0]].tolist()
        found.append((x, y))
        taken.append((x, y))
    return found


def _draw_answers(axes: Axes, answers: Samples) -> list[Artist]:
    """A dot a safe answer, a cross a hallucination."""
    found: list[Artist] = []
    looks: list[tuple[str, NDArray[np.bool_], dict[str, Any]]] = [
        (
            "B2's answer, safe",
            ~answers.hallucinated,
            {"marker": "o", "markersize": 4.8, "markerfacecolor": "0.6", "markeredgewidth": 0.5},
        ),
        (
            "B2's answer, a hallucination",
            answers.hallucinated,
            {"marker": "x", "markersize": 3.8, "markeredgewidth": 1.1, "path_effects": _halo(1.2)},
        ),
    ]
    for label, chosen, look in looks:
        relevance, reliability, _ = answers.signals[chosen].T
        color = {"color": "#8c1313"} if look["marker"] == "x" else {"color": "black"}
        look |= {"linestyle": "none", "clip_on": False, "zorder": 5, "label": label, **color}
        look["in_layout"] = False  # of no marks matplotlib takes the corner of the figure for the extent
        found += axes.plot(relevance, reliability, **look)
    return found


def _action_patches() -> list[Artist]:
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor="black", linewidth=0.4, label=ACTION_NAMES[action])
        for action, look in ACTION_STYLES.items()
    ]


# -------------------------------------------------------------------------------------------------------- Figure 5


def confusion(study: Study) -> Figure:
    """Fig. 5(a): B3's action against the paper's oracle, counts and shares of B3's answers.

    Args:
        study: The run.
    """
    from matplotlib.figure import Figure

    counts = action_counts(study.samples.of("b3"))
    total = int(counts.sum())
    drawn = Figure(figsize=(3.1, 3.0), layout="constrained")
    axes = drawn.add_subplot()
    texts = [[f"{n}\n{n / total:.1%}" if total else "0" for n in row] for row in counts.tolist()]
    _draw_cells(axes, counts.astype(np.float64), texts, "Blues", (0.0, max(1.0, float(counts.max()))), fontsize=8)
    axes.set_xticks([0, 1], ["adopt", "reject"])
    axes.set_yticks(range(len(Action)), [ACTION_NAMES[action] for action in Action])
    axes.invert_yaxis()
    axes.set(xlabel="the paper's oracle", ylabel="B3's action")
    axes.set_title(f"n = {total} answers of B3", loc="left")
    for action in Action:
        _outline(axes, 0 if action is Action.ACTIVE else 1, int(action), "-")
    return drawn


def gate_grid_figure(grid: GateGrid | None) -> Figure:
    """Fig. 5(b): accuracy of the gate over its constant g_a and its coefficient g_b of α.

    Args:
        grid: Of ``analysis.gating``; None where a run has none, which the figure then says.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    if grid is None:
        drawn = Figure(figsize=(4.0, 1.0), layout="constrained")
        drawn.text(0.02, 0.5, NO_GRID, va="center", wrap=True)
        return drawn
    accuracy = 100 * grid.accuracy
    rows, columns = accuracy.shape  # g_a down, g_b along; drawn the other way round
    drawn = Figure(figsize=(max(3.9, 1.7 + 0.38 * rows), max(2.8, 1.5 + 0.34 * columns)), layout="constrained")
    axes = drawn.add_subplot()
    low, high = float(accuracy.min()), float(accuracy.max())
    half = max((high - low) / 2, 200 * float(grid.std.max()))  # lest chance look like structure
    limits = ((low + high) / 2 - half, (low + high) / 2 + half)
    texts = [
        ["" if v is None else f"{v:.1f}\n±{100 * std:.1f}" for v, std in zip(*row, strict=True)]
        for row in zip(accuracy.T.tolist(), grid.std.T.tolist(), strict=True)
    ]
    image = _draw_cells(axes, accuracy.T.filled(np.nan), texts, "cividis", limits, fontsize=5.5)
    axes.set_xticks(range(rows), [f"{value:g}" for value in np.round(grid.constants, 6)])
    axes.set_yticks(range(columns), [f"{value:g}" for value in np.round(grid.coefficients, 6)])
    axes.set(xlabel="constant $g_a$", ylabel="coefficient of α, $g_b$")
    marks: list[Artist] = []
    settings: tuple[tuple[str, tuple[float, float], Dash], ...] = (
        ("the paper's (0.3, 0.7)", PAPER, "-"),
        ("C alone, (1, 0)", PURE, ":"),
    )
    for label, (constant, coefficient), dash in settings:
        a = np.flatnonzero(np.isclose(grid.constants, constant))
        b = np.flatnonzero(np.isclose(grid.coefficients, coefficient))
        if a.size and b.size:
            _outline(axes, int(a[0]), int(b[0]), dash)
            marks.append(Line2D([], [], color="black", linewidth=1.6, linestyle=dash, label=label))
    drawn.colorbar(image, ax=axes, label="decision accuracy, %", pad=0.02)
    if marks:
        drawn.legend(handles=marks, loc="outside lower center", ncols=2)
    return drawn


def abstention_map(study: Study, bins: int = 5) -> Figure:
    """Fig. 5(c): how often the paper's gate abstains at A >= 0.70, by M and R, with the retrievals in each cell.

    Args:
        study: The run.
        bins: Along M and R.
    """
    from matplotlib.figure import Figure

    found = retrievals(study.samples)
    found = found.where(found.signals[:, 2] >= HIGH_RISK - RISK_TOLERANCE)
    rates, counts = binned_rate(found.signals, found.actions == Action.OPT_OUT, bins)
    drawn = Figure(figsize=(4.0, 3.4), layout="constrained")
    axes = drawn.add_subplot()
    texts = [
        [f"{rate:.0%}\nn = {n}" if n else "" for rate, n in zip(*row, strict=True)]
        for row in zip((rates).tolist(), counts.tolist(), strict=True)
    ]
    image = _draw_cells(axes, 100 * rates, texts, "Blues", (0.0, 100.0), fontsize=7)
    edges = [f"{edge:.2g}" for edge in np.linspace(0, 1, bins + 1)]
    axes.set_xticks(np.arange(bins + 1) - 0.5, edges)
    axes.set_yticks(np.arange(bins + 1) - 0.5, edges)
    axes.set(xlabel="relevance M", ylabel="reliability R")
    axes.set_title(f"A ≥ {HIGH_RISK:.2f}, n = {len(found)} retrievals", loc="left")
    drawn.colorbar(image, ax=axes, label="Opt-Out, % of the cell", pad=0.02)
    return drawn


def _draw_cells(
    axes: Axes,
    values: Floats,
    texts: Sequence[Sequence[str]],
    colors: str,
    limits: tuple[float, float],
    fontsize: float,
) -> QuadMesh:
    """A heat map with a text in the middle of each cell, at whole numbers; a cell without a value is hatched."""
    from matplotlib.patches import Rectangle

    rows, columns = values.shape
    mesh = axes.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        np.ma.masked_invalid(values),
        cmap=colors,
        vmin=limits[0],
        vmax=limits[1],
        edgecolor="white",
        linewidth=0.5,
    )
    for row, column in np.ndindex(rows, columns):
        if np.isnan(values[row, column]):
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", edgecolor="0.8", lw=0))
            continue
        ink = "black" if luminance(mesh.to_rgba(values[row, column])) > 0.179 else "white"  # of the higher contrast
        axes.text(column, row, texts[row][column], ha="center", va="center", fontsize=fontsize, color=ink)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return mesh


def luminance(color: ArrayLike) -> float:
    """Relative luminance of an sRGB colour, 0 black to 1 white (WCAG 2).

    Example:
        >>> round(luminance((1.0, 1.0, 1.0)), 6), round(luminance((0.0, 0.5, 0.0)), 3)
        (1.0, 0.153)
    """
    rgb = np.asarray(color, np.float64)[:3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def _outline(axes: Axes, column: int, row: int, dash: Dash) -> None:
    """A frame around a cell."""
    from matplotlib.patches import Rectangle

    frame = Rectangle((column - 0.44, row - 0.44), 0.88, 0.88, fill=False, edgecolor="black", linewidth=1.6, ls=dash)
    frame.set_path_effects(_halo(1.4))
    axes.add_patch(frame)


# ------------------------------------------------------------------------------------------- seeds, and risk-coverage


def seed_figure(study: Study, seeds: int = 40, name: str = "paper") -> Figure:
    """How much the decisions of a run owe to the seed of the basis: agreement with its gate, and each seed's actions.

    Args:
        study: The run.
        seeds: How many others, from 2.
        name: Of its gate.

    Raises:
        ValueError: The run has no such gate, or ``seeds`` is out of range.
    """
    from matplotlib.figure import Figure

    layer, signals = _layer(study, name), retrievals(study.samples).signals
    drawn = Figure(figsize=(7.0, 3.3), layout="constrained")
    left, right = drawn.subplots(1, 2)
    left.set(xlim=(0, 100), xlabel="seeds that decide as the run's gate, %", ylabel="retrievals")
    right.set(ylim=(-2, 102), xlim=(-0.6, len(Action) - 0.4), ylabel="share of the decisions, %", xlabel="action")
    right.set_xticks(range(len(Action)), [ACTION_NAMES[action] for action in Action])
    drawn.legend(handles=_action_patches(), loc="outside lower center", ncols=4, handleheight=1.2)
    if not len(signals):
        left.set_title("the run has no answers", loc="left")
        return drawn
    found = seed_decisions(layer, signals, seeds)
    _draw_agreement(left, found)
    _draw_mixes(right, found)
    left.set_title(
        f"n = {len(signals)} retrievals, all {seeds} seeds alike on {np.mean(found.agreement == 1):.0%}", loc="left"
    )
    right.set_title(f"{seeds} seeds (dots, box), the run's gate (diamond)", loc="left")
    return drawn


def _draw_agreement(axes: Axes, found: SeedDecisions) -> None:
    """Retrievals by the share of seeds that agree, stacked by what the layer itself decides."""
    edges = np.linspace(0, 100, 11)
    base = np.zeros(len(edges) - 1)
    for action, look in ACTION_STYLES.items():
        counts, _ = np.histogram(100 * found.agreement[found.own == action], edges)
        fill: dict[str, Any] = {"color": look.color, "hatch": look.hatch, "edgecolor": "black", "linewidth": 0.5}
        axes.bar(edges[:-1] + 5, counts, 9, base, **fill)
        base += counts


def _draw_mixes(axes: Axes, found: SeedDecisions) -> None:
    """A strip and a box of every seed's share of each action; a diamond where the layer itself stands."""
    shares = 100 * found.mixes
    aside = (np.arange(len(shares)) * 0.618 % 1 - 0.5) * 0.24 + 0.25  # spread without chance
    for action, look in ACTION_STYLES.items():
        column, place = shares[:, action], float(action)
        axes.boxplot(
            column,
            positions=[place - 0.06],
            widths=0.26,
            whis=(2.5, 97.5),
            showfliers=False,
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": look.color, "hatch": look.hatch, "linewidth": 0.6},
            medianprops={"color": "#a8231f", "linewidth": 1.4, "path_effects": _halo(1.2)},
        )
        axes.plot(place + aside, column, "o", color="0.25", markersize=2.2, markeredgewidth=0, alpha=0.8, clip_on=False)
    own: dict[str, Any] = {"color": "white", "markeredgecolor": "black", "markeredgewidth": 1.2, "markersize": 6.5}
    axes.plot(
        np.arange(len(Action)) - 0.33, 100 * found.mix, "D", label="the run's gate", zorder=6, clip_on=False, **own
    )


class Line(NamedTuple):
    """A curve, and the marker of its system where that is a point."""

    color: str
    dash: Any
    marker: str


LINES: dict[str, Line] = {
    "b3": Line("#17375e", "-", "o"),
    "certified": Line("#4a87b5", (0, (5, 1.5)), "s"),
    "ensemble": Line("#3f7f5f", (0, (5, 1.5, 1, 1.5)), "D"),
    "lr": Line("#a8491f", ":", "^"),
    "mlp": Line("#b07d1a", (0, (1, 4)), "v"),
    "xgboost": Line("#8a3f78", (0, (3, 1, 1, 1, 1, 1)), "P"),
    "tree": Line("#7a7a7a", "-", "X"),
    "M alone": Line("#000000", (0, (8, 3)), "*"),
}
"""Scores that are drawn, the others being in the tables."""

LEAST_COVERAGE = 0.05
"""Where curves begin: fewer answers are noise."""


def risk_coverage_figure(curves: Iterable[RiskCoverage], points: Iterable[OperatingPoint] = ()) -> Figure:
    """Risk-coverage curves of scores, and beside them where every system stands by its own decisions.

    Args:
        curves: Of ``analysis.selective``; those in ``LINES`` are drawn.
        points: Of every system; none leaves the panel out.
    """
    from matplotlib.figure import Figure

    shown = sorted((curve for curve in curves if curve.system in LINES), key=lambda curve: curve.area)
    stands = list(points)
    risks = [*(r for curve in shown for r in _beyond_noise(curve)[1].tolist()), *(p.risk.value or 0.0 for p in stands)]
    top = min(1.0, np.ceil(10 * max(risks, default=0.0) + 1) / 10)
    drawn = Figure(figsize=(7.0, 4.2), layout="constrained")
    drawn.get_layout_engine().set(wspace=0.05)  # type: ignore[union-attr, call-arg]
    panels = drawn.subplots(1, 2 if stands else 1, sharey=True, squeeze=False)[0]
    for axes in panels:
        axes.set(xlim=(0, 1), ylim=(0, top), xlabel="coverage")
    panels[0].set_ylabel("risk: hallucination rate of what is answered")
    lines = _draw_curves(panels[0], shown)
    if lines:
        drawn.legend(handles=lines, loc="outside lower left", ncols=3, handlelength=3.4, fontsize=7)
    if stands:
        panels[1].set_title("every system by its own decisions", loc="left")
        _draw_points(panels[1], stands)
    return drawn


def _draw_curves(axes: Axes, curves: Sequence[RiskCoverage]) -> list[Artist]:
    """A line a score; what the legend shows."""
    found: list[Artist] = []
    for curve in curves:
        look, label = LINES[curve.system], f"{name_of(curve.system)}, {curve.area:.3f}"
        found += axes.plot(*_beyond_noise(curve), color=look.color, linestyle=look.dash, label=label)
    n = max((len(curve.risk) for curve in curves), default=0)
    axes.set_title(f"B2's {n} answers, by score (area)" if n else "no scored answer of B2", loc="left")
    return found


def _beyond_noise(curve: RiskCoverage) -> tuple[Floats, Floats]:
    chosen = curve.coverage >= LEAST_COVERAGE
    return curve.coverage[chosen], curve.risk[chosen]


def _draw_points(axes: Axes, points: Sequence[OperatingPoint]) -> None:
    """A mark a system, its name in a column beside the panel, at the end of a line."""
    answering = [
        (point.coverage.value, point.risk.value, point.system)
        for point in points
        if point.coverage.value is not None and point.risk.value is not None
    ]
    answering.sort(key=lambda found: found[1])
    top = axes.get_ylim()[1]
    heights = top * spread([risk / top for _, risk, _ in answering], 0.045)
    for (coverage, risk, system), height in zip(answering, heights.tolist(), strict=True):
        look = LINES.get(system, Line("0.75", "-", "o"))
        axes.plot([coverage, 1.03], [risk, height], color="0.75", linewidth=0.5, clip_on=False, zorder=1)
        edge: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.5}
        axes.plot(coverage, risk, look.marker, color=look.color, markersize=6, clip_on=False, zorder=3, **edge)
        axes.text(1.04, height, name_of(system), va="center", fontsize=7)
    if silent := [name_of(point.system) for point in points if point.risk.value is None]:
        axes.set_xlabel(f"coverage\n(none: {', '.join(silent)})")


def spread(values: Sequence[float], gap: float) -> Floats:
    """Rising values in [0, 1], moved as little as neighbours need to be a gap apart; evenly if there is no room.

    Neighbours that touch move as one, to the mean of where they want to be (isotonic regression).

    Example:
        >>> spread([0.5, 0.5, 0.9], 0.1).round(3).tolist()
        [0.45, 0.55, 0.9]
    """
    n = len(values)
    if n * gap > 1 + gap:
        return np.linspace(0, 1, n)
    steps = gap * np.arange(n)
    blocks: list[tuple[float, int]] = []
    for wanted in (np.asarray(values, np.float64) - steps).tolist():
        mean, count = wanted, 1
        while blocks and blocks[-1][0] > mean:
            before, size = blocks.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        blocks.append((mean, count))
    level = np.array([mean for mean, count in blocks for _ in range(count)])
    found: Floats = np.clip(level, 0, 1 - gap * (n - 1)) + steps
    return found


def _halo(width: float) -> list[AbstractPathEffect]:
    """A white edge, so that a line or a text is legible on any fill."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2 * width, foreground="white")]


def _layer(study: Study, name: str) -> MemoryDecisionLayer:
    if name not in study.layers:
        raise ValueError(unknown_name("gate", name, study.layers))
    return study.layers[name]
