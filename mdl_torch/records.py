"""What goes out: one decision with its audit trail, as an object and as a line of JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mdl_torch.config import CHANNELS
from mdl_torch.outputs import INVALID, Action, Decision, Signals, Status
from mdl_torch.plain import read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from mdl_torch.audit import Audit
    from mdl_torch.layer import MemoryDecisionLayer
    from mdl_torch.retrieval import Memory, Retrieval
    from mdl_torch.risk import RiskPolicy
    from mdl_torch.stance import ConflictDetector, TextFeatures

SCHEMA_VERSION = 1
"""Of the output line; see ``data/output.schema.json``."""

DECIMALS = 7
"""Numbers in records are rounded to this: beyond it float32 has nothing to say."""

MAX_CONFLICTS = 20
"""Conflicts that a record lists; it counts all of them."""

MAX_PAIRS = 65_536
"""Pairs of memories that are compared in one tensor, padding included."""

REASONS: dict[str, str] = {
    "no_memory": "The store holds no memory, so none can be injected.",
    "no_relevant_memory": "No memory is similar enough to the query to count as relevant.",
    "irrelevant_store_withheld": "The equations would have injected memories, but none is relevant; the gate did not.",
    "top_tier_without_support": "The risk is in the top tier and no memory is relevant, so the gate abstains.",
    "too_few_to_compare": "Fewer than two memories are relevant, so reliability is the neutral 0.5.",
    "conflicting_memories": "Relevant memories contradict each other.",
    "zero_vector": "An embedding has length zero; its similarity counts as 0.",
    "not_finite": "A signal or an embedding is not a finite number, so the gate abstains.",
    "out_of_range": "A signal is out of its range, so the gate abstains.",
    "truncated": "A text is longer than the encoder can read; the rest of it was left out.",
    "language_unsupported": "A text is in a language that the conflict detector does not know: conflicts go unseen.",
    "stance_truncated": "A text is longer than the conflict detector reads: conflicts further on go unseen.",
    "stance_unread": "A memory came without a text: conflicts with it go unseen.",
    "calibration_not_fitted": "No calibration was fitted: the range of ‖v_meta‖ is that of all possible signals.",
    "encoder_unverified": "Embeddings were given: nothing shows that the calibration was fitted on their encoder.",
    "duplicate_ids": "Two memories have the same id.",
}
"""Every reason that a record can carry, with its meaning."""


@dataclass(frozen=True)
class MemoryReading:
    """One memory as the signals saw it: its id, its cosine with the query (None if not finite), whether relevant."""

    id: str
    similarity: float | None
    relevant: bool


@dataclass(frozen=True)
class ConflictReading:
    """Two memories in conflict, the rule that fired, and the words that fired it: those of a, then those of b."""

    a: str
    b: str
    rule: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """The smallest change of one signal alone that crosses the nearest threshold, and the action there; or None."""

    delta: float | None
    to_action: str | None


@dataclass(frozen=True)
class Nearest:
    """The threshold nearest to C_final: between which actions, its value, and C_final less it."""

    between: tuple[str, str]
    threshold: float
    distance: float


@dataclass(frozen=True)
class Boundary:
    """How near another action is."""

    nearest: Nearest
    change: dict[str, Change]


@dataclass(frozen=True)
class AuditReading:
    """Energy per subspace (with the total), contribution per channel, and the way to the next action."""

    energy: dict[str, float]
    contributions: dict[str, float]
    boundary: Boundary


@dataclass(frozen=True)
class DecisionRecord:
    """One decision and why; every field is described in ``data/output.schema.json``.

    Example:
        >>> from mdl_torch import MemoryGate
        >>> gate = MemoryGate.from_pretrained()
        >>> record = gate.decide("Who was Ada?", ["Ada wrote programs.", "Ada was a programmer."], risk=0.2)
        >>> record.action.label, record.injected
        ('active', ('0', '1'))
    """

    id: str
    action: Action
    relevance: float
    relevance_raw: float | None
    reliability: float
    agreement: float | None
    conflict_rate: float | None
    risk: float
    risk_rule: str
    gain: float
    norm: float
    confidence: float
    consistency: float
    gated_confidence: float
    thresholds: tuple[float, float, float]
    preset: str
    basis: str
    calibration: str
    certificate: str
    detector: str
    risk_policy: str
    require_relevant: bool
    encoder: str | None
    status: int
    reasons: tuple[str, ...]
    injected: tuple[str, ...]
    memories: tuple[MemoryReading, ...]
    truncated: tuple[str, ...]
    conflicts: tuple[ConflictReading, ...]
    conflict_count: int
    audit: AuditReading | None

    def to_dict(self) -> dict[str, Any]:
        """The record as an output line: plain JSON values."""
        plain = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self), "action": self.action.label}
        return {key: _plain(value) for key, value in plain.items()}

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Self:
        """The record of an output line.

        Raises:
            TypeError: ``line`` is no mapping.
            NoDecisionError: It is an error line.
            ValueError: It is of another schema version, lacks a field or has an unknown one, or a field is of the wrong
                type or length; the message names it.

        Example:
            >>> DecisionRecord.from_dict({"schema_version": 1, "id": None, "line": 7, "error": "the line is empty"})
            Traceback (most recent call last):
            mdl_torch.records.NoDecisionError: line 7 could not be decided: the line is empty
        """
        if not isinstance(line, Mapping):
            raise TypeError(f"an output line must be an object, got {type(line).__name__}")
        if (version := line.get("schema_version")) != SCHEMA_VERSION or isinstance(version, bool):
            raise ValueError(f"schema_version must be {SCHEMA_VERSION}, got {version!r:.60}")
        values = {name: value for name, value in line.items() if name != "schema_version"}
        if "error" in line:
            error = read(ErrorLine, values, name="the output line")
            raise NoDecisionError(f"line {error.line} could not be decided: {error.error}")
        return read(cls, values, name="the output line", keys=_KEYS)


_KEYS: dict[str, tuple[str, ...]] = {
    "audit.energy": (*CHANNELS, "total"),
    "audit.contributions": CHANNELS,
    "audit.boundary.change": CHANNELS,
}
"""The keys of the mappings within a line."""


class NoDecisionError(ValueError):
    """An output line tells that its input line could not be decided."""


@dataclass(frozen=True)
class ErrorLine:
    """What is written in place of a decision; see ``data/output.schema.json``."""

    id: str | None
    line: int
    error: str


def error_line(line: int, error: Exception | str, id: str | None = None) -> dict[str, Any]:
    """The output line of an input line that could not be decided.

    Example:
        >>> error_line(3, "risk must be in [0, 1], got 2", id="a")
        {'schema_version': 1, 'id': 'a', 'line': 3, 'error': 'risk must be in [0, 1], got 2'}
    """
    written = ErrorLine(id, line, str(error) or type(error).__name__)
    return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(written)}


@dataclass(frozen=True)
class Provenance:
    """What a record says of the gate that decided: its layer, conflict detector, risk policy and guard."""

    preset: str
    basis: str
    calibration: str
    certificate: str
    thresholds: tuple[float, float, float]
    fitted: bool
    encoder_matters: bool
    detector: str
    risk_policy: str
    require_relevant: bool

    @classmethod
    def of(
        cls,
        layer: MemoryDecisionLayer,
        detector: ConflictDetector,
        risk_policy: RiskPolicy,
        *,
        require_relevant: bool,
    ) -> Self:
        """The provenance of a gate with these parts as they are now."""
        return cls(
            preset=layer.preset,
            basis=layer.basis,
            calibration=layer.calibration_label,
            certificate=layer.certificate_status,
            thresholds=tuple(layer.policy.thresholds.tolist()),
            fitted=layer.calibration is not None,
            encoder_matters=layer.calibration is not None and layer.calibration.encoder is not None,
            detector=detector.identity,
            risk_policy=risk_policy.fingerprint,
            require_relevant=require_relevant,
        )


@dataclass(frozen=True)
class Conflicts:
    """Conflicting pairs of a store: how many, and the first of them as (i, j, rule, evidence)."""

    count: int = 0
    listed: tuple[tuple[int, int, str, tuple[str, ...]], ...] = ()


def conflicts_of(
    detector: ConflictDetector, stance: TextFeatures, relevant: Tensor, texts: Sequence[str | None]
) -> Conflicts:
    """The conflicts of one store, with their evidence for the first ``MAX_CONFLICTS``.

    Args:
        detector: What found them.
        stance: Its features, ``(K,)``.
        relevant: Which memories count, bool ``(K,)``.
        texts: What the memories say, None without text.

    Example:
        >>> import torch
        >>> from mdl_torch.stance import detector
        >>> lexical, texts = detector("lexical"), ["The shop is open.", "The shop is closed."]
        >>> conflicts_of(lexical, lexical.features(texts), torch.tensor([True, True]), texts)
        Conflicts(count=1, listed=((0, 1, 'antonym', ('open', 'closed')),))
    """
    places = relevant.nonzero().flatten()
    stance = stance[places.to(stance.device)]
    at_once = max(1, MAX_PAIRS // max(1, len(places)))
    count = 0
    listed: list[tuple[int, int, str, tuple[str, ...]]] = []
    for start in range(0, len(places), at_once):
        codes = detector.conflicts(stance[start : start + at_once], stance[start:]).triu(diagonal=1)
        pairs = codes.nonzero()
        count += len(pairs)
        pairs = pairs[: MAX_CONFLICTS - len(listed)]
        rules = [detector.rules[code - 1] for code in codes[pairs.unbind(-1)].tolist()]
        for (i, j), rule in zip(places[start + pairs].tolist(), rules, strict=True):
            found = detector.evidence(texts[i] or "", texts[j] or "", rule=rule)
            listed.append((i, j, rule, (" ".join(found.a), " ".join(found.b)) if found else ()))
    return Conflicts(count, tuple(listed))


def rows(output: Decision | Signals | Audit) -> Iterator[dict[str, Any]]:
    """The rows of a batch ``(B, ...)`` as plain numbers, by the names of its fields.

    Example:
        >>> import torch
        >>> from mdl_torch import MemoryDecisionLayer
        >>> [row["action"] for row in rows(MemoryDecisionLayer()(*torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.2]])))]
        [0, 2]
    """
    columns = {field.name: getattr(output, field.name).tolist() for field in dataclasses.fields(output)}
    return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


def record_of(
    retrieval: Retrieval,
    *,
    place: int,
    decision: Mapping[str, Any],
    signals: Mapping[str, Any] | None,
    account: Mapping[str, Any] | None,
    conflicts: Conflicts,
    risk: float,
    risk_rule: str,
    encoder: str | None,
    provenance: Provenance,
    truncated: Sequence[bool],
    query_truncated: bool,
    languages_supported: bool,
    stance_truncated: bool,
) -> DecisionRecord:
    """The record of one decision, its numbers rounded to ``DECIMALS`` as the output line has them.

    Args:
        retrieval: What was decided on.
        place: Its place in the input, which names it if it has no id.
        decision: Its row of the ``Decision``.
        signals: Its row of the ``Signals``; None for ready signals.
        account: Its row of the ``Audit``; None if it was switched off. Of a faulty row there is nothing to account for.
        conflicts: Conflicts of this store.
        risk: A as it was assessed. Of a faulty row the record has that of the decision, which is 1.
        risk_rule: Where A came from.
        encoder: Identity of the encoder; None if nothing was encoded.
        provenance: What the gate is.
        truncated: Which memories were read in part.
        query_truncated: Whether the query was.
        languages_supported: Whether the conflict detector knows the language of every text.
        stance_truncated: Whether it read a memory in part.
    """
    action, status = Action(decision["action"]), Status(decision["status"])
    store: tuple[Memory, ...] = () if retrieval.signals else retrieval.memories
    ids = tuple(str(position) if memory.id is None else str(memory.id) for position, memory in enumerate(store))
    measured = dict.fromkeys(_MEASURED) if signals is None else {name: _number(signals[name]) for name in _MEASURED}
    # Padding is cut off by zip: a store has as many ids as memories.
    seen = zip(ids, signals["similarity"], signals["relevant"], strict=False) if signals else ()
    memories = tuple(MemoryReading(id, _number(similarity), relevant) for id, similarity, relevant in seen)
    given = [retrieval.query_embedding, *(memory.embedding for memory in store)]
    facts = Facts(
        status=status,
        withheld=action >= Action.SILENT and decision["gated_confidence"] >= provenance.thresholds[1],
        abstained=action == Action.OPT_OUT and decision["gated_confidence"] >= provenance.thresholds[2],
        compared=signals is None or sum(memory.relevant for memory in memories) >= 2,
        conflict=conflicts.count > 0,
        truncated=query_truncated or any(truncated),
        languages_supported=languages_supported,
        stance_truncated=stance_truncated,
        texts_known=all(memory.text is not None for memory in store),
        fitted=provenance.fitted,
        encoder_known=signals is None
        or not provenance.encoder_matters
        or all(embedding is None for embedding in given),
        unique_ids=len(set(ids)) == len(ids),
    )
    return DecisionRecord(
        id=str(place + 1) if retrieval.id is None else str(retrieval.id),
        action=action,
        **{name: _number(decision[name]) for name in _DECIDED},
        risk=_number(decision["risk"] if status & INVALID else risk),
        relevance_raw=measured["relevance_raw"] if store else None,
        agreement=measured["agreement"],
        conflict_rate=measured["conflict_rate"],
        risk_rule=risk_rule,
        thresholds=tuple(_number(theta) for theta in provenance.thresholds),
        status=int(status),
        preset=provenance.preset,
        basis=provenance.basis,
        calibration=provenance.calibration,
        certificate=provenance.certificate,
        detector=provenance.detector,
        risk_policy=provenance.risk_policy,
        require_relevant=provenance.require_relevant,
        encoder=encoder,
        reasons=tuple(facts.reasons()),
        injected=ids if action <= Action.SUPP else (),
        memories=memories,
        truncated=tuple(id for id, cut in zip(ids, truncated, strict=False) if cut),
        conflicts=tuple(ConflictReading(ids[i], ids[j], rule, words) for i, j, rule, words in conflicts.listed),
        conflict_count=conflicts.count,
        audit=_audit_reading(account, provenance.thresholds) if account and not status & INVALID else None,
    )


_MEASURED = ("relevance_raw", "agreement", "conflict_rate")
_DECIDED = tuple(f.name for f in dataclasses.fields(Decision) if f.name not in ("action", "status", "risk"))


@dataclass(frozen=True)
class Facts:
    """What the reasons of a record follow from."""

    status: Status
    withheld: bool
    abstained: bool
    compared: bool
    conflict: bool
    truncated: bool
    languages_supported: bool
    stance_truncated: bool
    texts_known: bool
    fitted: bool
    encoder_known: bool
    unique_ids: bool

    def reasons(self) -> Iterator[str]:
        """The keys of ``REASONS`` that hold, the weightiest first."""
        empty = bool(self.status & Status.NO_MEMORY)
        irrelevant = bool(self.status & Status.NO_RELEVANT_MEMORY)
        valid = not self.status & INVALID
        holds = {
            "not_finite": bool(self.status & Status.NOT_FINITE),
            "out_of_range": bool(self.status & Status.OUT_OF_RANGE),
            "no_memory": empty,
            "no_relevant_memory": irrelevant and not empty,
            "irrelevant_store_withheld": irrelevant and not empty and self.withheld,
            "top_tier_without_support": irrelevant and valid and self.abstained,
            "conflicting_memories": self.conflict,
            "too_few_to_compare": not self.compared and not irrelevant,
            "zero_vector": bool(self.status & Status.ZERO_VECTOR),
            "truncated": self.truncated,
            "language_unsupported": not self.languages_supported,
            "stance_truncated": self.stance_truncated,
            "stance_unread": not self.texts_known,
            "calibration_not_fitted": not self.fitted,
            "encoder_unverified": not self.encoder_known,
            "duplicate_ids": not self.unique_ids,
        }
        return (reason for reason, true in holds.items() if true)


def _audit_reading(account: Mapping[str, Any], thresholds: tuple[float, float, float]) -> AuditReading:
    nearest, distance = account["boundary"], account["distance"]
    between = (Action(nearest), Action(nearest + 1))
    across = between[1] if distance >= 0 else between[0]
    changes = {channel: _number(change) for channel, change in zip(CHANNELS, account["change"], strict=True)}
    energy = [_number(value) for value in (*account["energy"], sum(account["energy"]))]
    return AuditReading(
        energy=dict(zip((*CHANNELS, "total"), energy, strict=True)),
        contributions=dict(zip(CHANNELS, map(_number, account["contribution"]), strict=True)),
        boundary=Boundary(
            Nearest((between[0].label, between[1].label), _number(thresholds[nearest]), _number(distance)),
            {channel: Change(change, None if change is None else across.label) for channel, change in changes.items()},
        ),
    )


def _number(value: float) -> Any:
    """A number as records have it: rounded, without a negative zero, None if not finite."""
    return round(float(value), DECIMALS) + 0.0 if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """JSON-ready: tuples as lists."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value
