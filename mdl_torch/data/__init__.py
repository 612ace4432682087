"""The package's data files, and the one way to open them."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def resource(name: str) -> Traversable:
    """A file of this folder, also where the package is imported from a zip.

    Raises:
        FileNotFoundError: No such file ships with the package.

    Example:
        >>> resource("risk.yaml").is_file()
        True
    """
    found = files(__name__) / name
    if not found.is_file():
        raise FileNotFoundError(f"mdl_torch ships no data file {name!r}")
    return found


def read_text(name: str) -> str:
    """The UTF-8 text of a file of this folder.

    Raises:
        FileNotFoundError: No such file ships with the package.

    Example:
        >>> read_text("risk.yaml").startswith("#")
        True
    """
    return resource(name).read_text(encoding="utf-8")
