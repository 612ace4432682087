"""Does a stored decision still come out? Every number of an output line that follows from others is computed anew."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from mdl_torch.audit import Audit, audit, smallest_change
from mdl_torch.config import CHANNELS
from mdl_torch.outputs import INVALID, Action, Decision, Status
from mdl_torch.policy import guard
from mdl_torch.records import MAX_CONFLICTS, DecisionRecord, Facts
from mdl_torch.signals import NEUTRAL_RELIABILITY, RELEVANT_ABOVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdl_torch.gate import MemoryGate
    from mdl_torch.layer import MemoryDecisionLayer
    from mdl_torch.retrieval import Retrieval

TOLERANCE = 5e-6
"""How far a stored number may lie from the recomputed one: the float32 of the decision (4e-6) and its rounding."""

ROUNDING = 2e-7
"""The same for numbers that follow from stored ones without float32 in between."""

LANDING = 1e-6
"""How far C_final may be from a threshold after a change that is said to lead onto it: all of it float64."""

COMFORTABLE_SPREAD = 0.5
"""n_max - n_min below which C, which is divided by it, is allowed more in proportion."""

Outcome = Literal["verified", "differs", "not_verifiable"]

Scope = Literal["line", "line_and_source"]
"""What was checked: the line against itself and the gate, or against its texts too."""

Agreement = Literal["same", "boundary", "differs"]
"""``boundary``: too near a threshold to say which side float32 was on."""


@dataclass(frozen=True)
class Check:
    """One field against its recomputation.

    Attributes:
        field: Where it stands in the output line.
        rule: What it follows from.
        stored: What the line says.
        recomputed: What comes out.
        agreement: Whether the two are the same.
    """

    field: str
    rule: str
    stored: Any
    recomputed: Any
    agreement: Agreement


@dataclass(frozen=True)
class Verification:
    """The checks of one output line.

    Attributes:
        id: Of the line.
        checks: All of them.
        obstacles: Why this gate cannot say more: it is not the one that decided.
        scope: What was checked.
    """

    id: str
    checks: tuple[Check, ...]
    obstacles: tuple[str, ...] = ()
    scope: Scope = "line"

    @property
    def outcome(self) -> Outcome:
        """``differs`` if any check does; else ``not_verifiable`` with obstacles; else ``verified``."""
        if self.differing:
            return "differs"
        return "not_verifiable" if self.obstacles else "verified"

    @property
    def differing(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.agreement == "differs")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "id": self.id,
            "outcome": self.outcome,
            "scope": self.scope,
            "differing": [check.field for check in self.differing],
            "obstacles": list(self.obstacles),
            "checks": [_jsonable(dataclasses.asdict(check)) for check in self.checks],
        }


def _jsonable(check: dict[str, Any]) -> dict[str, Any]:
    """A check without what JSON lacks: what comes out of a far-fetched number may be infinite."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in check.items()}


def verify(record: DecisionRecord, gate: MemoryGate, source: Retrieval | None = None) -> Verification:
    """Recompute a stored decision.

    From the line itself: signals from similarities, agreement and conflicts; confidence, action and audit from the
    signals; status and reasons from all of it. With the retrieval it was made from, everything from the texts as well.
    Without it, what only texts can show is taken as stored: similarities, agreement, which memories conflict, an
    explicit risk.

    Args:
        record: The stored decision.
        gate: The gate that is said to have decided.
        source: The retrieval that was decided on.

    Example:
        >>> from mdl_torch import MemoryGate
        >>> gate = MemoryGate()
        >>> record = gate.decide("What is tea?", ["Tea is a drink.", "Tea is drunk hot."], risk=0.2)
        >>> verify(record, gate).outcome
        'verified'
        >>> [check.field for check in verify(dataclasses.replace(record, action=Action.OPT_OUT), gate).differing]
        ['injected', 'action']
    """
    checks = _Checks()
    _check_signals(checks, record)
    _check_conflicts(checks, record)
    _check_consequences(checks, record)
    found = obstacles(record, gate, source)
    if not found:
        _check_provenance(checks, record, gate)
        _check_risk(checks, record, gate)
        _check_decision(checks, record, gate)
        if source is not None:
            _check_source(checks, record, gate, source)
    scope: Scope = "line" if found or source is None else "line_and_source"
    return Verification(record.id, tuple(checks.made), tuple(found), scope)


class _Checks:
    """Collects checks."""

    def __init__(self) -> None:
        self.made: list[Check] = []

    def equal(self, field: str, rule: str, stored: Any, recomputed: Any, *, boundary: bool = False) -> None:
        """Two values that must be the same, unless the case is on a boundary."""
        same = type(stored) is type(recomputed) and stored == recomputed
        self.made.append(Check(field, rule, stored, recomputed, "same" if same else _unless(boundary)))

    def near(
        self, field: str, rule: str, stored: float | None, recomputed: float | None, tolerance: float = TOLERANCE
    ) -> None:
        """Two numbers that must be as good as the same; or both absent."""
        self.made.append(Check(field, rule, stored, recomputed, _unless(_near(stored, recomputed, tolerance), "same")))


def _unless(excused: bool, excuse: Agreement = "boundary") -> Agreement:
    return excuse if excused else "differs"


def _near(stored: float | None, recomputed: float | None, tolerance: float) -> bool:
    if stored is None or recomputed is None:
        return stored is recomputed
    return abs(stored - recomputed) <= tolerance


def _check_signals(checks: _Checks, record: DecisionRecord) -> None:
    """M and R, and what they are made of."""
    for place, memory in enumerate(record.memories):
        similarity = -1.0 if memory.similarity is None else memory.similarity
        relevant, on_edge = similarity > RELEVANT_ABOVE, abs(similarity - RELEVANT_ABOVE) <= 1e-6
        rule = f"similarity > {RELEVANT_ABOVE}"
        checks.equal(f"memories[{place}].relevant", rule, memory.relevant, relevant, boundary=on_edge)
    similarities = [memory.similarity for memory in record.memories]
    known = [s for s in similarities if s is not None]
    if len(known) == len(similarities):
        raw = max(known, default=None)
        checks.near("relevance_raw", "the largest similarity", record.relevance_raw, raw, ROUNDING)
        if not _ready(record) and not _zeroed(record):
            relevance = min(max(raw or 0.0, 0.0), 1.0)
            checks.near("relevance", "relevance_raw clipped to [0, 1]", record.relevance, relevance, ROUNDING)
    if _ready(record):
        checks.near("agreement", "ready signals have none", record.agreement, None)
        checks.near("conflict_rate", "ready signals have none", record.conflict_rate, None)
        return
    pairs = _pairs(record)
    if not pairs and not record.status & int(Status.NOT_FINITE):
        checks.near("agreement", "no pair of relevant memories", record.agreement, 0.0)
    expected = record.conflict_count / pairs if pairs else 0.0
    checks.near("conflict_rate", f"{record.conflict_count} of {pairs} pairs", record.conflict_rate, expected, ROUNDING)
    if _zeroed(record):
        return
    if not pairs:
        rule = "fewer than two relevant memories"
        checks.near("reliability", rule, record.reliability, NEUTRAL_RELIABILITY, ROUNDING)
    elif record.agreement is not None and record.conflict_rate is not None:
        reliability = min(max(record.agreement * (1 - record.conflict_rate) ** 2, 0.0), 1.0)
        checks.near("reliability", "agreement·(1 - conflict_rate)²", record.reliability, reliability, 5 * ROUNDING)
    elif not record.status & int(Status.NOT_FINITE):
        checks.equal("agreement", "measured where two memories are relevant", record.agreement is not None, True)


def _check_conflicts(checks: _Checks, record: DecisionRecord) -> None:
    listed = min(record.conflict_count, MAX_CONFLICTS)
    checks.equal("conflicts", f"conflict_count of them, at most {MAX_CONFLICTS}", len(record.conflicts), listed)
    relevant = {memory.id for memory in record.memories if memory.relevant}
    strange = [name for conflict in record.conflicts for name in (conflict.a, conflict.b) if name not in relevant]
    checks.equal("conflicts.ids", "ids of relevant memories", strange, [])


def _check_consequences(checks: _Checks, record: DecisionRecord) -> None:
    """What follows from the action, the status and the ids."""
    ids = tuple(memory.id for memory in record.memories)
    injected = ids if record.action <= Action.SUPP else ()
    checks.equal("injected", "all memories if active or supp, else none", record.injected, injected)
    checks.equal("truncated", "ids of memories", [name for name in record.truncated if name not in ids], [])
    checks.equal("status", "memories and their similarities", record.status, int(_status(record)))
    facts = _facts(record)
    expected = tuple(facts.reasons())
    rule = "status, action, conflicts, calibration and ids"
    checks.equal("reasons", rule, record.reasons, expected, boundary=_on_threshold(record))
    if record.audit is not None:
        energy = record.audit.energy
        total = sum(energy[channel] for channel in CHANNELS)
        checks.near("audit.energy.total", "sum over the subspaces", energy["total"], total, 2 * ROUNDING)


def _status(record: DecisionRecord) -> Status:
    """The status bits that follow from the line; those that need the embeddings as stored, where they can be."""
    stored = Status(record.status & int(~Status(0)))
    derived = Status(0)
    if not _ready(record):
        if not record.memories:
            derived |= Status.NO_MEMORY
        if not any(memory.relevant for memory in record.memories):
            derived |= Status.NO_RELEVANT_MEMORY
        if any(memory.similarity == 0 for memory in record.memories):
            derived |= stored & Status.ZERO_VECTOR
    if any(memory.similarity is None for memory in record.memories):
        derived |= Status.NOT_FINITE
    if record.action == Action.OPT_OUT:
        derived |= stored & INVALID
    return derived


def _facts(record: DecisionRecord) -> Facts:
    """What the reasons follow from; what only texts can show is taken from the stored reasons."""

    def unless(reason: str) -> bool:
        return reason not in record.reasons

    ids = [memory.id for memory in record.memories]
    return Facts(
        status=Status(record.status & int(~Status(0))),
        withheld=record.action >= Action.SILENT and record.gated_confidence >= record.thresholds[1],
        abstained=record.action == Action.OPT_OUT and record.gated_confidence >= record.thresholds[2],
        compared=_ready(record) or sum(memory.relevant for memory in record.memories) >= 2,
        conflict=record.conflict_count > 0,
        truncated=bool(record.truncated) or not unless("truncated"),
        languages_supported=unless("language_unsupported"),
        stance_truncated=not unless("stance_truncated"),
        texts_known=unless("stance_unread"),
        fitted=unless("calibration_not_fitted"),
        encoder_known=unless("encoder_unverified"),
        unique_ids=len(set(ids)) == len(ids),
    )


_DECIDING = ("preset", "basis", "calibration", "detector", "risk_policy", "require_relevant")
"""The fields of a line that say which gate decided."""


def obstacles(record: DecisionRecord, gate: MemoryGate, source: Retrieval | None = None) -> list[str]:
    """In what this gate is another than the one that decided; what certificates claim is then compared, too.

    Args:
        record: The stored decision.
        gate: The gate that is said to have decided.
        source: The retrieval that was decided on, if the encoder is to be compared.

    Example:
        >>> from mdl_torch import MemoryGate
        >>> record = MemoryGate().decide("What is tea?", ["Tea is a drink."], risk=0.2)
        >>> obstacles(record, MemoryGate(require_relevant=False))
        ['require_relevant is True in the line, False in this gate']
    """
    here = gate.provenance
    compared = [(name, getattr(record, name), getattr(here, name)) for name in _DECIDING]
    if source is not None and record.encoder is not None:
        compared.append(("encoder", record.encoder, gate.encoder.identity))
    if any(stored != mine for _, stored, mine in compared):
        compared.append(("certificate", record.certificate, here.certificate))
    return [f"{name} is {stored} in the line, {mine} in this gate" for name, stored, mine in compared if stored != mine]


def _check_provenance(checks: _Checks, record: DecisionRecord, gate: MemoryGate) -> None:
    here = gate.provenance
    for place, (stored, theta) in enumerate(zip(record.thresholds, here.thresholds, strict=True)):
        checks.near(f"thresholds[{place}]", "the layer's", stored, theta, ROUNDING)
    checks.equal("certificate", "the layer's", record.certificate, here.certificate)
    fitted = "calibration_not_fitted" in record.reasons
    checks.equal("reasons.calibration_not_fitted", "the layer's calibration", fitted, not here.fitted)
    calibration = gate.layer.calibration
    if calibration is not None and calibration.encoder is not None:
        if record.encoder is not None:
            checks.equal("encoder", "the calibration's", record.encoder, calibration.encoder)
        unverified = "encoder_unverified" in record.reasons
        checks.equal("reasons.encoder_unverified", "encoder", unverified, not _ready(record) and record.encoder is None)


def _check_risk(checks: _Checks, record: DecisionRecord, gate: MemoryGate) -> None:
    """A of a category, a keyword tier or the default, by the gate's risk policy."""
    if _zeroed(record):
        return
    policy, rule = gate.risk_policy, record.risk_rule
    kind, _, name = rule.partition(": ")
    known: dict[str, float | None] = {"explicit": record.risk, "default": policy.default_risk}
    if kind == "category" and name in policy.categories:
        known[rule] = policy.categories[name]
    tier = policy.keywords.get(name.split(" (")[0]) if kind == "keyword" else None
    if tier is not None and rule.endswith(")") and name.partition(" (")[2][:-1] in tier.words:
        known[rule] = tier.risk
    checks.near("risk", f"risk_rule: {rule}", record.risk, known.get(rule), ROUNDING)


def _check_decision(checks: _Checks, record: DecisionRecord, gate: MemoryGate) -> None:
    """Gain, norm, C, α, C_final, the action and the audit, from M, R and A by the layer in float64."""
    layer = gate.layer
    m, r, a = _point(record, layer)
    decision = layer(m, r, a)
    zeroed = _zeroed(record)
    spread = layer.head.norm_range.diff(dim=-1).min().item()
    wide = TOLERANCE * max(1.0, COMFORTABLE_SPREAD / spread)
    for name in ("gain", "norm", "consistency"):
        recomputed = 0.0 if zeroed else getattr(decision, name).item()
        checks.near(name, "M, R and A by the layer", getattr(record, name), recomputed, TOLERANCE * max(1, recomputed))
    for name in ("confidence", "gated_confidence"):
        recomputed = 0.0 if zeroed else getattr(decision, name).item()
        checks.near(name, "M, R and A by the layer", getattr(record, name), recomputed, wide)
    _check_action(checks, record, gate, decision, wide)
    if record.audit is not None:
        _check_audit(checks, record, layer, wide)


def _check_action(
    checks: _Checks, record: DecisionRecord, gate: MemoryGate, decision: Decision, tolerance: float
) -> None:
    """The action of C_final and the guard; where C_final is on a threshold, that of either side."""
    require_relevant = gate.embedding_gate.require_relevant
    status = torch.tensor(record.status & int(~Status(0)), dtype=torch.int32, device=decision.status.device)
    if _ready(record):  # nothing but their validity stood between ready signals and the equations
        status = status & int(INVALID)
    sides = []
    for shift in (0.0, tolerance, -tolerance):
        action = gate.layer.policy(decision.gated_confidence + shift)
        guarded = guard(dataclasses.replace(decision, action=action), status, require_relevant=require_relevant)
        sides.append(Action(int(guarded.action)).label)
    rule = f"gated_confidence against the thresholds, require_relevant={str(require_relevant).lower()}"
    checks.equal("action", rule, record.action.label, sides[0], boundary=record.action.label in sides)


def _check_audit(checks: _Checks, record: DecisionRecord, layer: MemoryDecisionLayer, tolerance: float) -> None:
    assert record.audit is not None
    stored = record.audit
    m, r, a = _point(record, layer)
    account = audit(layer, m, r, a)
    energy = account.energy.tolist()
    rule = "M, R and A by the layer"
    for channel, value, share in zip(CHANNELS, energy, account.contribution.tolist(), strict=True):
        checks.near(f"audit.energy.{channel}", rule, stored.energy[channel], value, TOLERANCE * max(1.0, value))
        checks.near(f"audit.contributions.{channel}", rule, stored.contributions[channel], share)
    if not _zeroed(record):
        square = layer.trust(m, r, a).norm.square().mean().item()
        checks.near("audit.energy.total", "norm²", stored.energy["total"], square, 2 * TOLERANCE * max(1.0, square))
    _check_boundary(checks, record, layer, account, tolerance)


def _check_boundary(
    checks: _Checks, record: DecisionRecord, layer: MemoryDecisionLayer, account: Audit, tolerance: float
) -> None:
    """The nearest threshold, and that each change is the smallest that crosses it."""
    assert record.audit is not None
    nearest, changes = record.audit.boundary.nearest, record.audit.boundary.change
    point = torch.stack(_point(record, layer))
    gated = layer(*point).gated_confidence.item()
    gaps = [gated - theta for theta in record.thresholds]
    place = min(range(len(gaps)), key=lambda k: abs(gaps[k]))
    tied = [k for k in range(len(gaps)) if abs(gaps[k]) <= abs(gaps[place]) + tolerance]
    place = next((k for k in tied if _near(nearest.threshold, record.thresholds[k], ROUNDING)), place)
    above, below = Action(place).label, Action(place + 1).label
    where = "audit.boundary.nearest"
    checks.equal(f"{where}.between", "the nearest threshold", tuple(nearest.between), (above, below))
    checks.near(f"{where}.threshold", "the nearest threshold", nearest.threshold, record.thresholds[place], ROUNDING)
    checks.near(f"{where}.distance", "C_final less the threshold", nearest.distance, gaps[place], tolerance)
    threshold = point.new_tensor(record.thresholds[place])
    at_or_above = torch.tensor(gaps[place] >= 0, device=point.device)
    found = account.change if place == int(account.boundary) else smallest_change(layer, point, threshold, at_or_above)
    on_edge, landing = abs(gaps[place]) <= tolerance, LANDING * tolerance / TOLERANCE
    across = below if gaps[place] >= 0 else above
    for k, (channel, smallest) in enumerate(zip(CHANNELS, found.tolist(), strict=True)):
        delta, to_action = changes[channel].delta, changes[channel].to_action
        expected = None if smallest != smallest else smallest
        field = f"audit.boundary.change.{channel}"
        agrees = _near(delta, expected, TOLERANCE) or _lands_on(layer, point, k, delta, threshold, landing)
        agreement: Agreement = "same" if agrees else _unless(on_edge)
        checks.made.append(Check(f"{field}.delta", "the smallest that crosses", delta, expected, agreement))
        leads = None if delta is None else across
        checks.equal(f"{field}.to_action", "the action across", to_action, leads, boundary=on_edge)


def _lands_on(
    layer: MemoryDecisionLayer,
    point: torch.Tensor,
    channel: int,
    delta: float | None,
    threshold: torch.Tensor,
    tolerance: float,
) -> bool:
    """Whether a change of one signal leads onto the threshold: a flat curve crosses it at no certain place."""
    if delta is None or not 0 <= point[channel] + delta <= 1:
        return False
    moved = point.clone()
    moved[channel] += delta
    return bool((layer(*moved).gated_confidence - threshold).abs() <= tolerance)


def _check_source(checks: _Checks, record: DecisionRecord, gate: MemoryGate, source: Retrieval) -> None:
    """Everything, from the texts."""
    again = gate.records([source], audits=False)[0]
    on_edge = _on_threshold(again)
    rule = "the source, from its texts"
    for name in ("action", "reasons", "injected"):
        stored, fresh = getattr(record, name), getattr(again, name)
        if isinstance(fresh, Action):
            stored, fresh = stored.label, fresh.label
        checks.equal(f"source.{name}", rule, stored, fresh, boundary=on_edge)
    for name in ("risk_rule", "encoder", "status", "truncated", "conflict_count"):
        checks.equal(f"source.{name}", rule, getattr(record, name), getattr(again, name))
    for name in ("relevance", "relevance_raw", "reliability", "agreement", "conflict_rate", "risk"):
        checks.near(f"source.{name}", rule, getattr(record, name), getattr(again, name))
    checks.equal("source.memories", rule, [m.id for m in record.memories], [m.id for m in again.memories])
    for place, (stored, fresh) in enumerate(zip(record.memories, again.memories, strict=False)):
        checks.near(f"source.memories[{place}].similarity", rule, stored.similarity, fresh.similarity)
    checks.equal("source.conflicts", rule, _plain(record.conflicts), _plain(again.conflicts))


def _plain(values: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(value) for value in values]


def _on_threshold(record: DecisionRecord) -> bool:
    return any(abs(record.gated_confidence - theta) <= TOLERANCE for theta in record.thresholds)


def _point(record: DecisionRecord, layer: MemoryDecisionLayer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(M, R, A), float64 on the device of the layer."""
    signals = torch.tensor((record.relevance, record.reliability, record.risk), dtype=torch.float64)
    m, r, a = signals.to(layer.policy.thresholds.device)
    return m, r, a


def _ready(record: DecisionRecord) -> bool:
    """Whether the signals came ready: then nothing was measured, which an empty store with its status also lacks."""
    return not record.memories and not record.status & int(Status.NO_MEMORY) and record.agreement is None


def _zeroed(record: DecisionRecord) -> bool:
    """Whether an invalid row was zeroed by the layer (risk 1)."""
    return bool(record.status & int(INVALID)) and (record.relevance, record.reliability, record.risk) == (0, 0, 1)


def _pairs(record: DecisionRecord) -> int:
    relevant = sum(memory.relevant for memory in record.memories)
    return relevant * (relevant - 1) // 2
