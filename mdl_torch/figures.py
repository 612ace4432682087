"""What all figures share: how actions and signals look, the style, and how a figure is saved.

Actions differ in lightness and hatching, signals in marker and dash, so that every figure is legible in grey and to
colour-blind readers. matplotlib is imported only where a figure is made.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mdl_torch.config import CHANNELS
from mdl_torch.outputs import Action

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")
"""What a figure can be saved as."""


class ActionStyle(NamedTuple):
    """Fill of an action's area, and the hatching over it."""

    color: str
    hatch: str


class SignalStyle(NamedTuple):
    """Line of a signal, the marker and dash that tell it apart without colour, and its symbol."""

    color: str
    marker: str
    dash: Literal["-", "--", ":"]
    symbol: str


ACTION_STYLES: dict[Action, ActionStyle] = {
    Action.ACTIVE: ActionStyle("#17375e", ""),
    Action.SUPP: ActionStyle("#5b8fb9", "////"),
    Action.SILENT: ActionStyle("#e2b357", "...."),
    Action.OPT_OUT: ActionStyle("#fbf3dc", ""),
}
"""Lightness rises from Active to Opt-Out: L* 23, 57, 76 and 96."""

SIGNAL_STYLES: dict[str, SignalStyle] = dict(
    zip(
        CHANNELS,
        (
            SignalStyle("#000000", "o", "-", "M"),
            SignalStyle("#a8491f", "s", "--", "R"),
            SignalStyle("#4a87b5", "^", ":", "A"),
        ),
        strict=True,
    )
)
"""By the name of the signal."""

STYLE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "mdl_torch",  # equal figures make equal files
}
"""Settings of matplotlib within ``style``; its types spell out every name, hence Any."""


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The settings of all figures; make and save one within it.

    Raises:
        ImportError: matplotlib is not installed; the message names the extra that brings it.

    Example:
        >>> import matplotlib
        >>> with style():
        ...     matplotlib.rcParams["savefig.dpi"]
        200.0
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install mdl_torch[evaluate]") from error
    with matplotlib.rc_context():  # puts the user's settings back
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def check_suffix(path: str | os.PathLike[str]) -> Path:
    """The path, if a figure can be saved there: for callers who have long to compute before they draw.

    Raises:
        ValueError: It ends in none of ``SUFFIXES``.

    Example:
        >>> check_suffix("figure.jpg")
        Traceback (most recent call last):
        ValueError: path of a figure must end in .png, .pdf or .svg, got 'figure.jpg'
    """
    found = Path(path)
    if found.suffix.lower() not in SUFFIXES:
        known = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise ValueError(f"path of a figure must end in {known}, got {str(path)!r}")
    return found


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Save a figure as what the suffix says, make the folders that are missing, and return the path.

    The file holds no date, so that equal figures make equal files.

    Raises:
        ValueError: The suffix is none of ``SUFFIXES``.
        OSError: It cannot be written.

    Example:
        >>> import tempfile
        >>> from matplotlib.figure import Figure
        >>> save(Figure(), Path(tempfile.mkdtemp()) / "new" / "empty.svg").name
        'empty.svg'
    """
    target = check_suffix(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    kind = target.suffix.lower()[1:]
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    figure.savefig(target, format=kind, metadata=undated[kind])
    return target
