"""Certificates for the eye: what is proved of a controller, in words and tables; and how much hangs on the seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mdl_torch.certificate import PARTS
from mdl_torch.config import CHANNELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mdl_torch.certificate import Certificate, Interval, PartSlopes
    from mdl_torch.stability import SeedStability

SYMBOLS = {"relevance": "M", "reliability": "R", "risk": "-A"}
"""The way along each signal that should raise trust."""

_STRICT = {
    "strict": "rises everywhere",
    "weak": "falls nowhere",
    "fails": "FALLS somewhere",
    "open": "not decided",
}
_ORDER = {"holds": "proved", "fails": "REFUTED", "open": "not decided"}
_RULES = {
    "relevance": "more relevance never moves the action away from Active",
    "reliability": "more reliability never moves the action away from Active",
    "risk": "more risk never moves the action towards Active",
}


def certificate_card(certificate: Certificate) -> RenderableType:
    """What a certificate says, for a reader who has to rely on it. It needs no colour.

    Example:
        >>> from rich.console import Console
        >>> from mdl_torch.certificate import Certificate
        >>> with (console := Console(width=100)).capture() as shown:
        ...     console.print(certificate_card(Certificate.of_preset("certified")))
        >>> "proved: more risk never moves the action towards Active" in shown.get()
        True
    """
    title = f"controller {certificate.preset}, basis {certificate.basis}, calibration {certificate.calibration}"
    return Group(
        Panel(Text(_headline(certificate)), title=Text(title), title_align="left", box=box.SQUARE),
        *_titled("The action, which is what users see", Text("\n".join(_actions(certificate)))),
        *_titled(
            "C_final along each signal, and its smallest slope between a proved and an attained bound",
            _slopes(certificate),
        ),
        *_titled("Counterexamples: (M, R, A), to be put into the layer", _examples(certificate)),
        *_titled("Which actions are taken", _reachable(certificate)),
        *_titled("The proof", _proof(certificate)),
    )


def stability_table(found: Mapping[str, SeedStability]) -> RenderableType:
    """How much decisions owe to the seed, one row for each lot of signals.

    Args:
        found: By what the signals are.
    """
    table = _table("signals", "decisions", "seeds", "two seeds differ", "a seed differs from this", "all seeds agree")
    for name, one in found.items():
        shares = (f"{share:.1%}" for share in (one.changed, one.differing, one.unanimous))
        table.add_row(Text(name), f"{one.decisions:,}", str(one.seeds), *shares)
    return Group(*_titled("Decisions that hang on the seed of the basis, all else equal", table))


def _headline(certificate: Certificate) -> str:
    failing = [channel for channel in CHANNELS if certificate.actions[channel].verdict == "fails"]
    if certificate.trusted:
        more = "and C_final itself falls nowhere" if certificate.monotone else "though C_final itself falls in places"
        return f"PROVED: the action never moves the wrong way along relevance, reliability or risk, {more}."
    if failing:
        return f"REFUTED: the action moves the wrong way along {', '.join(failing)}; see the counterexamples."
    return "NOT DECIDED within the boxes that were allowed; nothing below is wrong, but it is not enough (--boxes)."


def _actions(certificate: Certificate) -> Iterator[str]:
    for channel, rule in _RULES.items():
        yield f"  {_ORDER[certificate.actions[channel].verdict]}: {rule}"


def _slopes(certificate: Certificate) -> RenderableType:
    table = _table("along", "where", "verdict", "smallest slope", "at (M, R, A)", "no larger than", "falls on")
    for channel in CHANNELS:
        slopes = certificate.slopes[channel]
        low, high = slopes.holds
        share = _share((1 - high, 1 - low))
        table.add_row(SYMBOLS[channel], "the cube", _STRICT[slopes.verdict], *_part(slopes.everywhere), share)
        parts = {name: getattr(slopes, name) for name in PARTS}
        if parts["saturated"] is None and parts["zero"] is None:
            continue
        for name, part in parts.items():
            if part is not None:
                where = {"unclipped": "0 <= C <= 1", "saturated": "C cut at 1", "zero": "C cut at 0"}[name]
                table.add_row("", f"{where}: {_share(certificate.parts[name])}", "", *_part(part), "")
    return table


def _part(part: PartSlopes) -> tuple[str, str, str]:
    low, high = part.smallest
    at = "" if part.at is None else _point(part.at)
    return f"{_down(low)} .. {_number(high)}", at, _up(part.largest)


def _examples(certificate: Certificate) -> RenderableType:
    table = _table("along", "of", "from", "to", "C_final", "action", "fall")
    for channel in CHANNELS:
        examples = {
            "C_final": certificate.slopes[channel].counterexample,
            "action": certificate.actions[channel].counterexample,
        }
        for name, example in examples.items():
            if example is not None:
                (before, after), (first, second) = example.gated_confidence, example.actions
                points = (_point(example.weaker, 10), _point(example.stronger, 10))
                gated = f"{before:.6f} -> {after:.6f}"
                table.add_row(SYMBOLS[channel], name, *points, gated, f"{first} -> {second}", f"{example.fall:.2g}")
    if table.row_count:
        return table
    return Text("  none" if certificate.monotone else "  none was found, and some of the cube is not decided")


def _reachable(certificate: Certificate) -> RenderableType:
    table = _table("action", "taken", "at (M, R, A)", "share of the cube")
    for label, reach in certificate.reachable.items():
        taken = {"holds": "yes", "fails": "never", "open": "not decided"}[reach.verdict]
        at = "" if reach.at is None else _point(reach.at)
        table.add_row(label, taken, at, "not counted" if reach.share is None else _share(reach.share))
    return table


def _proof(certificate: Certificate) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for place, ((low, _), (_, high)) in enumerate(
        zip(certificate.smallest_norm, certificate.largest_norm, strict=True)
    ):
        n_min, n_max = certificate.norm_range[place]
        used = f"within {low:.9f} .. {high:.9f} everywhere; C is scaled by {n_min:.9f} .. {n_max:.9f}"
        table.add_row(f"  ‖v_meta‖{f' of basis {place}' if len(certificate.norm_range) > 1 else ''}", used)
    (least, _), (_, most) = certificate.smallest_gated, certificate.largest_gated
    table.add_row("  C_final", f"within {least:.6f} .. {most:.6f} everywhere")
    cover = certificate.cover
    boxes = f"{cover.leaves:,} boxes cover the cube, the smallest of side 2^-{cover.deepest}"
    table.add_row("  cover", f"{boxes}; {certificate.evaluated:,} were looked at")
    table.add_row("  layer", f"{certificate.subject}, by mdl_torch {certificate.version}")
    return table


def _titled(title: str, content: RenderableType) -> tuple[RenderableType, RenderableType]:
    return Text(f"\n{title}", style="bold"), content


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _point(point: tuple[float, float, float], digits: int = 4) -> str:
    return f"({', '.join(f'{value:.{digits}g}' for value in point)})"


def _share(share: Interval) -> str:
    low, high = share
    return "all" if low == 1 else "none" if high == 0 else f"{_down(low * 100, 2)} .. {_up(high * 100, 2)}%"


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if abs(value) < 1e9 else "unbounded"


def _down(value: float, digits: int = 4) -> str:
    """Rounded towards less: what is printed is proved, too."""
    return _number(math.floor(value * 10**digits) / 10**digits if abs(value) < 1e9 else value, digits)


def _up(value: float, digits: int = 4) -> str:
    return _number(math.ceil(value * 10**digits) / 10**digits if abs(value) < 1e9 else value, digits)
