"""The base of the controller's stages: buffers that stay in float64 whatever the surrounding model is cast to."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Stage(nn.Module):
    """An ``nn.Module`` of fixed float64 buffers.

    ``model.half()`` or ``.to(torch.bfloat16)`` on a model that holds a stage moves it but does not round its buffers:
    0.2 in half precision is 0.19995, enough to change an action. Each forward casts them to the dtype of its input;
    the layer that holds the stages makes that float32 or float64, with autocast off, once for all of them.

    Example:
        >>> stage = Stage()
        >>> stage.fixed("width", [0.2])
        >>> stage.half().width.dtype
        torch.float64
    """

    def fixed(self, name: str, value: float | Sequence[Any] | Tensor, *, persistent: bool = True) -> None:
        """Register ``value`` as a float64 buffer; ``persistent=False`` for what can be recomputed."""
        self.register_buffer(name, torch.as_tensor(value, dtype=torch.float64), persistent=persistent)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(keep_dtype, recurse)
        return self


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """Float64 if any input is, else float32: half precision is stored, never computed in.

    Example:
        >>> compute_dtype(torch.zeros(1, dtype=torch.float16))
        torch.float32
    """
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def check_tensors(module: Tensor | None = None, /, **tensors: Tensor) -> None:
    """Refuse anything but floating-point tensors on one device, naming the argument.

    Args:
        module: A buffer of the module that is called, whose device they must share; None if it has none.
        **tensors: The arguments by name.

    Raises:
        TypeError: An argument is no tensor, or not of a floating dtype.
        ValueError: The arguments lie on different devices.

    Example:
        >>> check_tensors(risk=torch.tensor([1]))
        Traceback (most recent call last):
        TypeError: risk must be a floating-point tensor, got torch.int64
    """
    first = ("the module", module.device) if module is not None else None
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, got {tensor.dtype}")
        if first is None:
            first = (name, tensor.device)
        elif tensor.device != first[1]:
            raise ValueError(f"{name} must be on the device of {first[0]} ({first[1]}), got {tensor.device}")


def no_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """A context without autocast on the device of ``tensor``, so that products keep the compute dtype.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16), no_autocast(torch.ones(1)):
        ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
        torch.float32
    """
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
