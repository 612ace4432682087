"""What the layer says: actions, status bits, and the tensors of signals and decisions.

The shape legend, once for the package:

- ``(*)``: any leading shape, also ``()`` and ``(0,)``. One entry is one retrieval (a query with its store).
- ``K``: memories of a store, padded; ``K >= 1``. A boolean mask ``(*, K)`` says which are real.
- ``d``: dimension of the text embeddings (384 for MiniLM).
- ``D``: dimension of the value vectors (16 in the paper's Table 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag

import torch
from torch import Tensor


class Action(IntEnum):
    """What to do with the retrieved memories, from full trust to none (Fig. 1, stage 4).

    Example:
        >>> Action.OPT_OUT.label
        'opt_out'
    """

    ACTIVE = 0
    """Inject the memories."""
    SUPP = 1
    """Inject them as background only."""
    SILENT = 2
    """Ignore them and answer from the model."""
    OPT_OUT = 3
    """Abstain."""

    @property
    def label(self) -> str:
        """The action as output lines spell it: ``active``, ``supp``, ``silent`` or ``opt_out``."""
        return self.name.lower()


class Status(IntFlag):
    """Why a row is not plain sailing; bits of ``Decision.status`` (int32). 0 is a row with nothing to report.

    ``NOT_FINITE`` and ``OUT_OF_RANGE`` are faults: the row is Opt-Out whatever the equations say. The others inform.

    Example:
        >>> Status(0b1100)
        <Status.NO_MEMORY|NO_RELEVANT_MEMORY: 12>
    """

    NOT_FINITE = 1
    """A signal or an embedding was NaN or infinite."""
    OUT_OF_RANGE = 2
    """Reliability or risk lay outside [0, 1], or relevance outside the range of a cosine."""
    NO_MEMORY = 4
    """The store holds no valid memory."""
    NO_RELEVANT_MEMORY = 8
    """No memory is similar enough to the query to count as relevant."""
    ZERO_VECTOR = 16
    """The query or a valid memory has an embedding of length zero; its similarity counts as 0."""


INVALID = Status.NOT_FINITE | Status.OUT_OF_RANGE
"""The status bits that force Opt-Out."""


@dataclass(frozen=True)
class Signals:
    """The three signals of the paper's Section 3.2, and what they were made of. Floats are float32 or float64.

    Attributes:
        relevance: M, ``(*)``, in [0, 1]: the largest cosine between query and memories, clipped.
        relevance_raw: the same before clipping, ``(*)``.
        reliability: R = clip(s̄_rel·(1-φ)², 0, 1), ``(*)``; 0.5 when fewer than two memories are relevant.
        risk: A, ``(*)``, as given.
        agreement: s̄_rel, ``(*)``: mean cosine over unordered pairs of relevant memories; 0 without a pair.
        conflict_rate: φ, ``(*)``: share of those pairs whose stances conflict; 0 without a pair.
        similarity: cosine of each memory with the query, ``(*, K)``; 0 where masked.
        relevant: which memories are relevant (cosine > 0.3), bool ``(*, K)``.
        status: ``Status`` bits, int32 ``(*)``.
    """

    relevance: Tensor
    relevance_raw: Tensor
    reliability: Tensor
    risk: Tensor
    agreement: Tensor
    conflict_rate: Tensor
    similarity: Tensor
    relevant: Tensor
    status: Tensor


@dataclass(frozen=True)
class Decision:
    """The controller's verdict and the scalars that explain it, every field of shape ``(*)``.

    Floats are float32, or float64 for float64 input. A row whose status has an ``INVALID`` bit is Opt-Out and its
    scalars are 0 (risk 1), so that no NaN leaves the layer. Of a layer that averages several bases ‖v_meta‖, C, α and
    C_final are each the mean over the bases, so that C_final is not C·(0.3 + 0.7α) of the two means.

    Attributes:
        action: ``Action``, int8.
        status: ``Status`` bits, int32.
        relevance: M as it entered the equations, clipped to [0, 1].
        reliability: R.
        risk: A.
        gain: g_A, the risk modulation of the relevance channel.
        norm: ‖v_meta‖, not normalised.
        confidence: C, in [0, 1] (Eq. 2).
        consistency: α, in [-1, 1] (Eq. 2).
        gated_confidence: C_final = C·(0.3 + 0.7α).
    """

    action: Tensor
    status: Tensor
    relevance: Tensor
    reliability: Tensor
    risk: Tensor
    gain: Tensor
    norm: Tensor
    confidence: Tensor
    consistency: Tensor
    gated_confidence: Tensor


for _output in (Signals, Decision):
    torch.export.register_dataclass(_output, serialized_type_name=f"mdl_torch.{_output.__name__}")
