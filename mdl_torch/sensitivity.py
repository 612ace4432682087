"""How the action mix and the monotonicity of the controller depend on each value of Table 2.

One value at a time is set around the configured one, and the layer evaluated on a grid of the cube of signals. What is
measured on a grid proves nothing about the points between: ``mdl certify`` proves.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mdl_torch.config import CHANNELS, MDLConfig
from mdl_torch.errors import check_keys
from mdl_torch.figures import ACTION_STYLES, SIGNAL_STYLES, save, style
from mdl_torch.layer import MemoryDecisionLayer, exact_norm_range
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType

Value = float | int | tuple[float, ...] | tuple[int, ...]
"""What a value of Table 2 is set to; several numbers where they move together."""

FIELDS = (
    "sigma",
    "dim",
    "subspace_dims",
    "cross_leakage",
    "subspace_gains[0]",
    "subspace_gains[1]",
    "subspace_gains[2]",
    "risk_gain[0]",
    "risk_gain[1]",
    "gate",
    "bias",
)
"""The values that are set: fields of the configuration, with the place where only one of its numbers is."""

ROUNDING = 1e-12
"""C_final that falls by no more than this in a step has not fallen: float64 rounds."""

POINTS_AT_ONCE = 8192
"""Points of the grid that are decided on at once: about 3 MB a tensor, so that they stay in the cache."""


@dataclass(frozen=True)
class Setting:
    """The layer with one value set, as measured on the grid.

    Attributes:
        value: What it was set to.
        configured: Whether that is the configuration's own value.
        norm_range: The exact (n_min, n_max) of this setting; with several bases the mean of theirs.
        action_mix: Share of the grid's points that get each action, by its label.
        falling: Share of the steps between neighbours in which C_final falls although it should rise: with rising
            relevance, with rising reliability, with falling risk.
        smallest_slope: Smallest slope of C_final in a step, per unit of relevance, of reliability and of -risk;
            below 0 where it falls.
    """

    value: Value
    configured: bool
    norm_range: tuple[float, float]
    action_mix: dict[str, float]
    falling: dict[str, float]
    smallest_slope: dict[str, float]


@dataclass(frozen=True)
class Series:
    """Settings of one value of Table 2, all others as configured.

    Attributes:
        field: One of ``FIELDS``.
        symbol: As the paper writes it.
        meaning: In words.
        settings: In rising order; of several numbers the configured first.
    """

    field: str
    symbol: str
    meaning: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Sensitivity:
    """What ``sensitivity`` found.

    Attributes:
        config: The configuration as plain values.
        points: Points of the grid along each signal.
        series: One a value.
        notes: What a reader must know to read the figures, and which values were left out.
    """

    config: dict[str, Any]
    points: int
    series: tuple[Series, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values.

        Example:
            >>> list(sensitivity(MDLConfig(), points=2, fields=["bias"]).to_dict())
            ['config', 'points', 'series', 'notes']
        """
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]


def sensitivity(
    config: MDLConfig, points: int = 41, *, fields: Iterable[str] = FIELDS, progress: bool = False
) -> Sensitivity:
    """Set each value of Table 2 around the configured one, and measure what becomes of the controller.

    The range (n_min, n_max) is the exact one of each setting, whatever the configuration holds; the thresholds are the
    configured ones. A setting that the configuration refuses, such as ε_c >= min s_k, is not listed, nor is one whose
    norm hardly differs over the cube. Values without effect, those of a mechanism that is ablated, are left out, as is
    D where the basis is a named one.

    Args:
        config: What is varied.
        points: Points of the grid along each signal, at least 2; the cube has ``points``³. At 41 a setting takes
            about a tenth of a second with one basis, and there are some 60.
        fields: Which values, of ``FIELDS``; all by default.
        progress: Whether to show a progress bar on standard error.

    Raises:
        TypeError: ``config`` is no MDLConfig, or ``points`` no integer.
        ValueError: ``points`` is less than 2, a field is unknown, or the norm of the configuration itself hardly
            differs over the cube.

    Example:
        >>> sigma = sensitivity(MDLConfig(), points=11, fields=["sigma"]).series[0]
        >>> [(s.value, round(s.falling["relevance"], 2)) for s in sigma.settings]
        [(0.1, 0.18), (0.15, 0.23), (0.2, 0.28), (0.25, 0.31), (0.3, 0.32), (0.4, 0.34)]
    """
    if not isinstance(config, MDLConfig):
        raise TypeError(f"config must be an MDLConfig, got {type(config).__name__}")
    if isinstance(points, bool) or not isinstance(points, int):
        raise TypeError(f"points must be an integer, got {points!r}")
    if points < 2:
        raise ValueError(f"points must be at least 2, got {points}")
    wanted = tuple(fields)
    check_keys("field", wanted, FIELDS)
    ranged = replace(config, norm_range=None)
    exact_norm_range(ranged)  # raises, where a setting would only not be listed
    plans = [plan for plan in _plans(ranged) if plan.field in wanted]
    measured = _measured((varied for plan in plans for varied in plan.settings.values()), points, progress)
    series = [
        Series(
            plan.field,
            plan.symbol,
            plan.meaning,
            tuple(
                Setting(value, varied == ranged, *measured[varied])
                for value, varied in plan.settings.items()
                if varied in measured
            ),
        )
        for plan in plans
    ]
    return Sensitivity(config.to_dict(), points, tuple(series), tuple(_notes(config, points, wanted)))


# --- which settings ---------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """A series to be: what the value is set to, and the configuration that it makes."""

    field: str
    symbol: str
    meaning: str
    settings: dict[Value, MDLConfig]


_FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""For values above 0, times the configured one."""

_LEAKAGE_STEPS = (-0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.3)
_GAIN_STEPS = (-0.5, -0.25, 0.0, 0.25, 0.5)
_GATE_STEPS = (-0.3, -0.2, 0.0, 0.2, 0.4, 0.7)
_BIAS_STEPS = (-0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5)
"""For values that may be 0, added to the configured one."""

_RATIOS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1))
"""Of the three dimensions: even, one of them favoured, one of them slighted."""


def split_dims(dim: int, ratio: Sequence[int]) -> tuple[int, int, int]:
    """Three dimensions of at least 1 that add up to D, as near to a ratio as it goes (least squares).

    Of splits equally near, the one that gives most to the first.

    Args:
        dim: D, at least 3.
        ratio: Three positive numbers.

    Example:
        >>> split_dims(16, (5, 5, 6)), split_dims(24, (5, 5, 6)), split_dims(8, (1, 1, 1))
        ((5, 5, 6), (8, 7, 9), (3, 3, 2))
    """
    ideal = [dim * part / sum(ratio) for part in ratio]
    first, second = ([max(1, int(size) + step) for step in (2, 1, 0, -1)] for size in ideal[:2])
    splits = [(a, b, dim - a - b) for a in first for b in second if a + b < dim]
    return min(splits, key=lambda split: round(sum((d - i) ** 2 for d, i in zip(split, ideal, strict=True)), 9))


def _plans(config: MDLConfig) -> Iterator[_Plan]:
    """The series of a configuration, without values that have no effect or cannot be set."""

    def plan(field: str, symbol: str, meaning: str, changes: Mapping[Any, dict[str, Any]]) -> _Plan:
        made = {value: _varied(config, change) for value, change in changes.items()}
        return _Plan(field, symbol, meaning, {value: varied for value, varied in made.items() if varied is not None})

    def place(name: str, k: int, value: float) -> dict[str, Any]:
        numbers = getattr(config, name)
        return {name: (*numbers[:k], value, *numbers[k + 1 :])}

    if config.value_encoding:
        yield plan("sigma", "σ", "width of the peaks", {x: {"sigma": x} for x in _scaled(config.sigma)})
    if config.basis is None:
        sizes = sorted({max(3, round(config.dim * factor)) for factor in _FACTORS} | {config.dim})
        splits = {d: split_dims(d, config.subspace_dims) if d != config.dim else config.subspace_dims for d in sizes}
        yield plan("dim", "D", "dimension", {d: {"dim": d, "subspace_dims": split} for d, split in splits.items()})
    if config.orthogonal_subspaces:
        others = (split_dims(config.dim, ratio) for ratio in _RATIOS)
        yield plan(
            "subspace_dims",
            "d_wm:d_r:d_a",
            "split",
            {split: {"subspace_dims": split} for split in (config.subspace_dims, *others)},
        )
        leakages = _shifted(config.cross_leakage, _LEAKAGE_STEPS)
        yield plan("cross_leakage", "ε_c", "leakage", {x: {"cross_leakage": x} for x in leakages})
    for k, (channel, symbol) in enumerate(zip(CHANNELS, ("s_wm", "s_r", "s_a"), strict=True)):
        gains = {x: place("subspace_gains", k, x) for x in _scaled(config.subspace_gains[k])}
        yield plan(f"subspace_gains[{k}]", symbol, f"{channel} gain", gains)
    if config.risk_modulation:
        for k, (symbol, meaning) in enumerate((("g0", "fixed part of g_A"), ("g1", "risk part of g_A"))):
            parts = {x: place("risk_gain", k, x) for x in _shifted(config.risk_gain[k], _GAIN_STEPS)}
            yield plan(f"risk_gain[{k}]", symbol, meaning, parts)
    if config.alpha_gate:
        whole = sum(config.gate)
        pairs = [
            config.gate if part == config.gate[0] else (part, _tidy(whole - part))
            for part in _shifted(config.gate[0], _GATE_STEPS)
        ]
        yield plan("gate", "g_a:g_b", f"gate, sum {whole:g}", {pair: {"gate": pair} for pair in pairs})
    yield plan("bias", "b", "bias", {x: {"bias": x} for x in _shifted(config.bias, _BIAS_STEPS)})


def _varied(config: MDLConfig, change: dict[str, Any]) -> MDLConfig | None:
    try:
        return replace(config, **change)
    except ValueError:
        return None


def _scaled(value: float) -> list[float]:
    """Nine digits: 0.15, not 0.15000000000000002."""
    return [value if factor == 1 else float(f"{value * factor:.9g}") for factor in _FACTORS]


def _shifted(value: float, steps: Iterable[float]) -> list[float]:
    return [value if step == 0 else _tidy(value + step) for step in steps]


def _tidy(value: float) -> float:
    """Nine places, since what rounding leaves of a difference is to be 0; and no negative zero."""
    return round(value, 9) + 0.0


def _notes(config: MDLConfig, points: int, wanted: Collection[str]) -> Iterator[str]:
    yield (
        f"Measured on a grid of {points} points along each signal; it proves nothing about the points between, "
        "which `mdl certify` does."
    )
    unused = f"; the configured {_spelled(config.norm_range)} is not used" if config.norm_range else ""
    thresholds = ", ".join(f"{theta:g}" for theta in config.thresholds)
    yield f"n_min and n_max are the exact range of each setting{unused}. Thresholds stay at {thresholds}."
    if "dim" in wanted and config.basis is None:
        yield "Another D means another basis of the same seed: part of what differs there is the luck of the draw."
    elif "dim" in wanted:
        yield f"D is left out: the basis {config.basis!r} has but one."
    if "gate" in wanted and config.alpha_gate:
        whole = sum(config.gate)
        bound = ", which keeps C_final within [0, 1]" if whole <= 1 else ""
        yield f"g_a and g_b move together, their sum stays {whole:g}{bound}."
    for switch, unused_fields in _WITHOUT.items():
        left_out = [field for field in unused_fields if field in wanted and not getattr(config, switch)]
        if left_out:
            yield f"Left out, since without {switch} it has no effect: {', '.join(left_out)}."


_WITHOUT = {
    "value_encoding": ("sigma",),
    "orthogonal_subspaces": ("subspace_dims", "cross_leakage"),
    "risk_modulation": ("risk_gain[0]", "risk_gain[1]"),
    "alpha_gate": ("gate",),
}
"""The values that an ablated mechanism alone uses."""


# --- what becomes of them ---------------------------------------------------------------------------------------------


class _Measure(NamedTuple):
    norm_range: tuple[float, float]
    action_mix: dict[str, float]
    falling: dict[str, float]
    smallest_slope: dict[str, float]


def _measured(configs: Iterable[MDLConfig], points: int, progress: bool) -> dict[MDLConfig, _Measure]:
    """Each configuration that has a range, measured once."""
    from tqdm import tqdm

    measured = {}
    for config in tqdm(list(dict.fromkeys(configs)), desc="sensitivity", unit=" settings", disable=not progress):
        try:
            layer = MemoryDecisionLayer(config)
        except ValueError:  # the norm hardly differs over the cube
            continue
        measured[config] = _measure(layer, points)
    return measured


def _measure(layer: MemoryDecisionLayer, points: int) -> _Measure:
    gated, actions = _on_grid(layer, points)
    mix = (torch.bincount(actions, minlength=len(Action)).double() / len(actions)).tolist()
    rises = (gated.diff(dim=0), gated.diff(dim=1), -gated.diff(dim=2))
    low, high = layer.head.norm_range.reshape(-1, 2).mean(dim=0).tolist()  # of each basis
    return _Measure(
        norm_range=(low, high),
        action_mix={action.label: mix[action] for action in Action},
        falling=_by_channel((rise < -ROUNDING).double().mean() for rise in rises),
        smallest_slope=_by_channel(rise.min() * (points - 1) for rise in rises),
    )


@torch.no_grad()
def _on_grid(layer: MemoryDecisionLayer, points: int) -> tuple[Tensor, Tensor]:
    """C_final ``(points, points, points)`` over M, R and A, and the actions ``(points³,)``."""
    axis = torch.linspace(0.0, 1.0, points, dtype=torch.float64)
    parts = torch.cartesian_prod(axis, axis, axis).split(max(1, POINTS_AT_ONCE // layer.config.bases))
    gated, actions = zip(*((d.gated_confidence, d.action) for d in (layer(*p.unbind(-1)) for p in parts)), strict=True)
    return torch.cat(gated).reshape(points, points, points), torch.cat(actions).long()


def _by_channel(values: Iterable[Tensor]) -> dict[str, float]:
    return {channel: value.item() for channel, value in zip(CHANNELS, values, strict=True)}


# --- for the eye ------------------------------------------------------------------------------------------------------


def sensitivity_table(result: Sensitivity) -> RenderableType:
    """The result, one setting a row; ``>`` marks the configured ones. It needs no colour and 100 columns.

    Args:
        result: What to show.

    Example:
        >>> from rich.console import Console
        >>> result = sensitivity(MDLConfig(), points=3, fields=["sigma"])
        >>> with (console := Console(width=100)).capture() as shown:
        ...     console.print(sensitivity_table(result))
        >>> "> 0.2" in shown.get()
        True
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("\nsetting", overflow="fold", min_width=12)
    for head in (*(f"\n{action.label}" for action in Action), *_HEADS):
        table.add_column(head, justify="right", no_wrap=True)
    for series in result.series:
        table.add_row(Text(f"{series.symbol} {series.meaning}", style="bold"))
        for setting in series.settings:
            mark = ">" if setting.configured else " "
            table.add_row(Text(f"{mark} {_spelled(setting.value)}"), *_cells(setting))
        table.add_section()
    return Group(Text(_LEGEND), table, *(Text(note) for note in result.notes))


_LEGEND = (
    "Actions: percent of the cube of signals. Falls and rises: percent of the steps on the grid in which C_final falls "
    "with rising M or R, or rises with rising A. Slope: smallest of C_final in a step, per unit. > is configured."
)

_HEADS = ("falls\nby M", "falls\nby R", "rises\nby A", "slope\nM", "slope\nR", "slope\n-A", "\nn_min", "\nn_max")
"""Of the columns after the actions."""


def _cells(setting: Setting) -> Iterator[str]:
    yield from (f"{100 * share:.1f}" for share in setting.action_mix.values())
    yield from (f"{100 * share:.2f}" for share in setting.falling.values())
    yield from (f"{slope:+.3f}" for slope in setting.smallest_slope.values())
    yield from (f"{norm:.3f}" for norm in setting.norm_range)


def _spelled(value: Value) -> str:
    return ":".join(f"{number:g}" for number in value) if isinstance(value, tuple) else f"{value:g}"


COLUMNS = 4
"""Panels in a row of the figure."""


def draw(result: Sensitivity, path: str | os.PathLike[str]) -> Path:
    """Draw the result, one panel a value: above the action mix, below the shares of steps in the wrong direction.

    Args:
        result: What to draw.
        path: Where to, as PNG, PDF or SVG by its suffix.

    Returns:
        The path.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: The suffix is another.
        OSError: It cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "sensitivity.svg"
        >>> draw(sensitivity(MDLConfig(), points=3, fields=["sigma"]), target).stat().st_size > 0
        True
    """
    with style():
        return save(sensitivity_figure(result), path)


def sensitivity_figure(result: Sensitivity) -> Figure:
    """The figure that ``draw`` saves, to be made within ``figures.style``.

    Args:
        result: What to draw.
    """
    from matplotlib.figure import Figure

    rows = -(-(len(result.series) + 1) // COLUMNS)  # one place for the legend
    drawn = Figure(figsize=(13, 1.1 + 3.1 * rows))
    height = drawn.get_figheight()
    places = drawn.add_gridspec(
        rows,
        COLUMNS,
        left=0.055,
        right=0.99,
        top=1 - 0.75 / height,
        bottom=0.95 / height,
        wspace=0.14,
        hspace=0.38,
    )
    drawn.suptitle("Action mix and monotonicity by the values of Table 2", fontsize=12, y=1 - 0.18 / height)
    for number, series in enumerate(result.series):
        halves = places[divmod(number, COLUMNS)].subgridspec(2, 1, height_ratios=(3, 2), hspace=0.16)
        below = drawn.add_subplot(halves[1])
        above = drawn.add_subplot(halves[0], sharex=below)
        _draw_mix(above, series)
        _draw_falling(below, series)
        if number % COLUMNS == 0:
            above.set_ylabel("share of the cube, %")
            below.set_ylabel("share of steps, %")
        else:
            above.tick_params(labelleft=False)
            below.tick_params(labelleft=False)
    _draw_legend(drawn.add_subplot(places[divmod(len(result.series), COLUMNS)]))
    drawn.text(0.055, 0.12 / height, "\n".join(result.notes[:2]), fontsize=8)
    return drawn


def _draw_mix(axes: Axes, series: Series) -> None:
    """Stacked bars of the four actions, Active at the bottom."""
    places = range(len(series.settings))
    base = [0.0] * len(series.settings)
    for action in Action:
        shares = [100 * setting.action_mix[action.label] for setting in series.settings]
        look = ACTION_STYLES[action]
        axes.bar(places, shares, 0.8, base, color=look.color, hatch=look.hatch, edgecolor="black", linewidth=0.4)
        base = [b + share for b, share in zip(base, shares, strict=True)]
    axes.set(title=f"{_typeset(series.symbol)}  {_typeset(series.meaning)}", ylim=(0, 112), yticks=(0, 25, 50, 75, 100))
    axes.tick_params(bottom=False, labelbottom=False)
    for place in _configured(series):
        axes.plot(place, 106, marker="v", color="black", markersize=5, clip_on=False)


def _draw_falling(axes: Axes, series: Series) -> None:
    """A line a signal, markers alone where settings have no order; the scale shows a thousandth and a third alike."""
    ordered = series.field != "subspace_dims"
    places = range(len(series.settings))
    for k, (channel, look) in enumerate(SIGNAL_STYLES.items()):
        shares = [100 * setting.falling[channel] for setting in series.settings]
        beside = places if ordered else [place + 0.25 * (k - 1) for place in places]
        line = look.dash if ordered else ""
        axes.plot(beside, shares, color=look.color, marker=look.marker, linestyle=line, clip_on=False)
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set(ylim=(0, 100), yticks=(0, 0.1, 1, 10, 100), yticklabels=("0", "0.1", "1", "10", "100"))
    axes.minorticks_off()
    axes.grid(axis="y", linewidth=0.3, color="0.8")
    axes.set(xlim=(-0.6, len(series.settings) - 0.4), xlabel=series.field)
    labels = axes.set_xticks(places, [_spelled(setting.value) for setting in series.settings])
    for place in _configured(series):
        axes.axvline(place, color="0.75", linewidth=5, zorder=0)
        labels[place].label1.set_fontweight("bold")


def _typeset(text: str) -> str:
    """With the paper's subscripts: s_wm as matplotlib's mathematics."""
    return re.sub(r"_(\w+)", r"$_{\\mathrm{\1}}$", text)


def _configured(series: Series) -> list[int]:
    return [place for place, setting in enumerate(series.settings) if setting.configured]


def _draw_legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axes.axis("off")
    actions = [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor="black", linewidth=0.4, label=action.label)
        for action, look in reversed(ACTION_STYLES.items())  # as they are stacked
    ]
    signals = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.dash, label=_typeset(f"C_final {way}"))
        for look, way in zip(
            SIGNAL_STYLES.values(), ("falls with rising M", "falls with rising R", "rises with rising A"), strict=True
        )
    ]
    configured = [Line2D([], [], color="black", marker="v", linestyle="", label="configured value")]
    axes.legend(handles=actions + signals + configured, loc="center", handlelength=3, handleheight=1.3)
