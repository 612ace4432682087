"""Backends from configuration files: a kind, and the options of its constructor."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from mdl_torch.errors import check_keys, unknown_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdl_torch.generation.backend import Backend

KINDS = ("http", "local", "scripted")


def build_backend(kind: str, **options: Any) -> Backend:
    r"""Builds a backend.

    Args:
        kind: ``"local"`` (``LocalBackend.from_pretrained``), ``"http"`` (``HttpBackend``) or ``"scripted"``
            (``ScriptedBackend``).
        **options: Their arguments, by name.

    Raises:
        ValueError: The kind or an option is unknown, missing or out of range.
        OSError: The model is not there.

    Example:
        >>> build_backend("scripted", answers={"": "I don't know."}).identity
        'scripted {"": "I don\'t know."}'
    """
    build = _builder(kind)
    parameters = inspect.signature(build).parameters
    check_keys(f"option of the {kind} backend", options, parameters)
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in options:
            raise ValueError(f"the {kind} backend needs the option {name!r}")
    try:
        return build(**options)
    except TypeError as error:
        raise ValueError(f"an option of the {kind} backend is of the wrong kind: {error}") from error


def _builder(kind: str) -> Callable[..., Backend]:
    if kind == "local":
        from mdl_torch.generation.local import LocalBackend

        return LocalBackend.from_pretrained
    if kind == "http":
        from mdl_torch.generation.http import HttpBackend

        return HttpBackend
    if kind == "scripted":
        from mdl_torch.generation.scripted import ScriptedBackend

        return ScriptedBackend
    raise ValueError(unknown_name("kind of backend", kind, KINDS))
