"""Stage 1: embeddings, stance features and risk become the three signals M, R and A (Section 3.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mdl_torch.outputs import Signals, Status
from mdl_torch.stage import Stage, check_tensors, compute_dtype, no_autocast
from mdl_torch.stance import ConflictDetector, LexicalConflictDetector, TextFeatures

RELEVANT_ABOVE = 0.3
"""A memory is relevant when its cosine with the query is strictly greater."""

PAIR_BLOCK = 64
"""Side of the square of pairs whose conflicts are tested at once, outside of a compiled graph."""

NEUTRAL_RELIABILITY = 0.5
"""R of a store with fewer than two relevant memories."""


def similarities(query: Tensor, memories: Tensor, query_length: Tensor, lengths: Tensor) -> Tensor:
    """cos(e_q, e_mj), ``(*, K)``; 0 where a vector has no length.

    Args:
        query: e_q, ``(*, d)``.
        memories: e_m, ``(*, K, d)``.
        query_length: ‖e_q‖, ``(*)``.
        lengths: ‖e_mj‖, ``(*, K)``.

    Example:
        >>> query, memories = torch.tensor([3.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 0.0]])
        >>> similarities(query, memories, query.norm(dim=-1), memories.norm(dim=-1))
        tensor([1., 0.])
    """
    direction = query / torch.where(query_length > 0, query_length, 1.0).unsqueeze(-1)
    dots = (memories @ direction.unsqueeze(-1)).squeeze(-1)
    return dots / torch.where(lengths > 0, lengths, 1.0)


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


def conflict_rate(detector: ConflictDetector, stance: TextFeatures, relevant: Tensor) -> Tensor:
    """φ, the share of unordered pairs of relevant memories whose stances conflict, float64 ``(*)``; 0 without a pair.

    Pairs are walked in square blocks, so that they need the same memory for any K; a batch of stores walks smaller
    blocks. In a compiled or exported graph all pairs are one block.

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
    count = _count_at_once if torch.compiler.is_compiling() else _count_in_blocks
    return 2 * count(detector, stance, relevant).to(torch.float64) / (n * (n - 1)).clamp_min(1)


def _count_at_once(detector: ConflictDetector, stance: TextFeatures, relevant: Tensor) -> Tensor:
    """Conflicting pairs of relevant memories, ``(*)``; without a slice, which would fix K in a compiled graph."""
    return _count(detector.conflicts(stance, stance), relevant, relevant, first=1)


def _count_in_blocks(detector: ConflictDetector, stance: TextFeatures, relevant: Tensor) -> Tensor:
    """The same, a square block of pairs at a time."""
    *lead, count = relevant.shape
    side = max(1, math.isqrt(PAIR_BLOCK**2 // max(1, math.prod(lead))))
    parts = [(slice(None),) * len(lead) + (slice(start, start + side),) for start in range(0, count, side)]
    total = torch.zeros_like(relevant[..., 0], dtype=torch.int64)
    for place, rows in enumerate(parts):
        for further, columns in enumerate(parts[place:]):
            rules = detector.conflicts(stance[rows], stance[columns])
            total = total + _count(rules, relevant[rows], relevant[columns], first=1 - further * side)
    return total


def _count(rules: Tensor, rows: Tensor, columns: Tensor, first: int) -> Tensor:
    """Fired pairs that are relevant, from the ``first`` diagonal on: each pair once, and none of a text with itself."""
    both = rows.unsqueeze(-1) & columns.unsqueeze(-2)
    return ((rules != 0) & both).triu(first).sum(dim=(-2, -1))


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
        stance: TextFeatures | None = None,
    ) -> Signals:
        """Extract the signals.

        Args:
            query: e_q, ``(*, d)``. Embeddings need not be normalised; half precision accumulates in float32.
            memories: e_m, ``(*, K, d)``, K >= 1.
            risk: A, ``(*)`` or broadcastable to it.
            mask: Which memories are real, bool ``(*, K)``; all of them by default. What is masked may hold anything.
            stance: The detector's features of the memories, ``(*, K)``; without them φ = 0.

        A row whose query or valid memories hold a NaN, an infinity or a length that overflows (above 1e19 in float32)
        has the status ``NOT_FINITE`` and a relevance of NaN, which the controller answers with Opt-Out.

        Raises:
            TypeError: An argument is not a tensor of the right kind.
            ValueError: Shapes do not fit together, or devices differ from each other or the module's.
        """
        check_tensors(self.relevant_above, query=query, memories=memories, risk=risk)
        _check_store(query, memories, risk)
        if mask is None:
            mask = torch.ones_like(memories[..., 0], dtype=torch.bool)
        else:
            _check_mask(mask, memories)
        if stance is not None:
            _check_stance(stance, memories)
        dtype = compute_dtype(query, memories)
        with no_autocast(query):
            query = query.to(dtype)
            memories = torch.where(mask.unsqueeze(-1), memories.to(dtype), 0.0)
            risk = risk.to(compute_dtype(query, risk)).expand(query.shape[:-1])
            query_length, lengths = query.norm(dim=-1), memories.norm(dim=-1)
            similarity = torch.where(mask, similarities(query, memories, query_length, lengths), 0.0)
            relevant = (similarity > self.relevant_above.to(dtype)) & mask
            count = relevant.sum(dim=-1)
            occupied = mask.any(dim=-1)
            finite = query_length.isfinite() & lengths.isfinite().all(dim=-1)
            raw = torch.where(mask, similarity, -torch.inf).amax(dim=-1)
            raw = torch.where(finite, torch.where(occupied, raw, 0.0), torch.nan)
            agreement = mean_agreement(memories, lengths, relevant)
            phi = torch.zeros_like(agreement)
            if stance is not None:
                phi = conflict_rate(self.detector, stance, relevant).to(dtype)
            reliability = (agreement * (1 - phi) ** 2).clamp(0.0, 1.0)
            reliability = torch.where(count < 2, NEUTRAL_RELIABILITY, reliability)
            no_length = occupied & ((query_length == 0) | ((lengths == 0) & mask).any(dim=-1))
            status = (
                (~finite).int() * int(Status.NOT_FINITE)
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


def _check_store(query: Tensor, memories: Tensor, risk: Tensor) -> None:
    """Refuse shapes of query, memories and risk that do not fit together."""
    if query.ndim < 1:
        raise ValueError("query must be (*, d), got a scalar ()")
    *lead, d = query.shape
    if memories.ndim != query.ndim + 1 or memories.shape[:-2] != query.shape[:-1] or memories.shape[-1] != d:
        expected = f"(*, K, d) with * = {tuple(lead)} and d = {d}, as query {tuple(query.shape)} has them"
        raise ValueError(f"memories must be {expected}, got {tuple(memories.shape)}")
    if memories.shape[-2] < 1:
        raise ValueError("memories must have K >= 1, got K = 0: pad an empty store with one masked memory")
    fits = all(size in (1, whole) for size, whole in zip(risk.shape[::-1], lead[::-1], strict=False))
    if risk.ndim > len(lead) or not fits:
        raise ValueError(f"risk must broadcast to * = {tuple(lead)} of query, got {tuple(risk.shape)}")


def _check_mask(mask: Tensor, memories: Tensor) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a bool tensor, got {got}")
    if mask.shape != memories.shape[:-1]:
        raise ValueError(f"mask must be (*, K) = {tuple(memories.shape[:-1])}, got {tuple(mask.shape)}")
    if mask.device != memories.device:
        raise ValueError(f"mask must be on the device of memories ({memories.device}), got {mask.device}")


def _check_stance(stance: TextFeatures, memories: Tensor) -> None:
    if not isinstance(stance, TextFeatures):
        raise TypeError(f"stance must be TextFeatures, got {type(stance).__name__}")
    if stance.shape != memories.shape[:-1]:
        raise ValueError(f"stance must be (*, K) = {tuple(memories.shape[:-1])}, got {tuple(stance.shape)}")
    if stance.device != memories.device:
        raise ValueError(f"stance must be on the device of memories ({memories.device}), got {stance.device}")
