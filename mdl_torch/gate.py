"""Text in, decisions out: encoder, conflict detector, risk policy and the embedding gate, put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from mdl_torch.audit import audit
from mdl_torch.cache import ContentCache, content_key
from mdl_torch.calibration import Calibration
from mdl_torch.embedding_gate import EmbeddingGate
from mdl_torch.encoder import DEFAULT_ENCODER, Encoded, LongText, SentenceEncoder
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.outputs import Decision, Signals
from mdl_torch.records import Conflicts, DecisionRecord, Provenance, conflicts_of, record_of
from mdl_torch.retrieval import Memory, Retrieval
from mdl_torch.risk import RiskPolicy
from mdl_torch.signals import SignalExtractor
from mdl_torch.stance import ConflictDetector, StanceFeatures
from mdl_torch.stance import detector as named_detector

MAX_SLOTS = 16_384
"""Memories, padding included, that are decided on in one tensor."""

CACHED_TEXTS = 50_000
"""Texts whose stance features are remembered."""


@dataclass(frozen=True)
class _Prepared:
    """A retrieval that was checked and encoded. Ready signals have no embeddings."""

    retrieval: Retrieval
    risk: float
    risk_rule: str
    query: Tensor | None = None
    """``(d,)``"""
    memories: Tensor | None = None
    """``(K, d)``, K >= 0"""
    query_truncated: bool = False
    truncated: tuple[bool, ...] = ()


@dataclass(frozen=True)
class _Bucket:
    """Retrievals decided together: their places in the input, and tensors ``(B,)``."""

    places: list[int]
    prepared: list[_Prepared]
    decision: Decision
    signals: Signals | None = None
    stance: StanceFeatures | None = None
    """``(B, K)``"""


class MemoryGate:
    """Decides over text: embeds queries and memories, finds conflicts, assesses risk, and asks the controller.

    Safe to call from many threads. Embeddings and stance features are cached by content, within bounds.

    Args:
        encoder: An encoder, or the name or folder of a sentence-transformers model, which is loaded when first needed.
        layer: The controller, with its calibration.
        detector: Conflict detector; its name or an object.
        risk_policy: Assesses the risk of queries that come without one.
        require_relevant: Whether a store needs a relevant memory to be injected.
        validate_args: Whether a NaN, an infinity or a value out of range raises. If not, it makes the row Opt-Out.
        device: Where signals and decisions are computed, and where an encoder given by name is loaded.
        long_text: ``pool`` or ``truncate``, for text longer than the window of an encoder given by name.

    Raises:
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
        device: str | torch.device = "cpu",
        long_text: LongText = "pool",
    ) -> None:
        self.detector = named_detector(detector) if isinstance(detector, str) else detector
        self.layer = MemoryDecisionLayer() if layer is None else layer
        self.risk_policy = RiskPolicy.default() if risk_policy is None else risk_policy
        self.validate_args = validate_args
        self.device = torch.device(device)
        self.embedding_gate = EmbeddingGate(
            self.layer, SignalExtractor(self.detector), require_relevant=require_relevant
        ).to(self.device)
        self._long_text: LongText = long_text
        self._encoder = encoder
        self._stance: ContentCache[StanceFeatures] = ContentCache(CACHED_TEXTS)
        self._provenance = Provenance.of(self.layer)
        if isinstance(encoder, SentenceEncoder):
            self._check_calibration(encoder)

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
        device: str | torch.device = "cpu",
        long_text: LongText = "pool",
    ) -> MemoryGate:
        """A gate from names and files.

        Args:
            encoder: As for the class; MiniLM by default, which works offline.
            layer: A preset's name, a folder written by ``save_pretrained``, a repository of the hub, or a layer.
            calibration: ``auto`` is the layer's own, else the reference calibration where it fits (the ``paper``
                preset, MiniLM, the lexical detector), else none. ``reference``, a file or a calibration insist. None is
                the exact range with the default thresholds.
            risk_policy: A policy, or the YAML file of one.
            detector: As for the class.
            require_relevant: As for the class.
            validate_args: As for the class.
            device: As for the class.
            long_text: As for the class.

        Raises:
            ValueError: A name is unknown or a file is damaged.
            OSError: A file is missing.
            CalibrationMismatchError: The calibration is for another layer, encoder or detector.
        """
        controller = _layer(layer)
        if calibration == "auto":
            calibration = controller.calibration
            name = encoder.name if isinstance(encoder, SentenceEncoder) else str(encoder)
            kind = detector if isinstance(detector, str) else detector.name
            if calibration is None and (controller.preset, name, kind) == ("paper", DEFAULT_ENCODER, "lexical"):
                calibration = "reference"
        if isinstance(calibration, str | Path):
            calibration = Calibration.reference() if calibration == "reference" else Calibration.load(calibration)
        if calibration is None:
            controller = MemoryDecisionLayer(controller.config.uncalibrated()) if controller.calibration else controller
        elif calibration is not controller.calibration:
            controller = controller.calibrated(calibration)
        return cls(
            encoder,
            layer=controller,
            detector=detector,
            risk_policy=RiskPolicy.from_yaml(risk_policy) if isinstance(risk_policy, str | Path) else risk_policy,
            require_relevant=require_relevant,
            validate_args=validate_args,
            device=device,
            long_text=long_text,
        )

    @property
    def encoder(self) -> SentenceEncoder:
        """The sentence encoder, loaded when first asked for."""
        if not isinstance(self._encoder, SentenceEncoder):
            loaded = SentenceEncoder.from_pretrained(self._encoder, device=self.device, long_text=self._long_text)
            self._check_calibration(loaded)
            self._encoder = loaded
        return self._encoder

    def decide(
        self,
        query: str,
        memories: Sequence[str | Memory | Mapping[str, Any]],
        *,
        risk: float | None = None,
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
            tensor([0, 2], dtype=torch.int8)
        """
        if isinstance(queries, str) or isinstance(memories, str):
            raise TypeError("queries and memories must be sequences, one entry a retrieval, got a single text")
        if len(queries) != len(memories):
            raise ValueError(f"memories must be one store a query ({len(queries)}), got {len(memories)}")
        risks, categories = _spread("risk", risk, len(queries)), _spread("category", category, len(queries))
        retrievals = []
        for place, values in enumerate(zip(queries, memories, risks, categories, strict=True)):
            try:
                retrievals.append(_retrieval(*values))
            except (TypeError, ValueError) as error:
                raise type(error)(f"retrieval {place}: {error}") from error
        return _in_order(list(self._run(self._prepare(retrievals, keep_errors=False))), self.layer)

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
            errors: ``return`` puts the error of a bad retrieval in its place instead of raising it.
            audits: Whether to account for each decision, which takes most of the time where embeddings are ready.

        Raises:
            TypeError: A retrieval holds something of the wrong kind.
            ValueError: A retrieval holds an invalid value; the message says which.
        """
        prepared = self._prepare(retrievals, keep_errors=errors == "return")
        found: dict[int, Any] = {place: one for place, one in enumerate(prepared) if isinstance(one, Exception)}
        for bucket in self._run(prepared):
            d = bucket.decision
            accounts = audit(self.layer, d.relevance, d.reliability, d.risk) if audits else None
            for row, (place, one) in enumerate(zip(bucket.places, bucket.prepared, strict=True)):
                found[place] = record_of(
                    one.retrieval,
                    row=row,
                    place=place,
                    decision=d,
                    signals=bucket.signals,
                    account=accounts,
                    conflicts=self._conflicts(bucket, row),
                    risk_rule=one.risk_rule,
                    encoder=self._encoder_of(one.retrieval),
                    provenance=self._provenance,
                    truncated=one.truncated,
                    query_truncated=one.query_truncated,
                    languages_supported=self._languages_supported(one.retrieval),
                )
        return [found[place] for place in range(len(retrievals))]

    def _prepare(self, retrievals: Sequence[Retrieval], *, keep_errors: bool) -> list[_Prepared | Exception]:
        """Check every retrieval, then encode all that is text in two calls of the encoder."""
        risks: list[tuple[float, str] | Exception] = []
        for place, retrieval in enumerate(retrievals):
            try:
                risks.append(self._check(retrieval))
            except (TypeError, ValueError) as error:
                if not keep_errors:
                    where = f"retrieval {place}: " if len(retrievals) > 1 else ""
                    raise type(error)(f"{where}{error}") from error
                risks.append(error)
        good = [r for r, a in zip(retrievals, risks, strict=True) if not isinstance(a, Exception) and not r.signals]
        encoded = self._encode(good)
        return [
            a if isinstance(a, Exception) else _Prepared(r, *a, *(() if r.signals else next(encoded)))
            for r, a in zip(retrievals, risks, strict=True)
        ]

    def _check(self, retrieval: Retrieval) -> tuple[float, str]:
        """A and its rule, for a retrieval whose values are fit to decide on.

        Raises:
            ValueError: A value is out of range or not finite, dimensions differ, or the category is unknown.
        """
        if retrieval.signals is not None:
            if self.validate_args:
                retrieval.signals.check()
            return retrieval.signals.risk, "explicit"
        self._check_embeddings(retrieval)
        if retrieval.risk is not None and not self.validate_args:
            return float(retrieval.risk), "explicit"
        assessed = self.risk_policy.assess(retrieval.query, category=retrieval.category, risk=retrieval.risk)
        return assessed.value, assessed.rule

    def _check_embeddings(self, retrieval: Retrieval) -> None:
        named = [("query_embedding", retrieval.query_embedding)]
        named += [(f"memories[{i}].embedding", memory.embedding) for i, memory in enumerate(retrieval.memories)]
        given = [(name, embedding) for name, embedding in named if embedding is not None]
        if not given:
            return
        mixed = len(given) < len(named)
        first, d = ("the encoder's", self.encoder.dim) if mixed else (given[0][0], len(given[0][1]))
        for name, embedding in given:
            if len(embedding) != d:
                raise ValueError(f"{name} must have {d} numbers, as many as {first}, got {len(embedding)}")
            if self.validate_args and not embedding.isfinite().all():
                raise ValueError(f"{name} must be finite, got NaN or infinity")

    def _encode(self, retrievals: Sequence[Retrieval]) -> Iterator[tuple[Tensor, Tensor, bool, tuple[bool, ...]]]:
        """Query ``(d,)``, memories ``(K, d)``, and whether each was truncated."""
        queries = [r.query or "" for r in retrievals if r.query_embedding is None]
        texts = [m.text or "" for r in retrievals for m in r.memories if m.embedding is None]
        query_rows = _rows(self.encoder.encode_queries(queries)) if queries else iter(())
        text_rows = _rows(self.encoder.encode_documents(texts)) if texts else iter(())
        for retrieval in retrievals:
            given = retrieval.query_embedding
            query, query_cut = next(query_rows) if given is None else (given.float(), False)
            rows = [
                next(text_rows) if memory.embedding is None else (memory.embedding.float(), False)
                for memory in retrieval.memories
            ]
            memories = torch.stack([row for row, _ in rows]) if rows else query.new_empty(0, len(query))
            yield query, memories, query_cut, tuple(cut for _, cut in rows)

    def _run(self, prepared: Sequence[_Prepared | Exception]) -> Iterator[_Bucket]:
        """Decide, in buckets of stores of like size, so that one large store does not pad all others."""
        good = [(place, one) for place, one in enumerate(prepared) if not isinstance(one, Exception)]
        ready = [(place, one) for place, one in good if one.retrieval.signals]
        if ready:
            places, ones = [place for place, _ in ready], [one for _, one in ready]
            columns = torch.tensor([one.retrieval.signals for one in ones], dtype=torch.float64, device=self.device)
            with torch.inference_mode():
                yield _Bucket(places, ones, self.layer(*columns.unbind(-1)))
        for bucket in _buckets([(place, one) for place, one in good if not one.retrieval.signals]):
            places, ones = [place for place, _ in bucket], [one for _, one in bucket]
            with torch.inference_mode():
                query, memories, mask = (t.to(self.device) for t in _padded(ones))
                risk = torch.tensor([one.risk for one in ones], dtype=torch.float32, device=self.device)
                stance = self._stance_of(ones, memories.shape[-2])
                signals, decision = self.embedding_gate(query, memories, risk, mask=mask, stance=stance)
            yield _Bucket(places, ones, decision, signals, stance)

    def _stance_of(self, prepared: Sequence[_Prepared], width: int) -> StanceFeatures:
        """Stance features ``(B, K)`` of padded stores; what has no text conflicts with nothing."""
        stores = [[memory.text for memory in one.retrieval.memories] for one in prepared]
        texts = list(dict.fromkeys(text for store in stores for text in store if text is not None))
        place = {text: row for row, text in enumerate(texts)}
        index = torch.tensor(
            [[place.get(t, -1) if t is not None else -1 for t in store] + [-1] * (width - len(store)) for store in stores]
        )
        table = StanceFeatures.cat([self._features(texts), StanceFeatures.empty((1,))])  # the last row is padding
        return table[index].to(self.device)

    def _features(self, texts: list[str]) -> StanceFeatures:
        """Stance features ``(N,)`` of different texts, through the cache."""
        keys = [content_key(text) for text in texts]
        known = self._stance.get(keys)
        missing = [text for key, text in zip(keys, texts, strict=True) if key not in known]
        if missing:
            fresh = self.detector.features(missing)
            new = {content_key(text): fresh[row : row + 1] for row, text in enumerate(missing)}
            self._stance.put(new)
            if not known:
                return fresh
            known |= new
        return StanceFeatures.cat([known[key] for key in keys]) if keys else StanceFeatures.empty((0,))

    def _languages_supported(self, retrieval: Retrieval) -> bool:
        texts = [text for text in (retrieval.query, *(m.text for m in retrieval.memories)) if text is not None]
        return bool(self._features(list(dict.fromkeys(texts))).supported.all())

    def _conflicts(self, bucket: _Bucket, row: int) -> Conflicts:
        if bucket.signals is None or bucket.stance is None or not bucket.signals.conflict_rate[row] > 0:
            return Conflicts()
        texts = [memory.text for memory in bucket.prepared[row].retrieval.memories]
        return conflicts_of(self.detector, bucket.stance[row], bucket.signals.relevant[row], texts)

    def _encoder_of(self, retrieval: Retrieval) -> str | None:
        """Identity of the encoder, if any text of the retrieval was encoded."""
        encoded = retrieval.query_embedding is None or any(m.embedding is None for m in retrieval.memories)
        return self.encoder.identity if encoded and not retrieval.signals else None

    def _check_calibration(self, encoder: SentenceEncoder) -> None:
        if self.layer.calibration:
            self.layer.calibration.check_encoder(encoder.identity, self.detector.name)


def _layer(layer: MemoryDecisionLayer | str | Path) -> MemoryDecisionLayer:
    if isinstance(layer, MemoryDecisionLayer):
        return layer
    if isinstance(layer, str) and "/" not in layer and not Path(layer).is_dir():
        return MemoryDecisionLayer.from_preset(layer)
    return MemoryDecisionLayer.from_pretrained(layer)


def _retrieval(query: object, memories: object, risk: object, category: object) -> Retrieval:
    if isinstance(risk, Tensor):
        risk = risk.item()
    return Retrieval.parse({"query": query, "memories": memories, "risk": risk, "category": category})


def _spread(name: str, values: Any, length: int) -> Sequence[Any]:
    """One value for each retrieval; a single one is repeated."""
    if isinstance(values, Tensor):
        values = values.tolist()
    if values is None or isinstance(values, str | float | int):
        return [values] * length
    if len(values) != length:
        raise ValueError(f"{name} must be one for all or one a query ({length}), got {len(values)}")
    return list(values)


def _rows(encoded: Encoded) -> Iterator[tuple[Tensor, bool]]:
    return zip(encoded.embeddings, encoded.truncated.tolist(), strict=True)


def _buckets(prepared: Sequence[tuple[int, _Prepared]]) -> Iterator[list[tuple[int, _Prepared]]]:
    """Stores of one dimension, sorted by size, as many at a time as fit in ``MAX_SLOTS`` padded memories."""

    def size(one: _Prepared) -> tuple[int, int]:
        assert one.memories is not None
        count, dimension = one.memories.shape
        return dimension, max(count, 1)

    bucket: list[tuple[int, _Prepared]] = []
    for place, one in sorted(prepared, key=lambda item: size(item[1])):
        dimension, count = size(one)
        if bucket and (size(bucket[0][1])[0] != dimension or (len(bucket) + 1) * count > MAX_SLOTS):
            yield bucket
            bucket = []
        bucket.append((place, one))
    if bucket:
        yield bucket


def _padded(prepared: Sequence[_Prepared]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries ``(B, d)``, memories ``(B, K, d)`` and mask ``(B, K)``, with K >= 1."""
    stores = [one.memories for one in prepared if one.memories is not None]
    query = torch.stack([one.query for one in prepared if one.query is not None])
    width = max(1, *(len(store) for store in stores)) if len(stores) > 1 else max(1, len(stores[0]))
    memories = query.new_zeros(len(stores), width, query.shape[-1])
    mask = torch.zeros(len(stores), width, dtype=torch.bool)
    for row, store in enumerate(stores):
        memories[row, : len(store)] = store
        mask[row, : len(store)] = True
    return query, memories, mask


def _in_order(buckets: Sequence[_Bucket], layer: MemoryDecisionLayer) -> Decision:
    """The decisions of all buckets as one batch, in the order of the input."""
    if not buckets:
        nothing = torch.empty(0, device=layer.head.gate.device)
        return layer(nothing, nothing, nothing)  # type: ignore[no-any-return]
    order = torch.tensor([place for bucket in buckets for place in bucket.places]).argsort()
    joined = {f.name: torch.cat([getattr(b.decision, f.name) for b in buckets]) for f in fields(Decision)}
    return Decision(**{name: column[order.to(column.device)] for name, column in joined.items()})
