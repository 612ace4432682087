"""Text in, decisions out: encoder, conflict detector, risk policy and the embedding gate, put together.

A retrieval's way: ``_check`` its values and assess its risk, ``_embed`` what is text, gather stores of like size in
``_buckets``, decide on each in one batch of tensors, and write the record.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args, overload

import torch
from torch import Tensor, nn

from mdl_torch.audit import audit
from mdl_torch.cache import FeatureCache
from mdl_torch.calibration import Calibration, config_digest
from mdl_torch.config import MDLConfig
from mdl_torch.embedding_gate import EmbeddingGate
from mdl_torch.encoder import DEFAULT_ENCODER, Encoded, LongText, SentenceEncoder
from mdl_torch.errors import unknown_name
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Decision, Signals
from mdl_torch.records import MAX_PAIRS, Conflicts, DecisionRecord, Provenance, conflicts_of, record_of, rows
from mdl_torch.retrieval import Memory, Retrieval
from mdl_torch.risk import RiskPolicy
from mdl_torch.signals import PAIR_BLOCK, SignalExtractor
from mdl_torch.stance import ConflictDetector, TextFeatures
from mdl_torch.stance import detector as named_detector
from mdl_torch.words import is_blank

MAX_STORES = 1_024
"""Retrievals that are decided on in one batch of tensors."""

CACHED_TEXTS = 50_000
"""Texts whose stance features are remembered."""

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


class _Embedded(NamedTuple):
    """Embeddings of a query ``(d,)`` and its memories ``(K, d)``, K >= 0, and which texts were read in part."""

    query: Tensor
    memories: Tensor
    query_truncated: bool
    truncated: tuple[bool, ...]


@dataclass(frozen=True)
class _Prepared:
    """A retrieval that was checked and embedded, with its place in the input. Ready signals need no embeddings."""

    place: int
    retrieval: Retrieval
    risk: float
    risk_rule: str
    embedded: _Embedded | None


@dataclass(frozen=True)
class _Bucket:
    """Retrievals decided together. Ready signals come without signals of their own, stance or languages."""

    prepared: Sequence[_Prepared]
    decision: Decision
    """``(B,)``"""
    signals: Signals | None = None
    stance: TextFeatures | None = None
    """``(B, K)``; None where no memory has a text."""
    languages_supported: Sequence[bool] | None = None


class MemoryGate:
    """Decides over text: embeds queries and memories, finds conflicts, assesses risk, and asks the controller.

    Safe to call from many threads. Embeddings and stance features are cached by content, within bounds.

    Args:
        encoder: An encoder, or the name or folder of a sentence-transformers model, which is loaded when first needed.
        layer: The controller, with its calibration; the ``paper`` preset with the exact range by default.
        detector: Conflict detector; its name or an object.
        risk_policy: Assesses the risk of queries that come without one.
        require_relevant: Whether a store needs a relevant memory to be injected.
        validate_args: Whether a NaN, an infinity or a value out of range raises. If not, it makes the row Opt-Out.
        device: Where signals and decisions are computed, and where an encoder given by name is loaded; None is where
            the layer is. A layer or detector that is elsewhere is copied there; yours stays where it is.
        long_text: ``pool`` or ``truncate``, for text longer than the window of an encoder given by name.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: A name is unknown; the nearest is named.
        CalibrationMismatchError: The layer's calibration was fitted on another encoder or detector. An encoder given by
            name is checked when it is loaded.

    Example:
        >>> gate = MemoryGate.from_pretrained()
        >>> record = gate.decide("Can I return opened software?", ["Opened software cannot be returned."], risk=0.5)
        >>> record.reasons
        ('too_few_to_compare',)
    """

    def __init__(
        self,
        encoder: SentenceEncoder | str | Path = DEFAULT_ENCODER,
        *,
        layer: MemoryDecisionLayer | None = None,
        detector: ConflictDetector | str = "lexical",
        risk_policy: RiskPolicy | None = None,
        require_relevant: bool = True,
        validate_args: bool = True,
        device: str | torch.device | None = None,
        long_text: LongText = "pool",
    ) -> None:
        if long_text not in get_args(LongText):
            raise ValueError(unknown_name("long_text", long_text, get_args(LongText)))
        detector = _expect("detector", _detector(detector), ConflictDetector)
        layer = MemoryDecisionLayer() if layer is None else _expect("layer", layer, MemoryDecisionLayer)
        here = layer.policy.thresholds.device if device is None else device
        self.device = torch.empty(0, device=here).device  # with its index: "cuda" is "cuda:0"
        self.detector, self.layer = _on(self.device, detector), _on(self.device, layer)
        self.risk_policy = (
            RiskPolicy.default() if risk_policy is None else _expect("risk_policy", risk_policy, RiskPolicy)
        )
        for name, value in (("require_relevant", require_relevant), ("validate_args", validate_args)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be a bool, got {value!r}")
        self.validate_args = validate_args
        self.embedding_gate = EmbeddingGate(
            self.layer, SignalExtractor(self.detector), require_relevant=require_relevant
        ).to(self.device)
        self._long_text: LongText = long_text
        self._encoder = _expect("encoder", encoder, SentenceEncoder, str, Path)
        self._loading = threading.Lock()
        self._features = FeatureCache(self.detector, CACHED_TEXTS)
        self._known: tuple[object, Provenance] | None = None
        self._check_calibration(encoder.identity if isinstance(encoder, SentenceEncoder) else None)

    @classmethod
    def from_pretrained(
        cls,
        encoder: SentenceEncoder | str | Path = DEFAULT_ENCODER,
        *,
        layer: MemoryDecisionLayer | str | Path = "paper",
        calibration: Calibration | str | Path | None = "auto",
        risk_policy: RiskPolicy | str | Path | None = None,
        detector: ConflictDetector | str = "lexical",
        require_relevant: bool = True,
        validate_args: bool = True,
        device: str | torch.device | None = None,
        long_text: LongText = "pool",
    ) -> MemoryGate:
        """A gate from names and files.

        Args:
            encoder: As for the class; MiniLM by default, which works offline.
            layer: A preset's name, a folder written by ``save_pretrained``, a repository of the hub, or a layer.
            calibration: ``auto`` is the layer's own, else the reference calibration where it fits (the ``paper``
                preset without a range of your own, MiniLM, the lexical detector as it is by default), else none;
                thresholds that you set yourself stay, beside the reference range. ``reference``, a file or a
                calibration insist. None is the exact range with the default thresholds, or with the range and
                thresholds that you set yourself.
            risk_policy: A policy, or the YAML file of one.
            detector: As for the class.
            require_relevant: As for the class.
            validate_args: As for the class.
            device: As for the class.
            long_text: As for the class.

        Raises:
            TypeError: An argument is of the wrong kind.
            ValueError: A name is unknown or a file is damaged.
            OSError: A file is missing.
            CalibrationMismatchError: The calibration is for another layer, encoder or detector.

        Example:
            >>> MemoryGate.from_pretrained(calibration=None).layer.calibration_label
            'exact-range'
        """
        found = _expect("detector", _detector(detector), ConflictDetector)
        _expect("encoder", encoder, SentenceEncoder, str, Path)
        return cls(
            encoder,
            layer=_calibrated(_layer(layer), calibration, encoder, found),
            detector=found,
            risk_policy=RiskPolicy.from_yaml(risk_policy) if isinstance(risk_policy, str | Path) else risk_policy,
            require_relevant=require_relevant,
            validate_args=validate_args,
            device=device,
            long_text=long_text,
        )

    @property
    def provenance(self) -> Provenance:
        """What records say of this gate, its layer taken as it is now.

        Example:
            >>> gate = MemoryGate.from_pretrained(layer="certified")
            >>> gate.provenance.certificate
            'valid'
            >>> _ = gate.layer.fusion.bias.add_(0.1)
            >>> gate.provenance.certificate
            'void'
        """
        now = (self.layer.snapshot(), self.detector, self.risk_policy, self.embedding_gate.require_relevant)
        known = self._known
        if known is None or known[0] != now:
            layer, detector, risk_policy = self.layer, self.detector, self.risk_policy
            require_relevant = self.embedding_gate.require_relevant
            known = now, Provenance.of(layer, detector, risk_policy, require_relevant=require_relevant)
            self._known = known  # one assignment, so that other threads see both or neither
        return known[1]

    @property
    def encoder(self) -> SentenceEncoder:
        """The sentence encoder, loaded when first asked for.

        Raises:
            OSError: The model is not there.
            CalibrationMismatchError: The layer's calibration was fitted on another encoder.
        """
        with self._loading:
            if not isinstance(self._encoder, SentenceEncoder):
                loaded = SentenceEncoder.from_pretrained(self._encoder, device=self.device, long_text=self._long_text)
                self._check_calibration(loaded.identity)
                self._encoder = loaded
            return self._encoder

    def decide(
        self,
        query: str,
        memories: Sequence[str | Memory | Mapping[str, Any]],
        *,
        risk: float | Tensor | None = None,
        category: str | None = None,
    ) -> DecisionRecord:
        """One decision with its audit trail.

        Args:
            query: What is asked.
            memories: The store: texts, mappings with ``id``, ``text``, ``source``, ``timestamp``, ``score`` or
                ``embedding``, or ``Memory`` objects. May be empty.
            risk: A in [0, 1]; wins over ``category``. Without either the risk policy reads the query.
            category: A category of the risk policy.

        Raises:
            TypeError: An argument is of the wrong kind.
            ValueError: A value is out of range or not finite, or dimensions differ; the message names it.

        Example:
            >>> gate = MemoryGate.from_pretrained()
            >>> gate.decide("Is the shop open?", ["The shop is open.", "The shop is not open."]).conflicts[0].rule
            'negation'
        """
        return self.records([_retrieval(query, memories, risk, category)])[0]

    def decide_batch(
        self,
        queries: Sequence[str],
        memories: Sequence[Sequence[str | Memory | Mapping[str, Any]]],
        *,
        risk: float | Sequence[float | None] | Tensor | None = None,
        category: str | Sequence[str | None] | None = None,
    ) -> Decision:
        """Decisions over many stores, as one batch of tensors ``(B,)`` without the audit trail.

        Args:
            queries: B texts.
            memories: B stores, as for ``decide``.
            risk: One for all, or one for each.
            category: One for all, or one for each.

        Raises:
            TypeError: An argument is of the wrong kind.
            ValueError: Lengths differ, or a value is invalid; the message says at which place.

        Example:
            >>> gate = MemoryGate.from_pretrained()
            >>> gate.decide_batch(["What is tea?", "What is tea?"], [["Tea is a drink."], []], risk=0.2).action
            tensor([0, 3], dtype=torch.int8)
        """
        columns = [_sequence("queries", queries), _sequence("memories", memories)]
        columns += [_spread("risk", risk, len(columns[0])), _spread("category", category, len(columns[0]))]
        for name, column in zip(("memories", "risk", "category"), columns[1:], strict=True):
            if len(column) != len(columns[0]):
                raise ValueError(f"{name} must be one a query, {len(columns[0])}, got {len(column)}")
        retrievals = []
        for place, values in enumerate(zip(*columns, strict=True)):
            try:
                retrievals.append(_retrieval(*values))
            except (TypeError, ValueError) as error:
                raise _at(place, error) from error
        prepared, _ = self._prepare(retrievals, keep_faults=False)
        return _in_order(list(self._decide(prepared)), self.layer)

    @overload
    def records(
        self, retrievals: Sequence[Retrieval], *, errors: Literal["raise"] = "raise", audits: bool = True
    ) -> list[DecisionRecord]: ...

    @overload
    def records(
        self, retrievals: Sequence[Retrieval], *, errors: Literal["return"], audits: bool = True
    ) -> list[DecisionRecord | Exception]: ...

    def records(
        self, retrievals: Sequence[Retrieval], *, errors: Literal["raise", "return"] = "raise", audits: bool = True
    ) -> list[DecisionRecord] | list[DecisionRecord | Exception]:
        """Decisions with their audit trail, in order.

        Args:
            retrievals: What to decide on.
            errors: ``return`` puts the error of a bad retrieval in its place instead of raising it. What is wrong with
                the gate, such as a model that is not there, is raised all the same.
            audits: Whether to account for each decision, which takes most of the time where embeddings are ready.

        Raises:
            TypeError: A retrieval is of the wrong kind.
            ValueError: A retrieval holds an invalid value; the message says which.
            OSError: The encoder's model is not there.
            CalibrationMismatchError: The layer's calibration was fitted on another encoder.

        Example:
            >>> gate = MemoryGate.from_pretrained()
            >>> gate.records([Retrieval("Is it?", risk=2.0), Retrieval("Is it?", risk=0.2)], errors="return")[0]
            ValueError('risk must be in [0, 1], got 2.0')
        """
        if errors not in ("raise", "return"):
            raise ValueError(unknown_name("value of errors", errors, ("raise", "return")))
        prepared, faults = self._prepare(_sequence("retrievals", retrievals), keep_faults=errors == "return")
        found: dict[int, Any] = dict(faults)
        provenance = self.provenance
        for bucket in self._decide(prepared):
            places = (one.place for one in bucket.prepared)
            found |= zip(places, self._records(bucket, provenance, audits), strict=True)
        return [found[place] for place in range(len(retrievals))]

    # ------------------------------------------------------------------------------------------- check and embed

    def _prepare(
        self, retrievals: Sequence[Retrieval], *, keep_faults: bool
    ) -> tuple[list[_Prepared], dict[int, Exception]]:
        """The retrievals that are fit to decide on, embedded, and what is wrong with the others."""
        for place, retrieval in enumerate(retrievals):
            if not isinstance(retrieval, Retrieval):
                got = type(retrieval).__name__
                raise TypeError(
                    f"retrievals[{place}] must be a Retrieval, got {got}; Retrieval.parse makes one of a mapping"
                )
        # Loaded first: a model that is not there is the gate's fault, not a retrieval's.
        encoder_dim = self.encoder.dim if any(_has_text_to_encode(one) for one in retrievals) else 0
        risks: dict[int, tuple[float, str]] = {}
        faults: dict[int, Exception] = {}
        for place, retrieval in enumerate(retrievals):
            try:
                risks[place] = self._check(retrieval, encoder_dim)
            except (TypeError, ValueError) as error:
                if not keep_faults:
                    raise (_at(place, error) if len(retrievals) > 1 else error) from error
                faults[place] = error
        embedded = self._embed([retrievals[place] for place in risks if retrievals[place].signals is None])
        prepared = []
        for place, (risk, rule) in risks.items():
            ready = retrievals[place].signals is not None
            prepared.append(_Prepared(place, retrievals[place], risk, rule, None if ready else next(embedded)))
        return prepared, faults

    def _check(self, retrieval: Retrieval, encoder_dim: int) -> tuple[float, str]:
        """A and its rule, for a retrieval whose values are fit to decide on.

        Raises:
            ValueError: A value is out of range or not finite, dimensions differ, or the category is unknown.
        """
        if retrieval.signals is not None:
            if self.validate_args:
                retrieval.signals.check()
            return retrieval.signals.risk, "explicit"
        self._check_embeddings(retrieval, encoder_dim)
        if retrieval.risk is not None and not self.validate_args:
            return retrieval.risk, "explicit"
        assessed = self.risk_policy.assess(retrieval.query, category=retrieval.category, risk=retrieval.risk)
        return assessed.value, assessed.rule

    def _check_embeddings(self, retrieval: Retrieval, encoder_dim: int) -> None:
        named = [("query_embedding", retrieval.query_embedding)]
        named += [(f"memories[{i}].embedding", memory.embedding) for i, memory in enumerate(retrieval.memories)]
        given = [(name, embedding) for name, embedding in named if embedding is not None]
        if not given:
            return
        mixed = len(given) < len(named)
        first, d = ("the encoder's", encoder_dim) if mixed else (given[0][0], given[0][1].shape[0])
        for name, embedding in given:
            if embedding.shape[0] != d:
                raise ValueError(f"{name} must have {d} numbers, as many as {first}, got {embedding.shape[0]}")
        finite = torch.stack([embedding for _, embedding in given]).norm(dim=-1).isfinite()
        if self.validate_args and not finite.all():
            name, embedding = given[int(finite.long().argmin())]
            kind = "a length beyond float32" if embedding.isfinite().all() else "NaN or infinity"
            raise ValueError(f"{name} must be finite, got {kind}")

    def _embed(self, retrievals: Sequence[Retrieval]) -> Iterator[_Embedded]:
        """The embeddings of each retrieval, in order."""
        queries = [r.query or "" for r in retrievals if r.query_embedding is None]
        texts = [m.text or "" for r in retrievals for m in r.memories if m.embedding is None]
        encoded_queries = _pairs(queries, self.encoder.encode_queries(queries)) if queries else iter(())
        encoded_texts = _pairs(texts, self.encoder.encode_documents(texts)) if texts else iter(())
        for r in retrievals:
            query, cut = next(encoded_queries) if r.query_embedding is None else (r.query_embedding, False)
            store = [next(encoded_texts) if m.embedding is None else (m.embedding, False) for m in r.memories]
            memories = torch.stack([row for row, _ in store]) if store else query.new_empty(0, len(query))
            yield _Embedded(query, memories, cut, tuple(cut for _, cut in store))

    # ---------------------------------------------------------------------------------------------------- decide

    def _decide(self, prepared: Sequence[_Prepared]) -> Iterator[_Bucket]:
        for bucket in _buckets(prepared):
            with torch.inference_mode():
                decided = self._decide_signals(bucket) if bucket[0].embedded is None else self._decide_stores(bucket)
            yield decided

    def _decide_signals(self, prepared: Sequence[_Prepared]) -> _Bucket:
        signals = torch.tensor([one.retrieval.signals for one in prepared], dtype=torch.float64, device=self.device)
        return _Bucket(prepared, self.layer(*signals.unbind(-1)))

    def _decide_stores(self, prepared: Sequence[_Prepared]) -> _Bucket:
        query, memories, mask = (t.to(self.device) for t in _padded([one.embedded for one in prepared if one.embedded]))
        risk = torch.tensor([one.risk for one in prepared], dtype=torch.float32, device=self.device)
        stance, languages_supported = self._read([one.retrieval for one in prepared], memories.shape[-2])
        signals, decision = self.embedding_gate(query, memories, risk, mask=mask, stance=stance)
        return _Bucket(prepared, decision, signals, stance, languages_supported)

    def _read(self, retrievals: Sequence[Retrieval], width: int) -> tuple[TextFeatures | None, list[bool]]:
        """Stance features ``(B, K)`` of stores padded to K, and whether the language of all texts of each is supported.

        A memory without text is read like padding: it conflicts with nothing. Without any text there are no features.
        """
        stores = [[memory.text for memory in one.memories] for one in retrievals]
        texts = list(dict.fromkeys(text for store in stores for text in store if text is not None))
        queries = [one.query for one in retrievals if one.query is not None]
        every = list(dict.fromkeys([*texts, *queries]))
        if not every:
            return None, [True] * len(retrievals)
        features = self._features.of(every)
        supported: dict[str | None, bool] = dict(zip(every, features.supported.tolist(), strict=True))
        languages_supported = [
            all(supported.get(text, True) for text in (one.query, *store))
            for one, store in zip(retrievals, stores, strict=True)
        ]
        if not texts:
            return None, languages_supported
        table = features.cat([features[: len(texts)], self._features.padding])  # the last row is padding
        place: dict[str | None, int] = {text: row for row, text in enumerate(texts)}
        index = [[place.get(text, -1) for text in store] + [-1] * (width - len(store)) for store in stores]
        return table[torch.tensor(index)].to(self.device), languages_supported

    # ---------------------------------------------------------------------------------------------------- record

    def _records(self, bucket: _Bucket, provenance: Provenance, audits: bool) -> Iterator[DecisionRecord]:
        """The record of each retrieval of a bucket, in its order."""
        d = bucket.decision
        count = len(bucket.prepared)
        accounts = rows(audit(self.layer, d.relevance, d.reliability, d.risk)) if audits else iter([None] * count)
        signals = rows(bucket.signals) if bucket.signals else iter([None] * count)
        supported = bucket.languages_supported or [True] * count
        cut = [False] * count if bucket.stance is None else bucket.stance.cut.any(dim=-1).tolist()
        for row, (one, decision) in enumerate(zip(bucket.prepared, rows(d), strict=True)):
            yield record_of(
                one.retrieval,
                place=one.place,
                decision=decision,
                signals=next(signals),
                account=next(accounts),
                conflicts=self._conflicts(bucket, row),
                risk=one.risk,
                risk_rule=one.risk_rule,
                encoder=self.encoder.identity if _has_text_to_encode(one.retrieval) else None,
                provenance=provenance,
                truncated=one.embedded.truncated if one.embedded else (),
                query_truncated=bool(one.embedded and one.embedded.query_truncated),
                languages_supported=supported[row],
                stance_truncated=cut[row],
            )

    def _conflicts(self, bucket: _Bucket, row: int) -> Conflicts:
        if bucket.signals is None or bucket.stance is None or not bucket.signals.conflict_rate[row] > 0:
            return Conflicts()
        texts = [memory.text for memory in bucket.prepared[row].retrieval.memories]
        return conflicts_of(self.detector, bucket.stance[row], bucket.signals.relevant[row], texts)

    def _check_calibration(self, encoder: str | None) -> None:
        """Refuse a calibration of another detector, or of another encoder where that is known."""
        if calibration := self.layer.calibration:
            calibration.check_encoder(encoder or calibration.encoder or "", self.detector.identity)


# -------------------------------------------------------------------------------------------- arguments of the gate


def _expect(name: str, value: T, *kinds: type) -> T:
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be {expected}, got {type(value).__name__}")
    return value


def _on(device: torch.device, module: M) -> M:
    """A module that is on a device: itself, or a copy."""
    everywhere = all(tensor.device == device for tensor in (*module.parameters(), *module.buffers()))
    return module if everywhere else copy.deepcopy(module).to(device)


def _detector(detector: ConflictDetector | str) -> ConflictDetector:
    return named_detector(detector) if isinstance(detector, str) else detector


def _layer(layer: MemoryDecisionLayer | str | Path) -> MemoryDecisionLayer:
    if isinstance(layer, str | Path):
        return MemoryDecisionLayer.from_name(layer)
    return _expect("layer", layer, MemoryDecisionLayer, str, Path)


def _calibrated(
    layer: MemoryDecisionLayer,
    calibration: Calibration | str | Path | None,
    encoder: SentenceEncoder | str | Path,
    detector: ConflictDetector,
) -> MemoryDecisionLayer:
    """The layer with the calibration that ``from_pretrained`` was asked for."""
    if calibration == "auto":
        reference = _with_thresholds(Calibration.reference(), layer)
        return layer.calibrated(reference) if _fits(reference, layer, encoder, detector) else layer
    if calibration is None:
        return layer.uncalibrated() if layer.calibration else layer
    if calibration == "reference":
        calibration = Calibration.reference()
    elif isinstance(calibration, str | Path):
        if not Path(calibration).exists():
            raise FileNotFoundError(unknown_name("calibration or file", str(calibration), ("auto", "reference")))
        calibration = Calibration.load(calibration)
    return layer.calibrated(_expect("calibration", calibration, Calibration, str, Path))


def _with_thresholds(reference: Calibration, layer: MemoryDecisionLayer) -> Calibration:
    """The reference calibration, with the thresholds that somebody set in the layer's configuration, if any.

    They are a policy and need no fit; the range stays the fitted one. What was measured with the others goes.
    """
    thresholds = tuple(layer.policy.thresholds.tolist())
    if thresholds == MDLConfig.thresholds:
        return reference
    return dataclasses.replace(
        reference,
        name="manual-thresholds",
        thresholds=thresholds,
        threshold_method=f"set by hand; the range is that of {reference.label}",
        action_mix={},
    )


def _fits(
    calibration: Calibration,
    layer: MemoryDecisionLayer,
    encoder: SentenceEncoder | str | Path,
    detector: ConflictDetector,
) -> bool:
    """Whether a calibration may be used unasked: the layer has no range of its own, and all else is as in the fit."""
    if layer.calibration is not None or layer.config.norm_range is not None:
        return False
    default = str(encoder) in (DEFAULT_ENCODER, DEFAULT_ENCODER.rpartition("/")[2])
    identity = encoder.identity if isinstance(encoder, SentenceEncoder) else calibration.encoder if default else None
    mine = (config_digest(layer.config), layer.basis, identity, detector.identity)
    return mine == (calibration.config, calibration.basis, calibration.encoder, calibration.detector)


# ------------------------------------------------------------------------------------------- arguments of a decision


def _retrieval(query: object, memories: object, risk: object, category: object) -> Retrieval:
    if isinstance(risk, Tensor) and risk.ndim == 0:
        risk = risk.item()
    return Retrieval.parse({"query": query, "memories": memories, "risk": risk, "category": category})


def _sequence(name: str, values: Any) -> Sequence[Any]:
    """A list, a tuple, or what becomes one: an array, a tensor, a column of a table."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a list, one entry a retrieval, got {type(values).__name__}")
    return values


def _spread(name: str, values: Any, length: int) -> Sequence[Any]:
    """One value for each retrieval; a single one is repeated."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    return [values] * length if values is None or isinstance(values, str | float | int) else _sequence(name, values)


def _at(place: int, error: Exception) -> Exception:
    """The same error, saying in which retrieval."""
    return (TypeError if isinstance(error, TypeError) else ValueError)(f"retrieval {place}: {error}")


def _has_text_to_encode(retrieval: Retrieval) -> bool:
    given = (retrieval.query_embedding, *(memory.embedding for memory in retrieval.memories))
    return retrieval.signals is None and any(embedding is None for embedding in given)


# ------------------------------------------------------------------------------------------------- tensors of stores


def _pairs(texts: Sequence[str], encoded: Encoded) -> Iterator[tuple[Tensor, bool]]:
    """Embedding and truncation of each text; zero for a blank one.

    All blank texts have the one embedding of an encoder's special tokens: they would agree with each other.
    """
    for text, embedding, truncated in zip(texts, encoded.embeddings, encoded.truncated.tolist(), strict=True):
        yield (torch.zeros_like(embedding) if is_blank(text) else embedding), truncated


def _buckets(prepared: Sequence[_Prepared]) -> Iterator[list[_Prepared]]:
    """Ready signals, and stores of one dimension and like size, as many at a time as memory is meant for.

    Sorting by size keeps one large store from padding all others.
    """

    def shape(one: _Prepared) -> tuple[int, int]:
        """Dimension and number of memories; (0, 0) for ready signals."""
        return (0, 0) if one.embedded is None else (one.embedded.memories.shape[1], one.embedded.memories.shape[0])

    bucket: list[_Prepared] = []
    for one in sorted(prepared, key=shape):
        dimension, count = shape(one)
        most = min(MAX_STORES, MAX_PAIRS // (max(count, 1) * min(max(count, 1), PAIR_BLOCK)))
        if bucket and (shape(bucket[0])[0] != dimension or len(bucket) >= most):
            yield bucket
            bucket = []
        bucket.append(one)
    if bucket:
        yield bucket


def _padded(stores: Sequence[_Embedded]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries ``(B, d)``, memories ``(B, K, d)`` and mask ``(B, K)``, with K >= 1."""
    query = torch.stack([store.query for store in stores])
    sizes = torch.tensor([len(store.memories) for store in stores])
    width = max(1, int(sizes.max()))
    memories = query.new_zeros(len(stores), width, query.shape[-1])
    for row, store in enumerate(stores):
        memories[row, : len(store.memories)] = store.memories
    return query, memories, torch.arange(width) < sizes.unsqueeze(-1)


def _in_order(buckets: Sequence[_Bucket], layer: MemoryDecisionLayer) -> Decision:
    """The decisions of all buckets as one batch, in the order of the input."""
    if not buckets:
        nothing = torch.empty(0, device=layer.policy.thresholds.device)
        decision: Decision = layer(nothing, nothing, nothing)
        return decision
    order = torch.tensor([one.place for bucket in buckets for one in bucket.prepared]).argsort()
    joined = {
        field.name: torch.cat([getattr(bucket.decision, field.name) for bucket in buckets])
        for field in dataclasses.fields(Decision)
    }
    return Decision(**{name: column[order.to(column.device)] for name, column in joined.items()})
