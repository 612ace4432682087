"""The errors a caller can act on, and the wording of messages on unknown names, once for the whole package."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class CheckpointError(ValueError):
    """A saved layer cannot be trusted: a file is missing, malformed, of another version, or was altered."""


class CalibrationMismatchError(ValueError):
    """A calibration was fitted for another encoder, basis or configuration than the one it is applied to."""


class CertificateMismatchError(ValueError):
    """A certificate is of another layer than the one that is to wear it, or does not prove enough."""


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


def check_keys(what: str, given: Iterable[object], known: Iterable[str]) -> None:
    """Refuse a key that is not known.

    Args:
        what: What the keys are, for the message.
        given: The keys, or the mapping that has them.
        known: Those that are allowed.

    Raises:
        ValueError: A key is unknown; the nearest known one is named.

    Example:
        >>> check_keys("key", {"sgima": 0.3}, ["sigma"])
        Traceback (most recent call last):
        ValueError: unknown key 'sgima'; did you mean 'sigma'? Known: sigma
    """
    names = tuple(known)
    for key in given:
        if key not in names:
            raise ValueError(unknown_name(what, key, names))
