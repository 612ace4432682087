"""Drawing tokens with noise that a key names: the same key draws the same, whatever else is in the batch."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_FIRST_LOOK = 1024  # sorting a vocabulary of 262,144 takes longer than a small model's forward; most sets are smaller


def keyed_uniform(key: str, step: int) -> float:
    """A uniform number in [0, 1) that depends on its key and step and nothing else: 53 bits of their SHA-256.

    Example:
        >>> keyed_uniform("seed-0:q1", 0) == keyed_uniform("seed-0:q1", 0) != keyed_uniform("seed-0:q1", 1)
        True
    """
    digest = hashlib.sha256(f"{step}:{key}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def draw(logits: Tensor, uniforms: Sequence[float], *, temperature: float, top_p: float) -> Tensor:
    """One token a row, by inverting the distribution function of its nucleus.

    p = softmax(logits / temperature). Tokens are sorted by p, the likeliest first; the nucleus is the shortest such
    list whose p sum to at least ``top_p``. With u the row's uniform number and P the nucleus' mass, the token drawn is
    the first whose cumulative p exceeds u·P. No other filter (no top-k) is applied.

    Args:
        logits: ``(B, V)``, any floating dtype.
        uniforms: B numbers in [0, 1).
        temperature: 0 takes the likeliest token, the first of equals.
        top_p: In (0, 1].

    Returns:
        Token ids ``(B,)``.

    Example:
        >>> logits = torch.tensor([[0.5, 0.3, 0.2]]).log().expand(3, -1)
        >>> draw(logits, [0.6, 0.7, 0.99], temperature=1.0, top_p=0.75).tolist()  # a nucleus of 0.8: 0.5 and 0.3
        [0, 1, 1]
    """
    if temperature == 0:
        return logits.argmax(-1)
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    normalizer = scores.logsumexp(-1, keepdim=True)
    u = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)
    count = min(_FIRST_LOOK, scores.shape[-1])
    tokens, settled = _nucleus_draw(scores, normalizer, u, top_p, count)
    if not settled.all():
        rest = ~settled
        tokens[rest] = _nucleus_draw(scores[rest], normalizer[rest], u[rest], top_p, scores.shape[-1])[0]
    return tokens


def _nucleus_draw(scores: Tensor, normalizer: Tensor, u: Tensor, top_p: float, count: int) -> tuple[Tensor, Tensor]:
    """Tokens ``(B,)`` drawn from the ``count`` likeliest, and whether the nucleus certainly lies within those."""
    top, ids = scores.topk(count, sorted=False)
    ids, by_id = ids.sort(-1)
    top, by_score = top.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)  # equals stand in the order of ids
    cumulative = (top.double() - normalizer.double()).exp().cumsum(-1)
    last = (cumulative < top_p).sum(-1, keepdim=True).clamp(max=count - 1)
    mass = cumulative.gather(-1, last)
    picked = (cumulative <= u[:, None] * mass).sum(-1, keepdim=True).minimum(last)
    # A set that ends in the last score of the first look may go on, or have equals, beyond it.
    settled = (top.gather(-1, last) > top[:, -1:]).flatten()
    return ids.gather(-1, by_score.gather(-1, picked)).flatten(), settled
