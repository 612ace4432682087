"""Tables of numbers: made once, and shown in the terminal, as Markdown, as CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from mdl_torch.evaluation.results import Rate
from mdl_torch.evaluation.statistics import Estimate, MeanStd, PairedT

if TYPE_CHECKING:
    from rich.console import RenderableType

Cell = str | int | float | Rate | Estimate | MeanStd | None
"""What a table holds."""


@dataclass(frozen=True)
class Table:
    """A table of numbers.

    Attributes:
        name: Of its CSV file.
        title: Above it.
        columns: Headings.
        rows: Cells; None is empty.
        note: Beneath it.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def csv(self) -> str:
        """With a column each for the bounds of an interval and for a standard deviation; full precision.

        Example:
            >>> print(Table("t", "T", ("a", "b"), (("x", MeanStd(0.5, 0.1, 2)),)).csv(), end="")
            a,b,b std
            x,0.5,0.1
        """
        extras: dict[int, tuple[str, ...]] = {}
        for place in range(len(self.columns)):
            kinds = {type(row[place]) for row in self.rows}
            extras[place] = ("low", "high") if kinds & {Rate, Estimate} else ("std",) if MeanStd in kinds else ()
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads = [[name, *(f"{name} {extra}" for extra in extras[place])] for place, name in enumerate(self.columns)]
        writer.writerow([head for group in heads for head in group])
        for row in self.rows:
            cells = [_numbers(cell, len(extras[place])) for place, cell in enumerate(row)]
            writer.writerow(["" if value is None else value for group in cells for value in group])
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; a cell with an interval or a deviation is an object.

        Example:
            >>> Table("t", "T", ("a", "b"), (("x", MeanStd(0.5, 0.1, 2)),)).to_dict()["rows"]
            [['x', {'mean': 0.5, 'std': 0.1, 'n': 2}]]
        """
        rows = [[asdict(cell) if is_dataclass(cell) else cell for cell in row] for row in self.rows]
        return {"name": self.name, "title": self.title, "columns": list(self.columns), "rows": rows, "note": self.note}

    def markdown(self) -> str:
        """A pipe table under its heading."""
        lines = [f"## {self.title}", ""]
        rows = [self.columns, tuple("---" if place == 0 else "---:" for place in range(len(self.columns)))]
        rows += [tuple(map(shown, row)) for row in self.rows]
        lines += [f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in rows]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"

    def rich(self) -> RenderableType:
        """For the terminal; it needs no colour."""
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for place, name in enumerate(self.columns):
            table.add_column(
                Text(name.replace(" (", "\n(")), overflow="fold", justify="left" if place == 0 else "right"
            )
        for row in self.rows:
            table.add_row(*(Text(_narrow(cell)) for cell in row))
        parts: list[RenderableType] = [Text(f"\n{self.title}", style="bold"), table]
        return Group(*parts, *([Text(self.note)] if self.note else []))


def shown(cell: Cell) -> str:
    """A cell in words: rates with three decimals and their interval.

    Example:
        >>> shown(0.25), shown(MeanStd(0.5, None, 1)), shown(Rate(0.0, 0.0, 0.1612, "wilson", 20, 20)), shown(None)
        ('0.250', '0.500', '0.000 [0.000, 0.161]', '–')
    """
    if isinstance(cell, Rate | Estimate):
        signed = "+" if isinstance(cell, Estimate) else ""
        value, low, high = _numbers(cell, 2)
        if value is None:
            return "–"
        digits = 3 if abs(value) < 10 else 1
        bounds = "" if low is None else f" [{low:{signed}.{digits}f}, {high:{signed}.{digits}f}]"
        return f"{value:{signed}.{digits}f}{bounds}"
    if isinstance(cell, MeanStd):
        return "–" if cell.mean is None else f"{cell.mean:.3f}" + ("" if cell.std is None else f" ± {cell.std:.3f}")
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.3f}"
    return str(cell)


def t_in_words(test: PairedT | None) -> str | None:
    """A paired t-test for a cell.

    Example:
        >>> t_in_words(PairedT(-0.1, -2.5, 0.0148, -0.3, 70))
        't(69) = -2.50, p = 0.015'
    """
    if test is None:
        return None
    return (
        "no variation" if test.t is None or test.p is None else f"t({test.n - 1}) = {test.t:.2f}, {p_in_words(test.p)}"
    )


def p_in_words(p: float) -> str:
    """A p value for a cell.

    Example:
        >>> p_in_words(0.0204), p_in_words(0.0004)
        ('p = 0.020', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _numbers(cell: Cell, extras: int) -> list[Any]:
    """A cell and as many of its bounds."""
    values: list[Any]
    if isinstance(cell, Rate):
        values = [cell.value, cell.low, cell.high]
    elif isinstance(cell, Estimate):
        values = [cell.value, *(cell.interval or (None, None))]
    elif isinstance(cell, MeanStd):
        values = [cell.mean, cell.std]
    else:
        values = [cell]
    return [*values, None, None][: 1 + extras]


def _narrow(cell: Cell) -> str:
    """A cell for the terminal: its interval beneath, with two decimals, which do not part."""
    if not isinstance(cell, Rate | Estimate):
        return shown(cell)
    signed = "+" if isinstance(cell, Estimate) else ""
    value, low, high = _numbers(cell, 2)
    bounds = "" if value is None or low is None else f"\n[{low:{signed}.2f},\u00a0{high:{signed}.2f}]"
    return shown(cell).split(" [")[0] + bounds


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
