"""Stage 1: embeddings, stance features and risk become the three signals M, R and A (Section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from mdl_torch.outputs import Signals, Status
from mdl_torch.stage import Stage, check_tensors, compute_dtype, no_autocast
from mdl_torch.stance import ConflictDetector, LexicalConflictDetector, StanceFeatures

RELEVANT_ABOVE = 0.3
"""A memory is relevant when its cosine with the query is strictly greater."""

PAIR_BLOCK = 64
"""Rows of the pairwise conflict test that are in memory at once, outside of a compiled graph."""

NEUTRAL_RELIABILITY = 0.5
"""R of a store with fewer than two relevant memories."""


def similarities(query: Tensor, memories: Tensor, lengths: Tensor) -> Tensor:
    """cos(e_q, e_mj), ``(*, K)``; 0 where a vector has no length.

    Args:
        query: e_q, ``(*, d)``.
        memories: e_m, ``(*, K, d)``.
        lengths: ‖e_mj‖, ``(*, K)``.

    Example:
        >>> memories = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
        >>> similarities(torch.tensor([3.0, 0.0]), memories, memories.norm(dim=-1))
        tensor([1., 0.])
    """
    product = lengths * query.norm(dim=-1, keepdim=True)
    dots = (memories @ query.unsqueeze(-1)).squeeze(-1)
    return torch.where(product > 0, dots / torch.where(product > 0, product, 1.0), dots * 0.0)


def mean_agreement(memories: Tensor, lengths: Tensor, relevant: Tensor) -> Tensor:
    """s̄_rel = (‖Σê‖² - n) / (n(n - 1)), the mean cosine over unordered pairs of relevant memories; 0 without a pair.

    Linear in the number of memories. n counts the relevant memories, all of which have a length.

    Args:
        memories: e_m, ``(*, K, d)``.
        lengths: ‖e_mj‖, ``(*, K)``.
        relevant: Which belong to the relevant set, bool ``(*, K)``.

    Returns:
        ``(*)``.

    Example:
        >>> same = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
        >>> mean_agreement(same, same.norm(dim=-1), torch.tensor([True, True]))
        tensor(1.)
    """
    weights = torch.where(relevant, 1.0 / torch.where(relevant, lengths, 1.0), lengths * 0.0)
    total = (weights.unsqueeze(-2) @ memories).squeeze(-2)
    n = relevant.sum(dim=-1).to(memories.dtype)
    pairs = n * (n - 1)
    return torch.where(pairs > 0, ((total * total).sum(dim=-1) - n) / pairs.clamp_min(1.0), pairs * 0.0)


def conflict_rate(detector: ConflictDetector, stance: StanceFeatures, relevant: Tensor) -> Tensor:
    """φ, the share of unordered pairs of relevant memories whose stances conflict, float64 ``(*)``; 0 without a pair.

    Large stores are walked in blocks of rows, so that the memory needed is linear in K. In a compiled or exported
    graph the pairs are one operation.

    Args:
        detector: Decides whether two texts conflict.
        stance: Its features of the memories, ``(*, K)``.
        relevant: The relevant set, bool ``(*, K)``.

    Example:
        >>> detector = LexicalConflictDetector()
        >>> stance = detector.features(["Backups are enabled.", "Backups are disabled."])
        >>> conflict_rate(detector, stance, torch.tensor([True, True]))
        tensor(1., dtype=torch.float64)
    """
    n = relevant.sum(dim=-1)
    count = relevant.shape[-1]
    step = count if torch.compiler.is_compiling() else PAIR_BLOCK
    ordered = torch.zeros_like(n)
    for start in range(0, count, step):
        stop = min(start + step, count)
        rows = stance[(slice(None),) * (relevant.ndim - 1) + (slice(start, stop),)]
        fired = detector.conflicts(rows, stance) != 0
        both = relevant[..., start:stop].unsqueeze(-1) & relevant.unsqueeze(-2)
        ordered = ordered + (fired & both).sum(dim=(-2, -1))
    return ordered.to(torch.float64) / (n * (n - 1)).clamp_min(1)  # each unordered pair counts twice above and below


class SignalExtractor(Stage):
    """M = max_j cos(e_q, e_mj), R = clip(s̄_rel·(1-φ)², 0, 1) and A over padded stores, in one batch.

    Args:
        detector: Conflict detector; the lexical one by default.

    Example:
        >>> extract = SignalExtractor()
        >>> memories = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> s = extract(torch.tensor([1.0, 0.0]), memories, torch.tensor(0.2))
        >>> s.relevance, s.reliability
        (tensor(1.), tensor(0.7071))
    """

    relevant_above: Tensor

    def __init__(self, detector: ConflictDetector | None = None) -> None:
        super().__init__()
        self.detector = LexicalConflictDetector() if detector is None else detector
        self.fixed("relevant_above", RELEVANT_ABOVE)

    def forward(
        self,
        query: Tensor,
        memories: Tensor,
        risk: Tensor,
        *,
        mask: Tensor | None = None,
        stance: StanceFeatures | None = None,
    ) -> Signals:
        """Extract the signals.

        Args:
            query: e_q, ``(*, d)``. Embeddings need not be normalised; half precision accumulates in float32.
            memories: e_m, ``(*, K, d)``, K >= 1.
            risk: A, ``(*)`` or broadcastable to it.
            mask: Which memories are real, bool ``(*, K)``; all of them by default. What is masked may hold anything.
            stance: The detector's features of the memories, ``(*, K)``; without them φ = 0.

        Raises:
            TypeError: An argument is not a tensor of the right kind.
            ValueError: Shapes do not fit together, or devices differ.
        """
        check_tensors(query=query, memories=memories, risk=risk)
        mask = _checked_mask(query, memories, risk, mask)
        dtype = compute_dtype(query, memories)
        with no_autocast(query):
            query = query.to(dtype)
            memories = torch.where(mask.unsqueeze(-1), memories.to(dtype), 0.0)
            risk = risk.to(compute_dtype(query, risk)).expand(query.shape[:-1])
            lengths = memories.norm(dim=-1)
            similarity = similarities(query, memories, lengths)
            relevant = (similarity > self.relevant_above.to(dtype)) & mask
            count = relevant.sum(dim=-1)
            occupied = mask.any(dim=-1)
            raw = torch.where(mask, similarity, -torch.inf).amax(dim=-1)
            raw = torch.where(occupied, raw, 0.0)
            agreement = mean_agreement(memories, lengths, relevant)
            phi = torch.zeros_like(agreement)
            if stance is not None:
                phi = conflict_rate(self.detector, stance, relevant).to(dtype)
            reliability = (agreement * (1 - phi) ** 2).clamp(0.0, 1.0)
            reliability = torch.where(count < 2, NEUTRAL_RELIABILITY, reliability)
            broken = ~(query.isfinite().all(dim=-1) & lengths.isfinite().all(dim=-1))
            no_length = occupied & ((query.norm(dim=-1) == 0) | ((lengths == 0) & mask).any(dim=-1))
            status = (
                broken.int() * int(Status.NOT_FINITE)
                + (~occupied).int() * int(Status.NO_MEMORY)
                + (count == 0).int() * int(Status.NO_RELEVANT_MEMORY)
                + no_length.int() * int(Status.ZERO_VECTOR)
            )
            return Signals(
                relevance=raw.clamp(0.0, 1.0),
                relevance_raw=raw,
                reliability=reliability,
                risk=risk,
                agreement=agreement,
                conflict_rate=phi,
                similarity=similarity,
                relevant=relevant,
                status=status.to(torch.int32),
            )


def _checked_mask(query: Tensor, memories: Tensor, risk: Tensor, mask: Tensor | None) -> Tensor:
    """The mask, after the shapes of all four were found to fit together."""
    if query.ndim < 1 or memories.ndim != query.ndim + 1:
        raise ValueError(
            f"query must be (*, d) and memories (*, K, d), got {tuple(query.shape)} and {tuple(memories.shape)}"
        )
    if memories.shape[:-2] != query.shape[:-1] or memories.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"memories must be (*, K, d) for query (*, d) = {tuple(query.shape)}, got {tuple(memories.shape)}"
        )
    if memories.shape[-2] < 1:
        raise ValueError("memories must have K >= 1, got K = 0: pad an empty store with one masked memory")
    if risk.ndim > query.ndim - 1:
        raise ValueError(f"risk must broadcast to {tuple(query.shape[:-1])}, got {tuple(risk.shape)}")
    if mask is None:
        return torch.ones_like(memories[..., 0], dtype=torch.bool)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be a bool tensor, got {mask.dtype}")
    if mask.shape != memories.shape[:-1]:
        raise ValueError(f"mask must be (*, K) = {tuple(memories.shape[:-1])}, got {tuple(mask.shape)}")
    if mask.device != query.device:
        raise ValueError(f"mask must be on the device of query ({query.device}), got {mask.device}")
    return mask
