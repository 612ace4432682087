"""The errors a caller can act on, and the wording of "unknown name" messages, once for the whole package."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CheckpointError(ValueError):
    """A saved layer cannot be trusted: a file is missing, malformed, of another version, or was altered."""


class CalibrationMismatchError(ValueError):
    """A calibration was fitted for another encoder, basis or configuration than the one it is applied to."""


def unknown_name(what: str, got: object, known: Iterable[str]) -> str:
    """Message for a name that does not exist: what came, the nearest known name, and all of them.

    Example:
        >>> unknown_name("preset", "papr", ["paper"])
        "unknown preset 'papr'; did you mean 'paper'? Known: paper"
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(got), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return f"unknown {what} {got!r}{hint} Known: {', '.join(names)}"
