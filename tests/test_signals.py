"""Stage 1 against the paper's equations, pair by pair, and its behaviour on padded, odd, broken and large stores."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import oracle
import pytest
import torch
from cases import VALUE_TOLERANCE, assert_identical, fields
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mdl_torch import Status
from mdl_torch import signals as signals_module
from mdl_torch.signals import RELEVANT_ABOVE, SignalExtractor, conflict_rate, mean_agreement
from mdl_torch.stance import ConflictDetector, Evidence, LexicalConflictDetector, StanceFeatures

DTYPES = (torch.float64, torch.float32)
BELOW, EMPTY = Status.NO_RELEVANT_MEMORY, Status.NO_MEMORY | Status.NO_RELEVANT_MEMORY


class TableDetector(ConflictDetector):
    """Conflicts as a table says: memory i's features hold its number and its row of the table."""

    name, rules = "table", ("listed",)

    def features(self, texts):
        raise NotImplementedError

    def evidence(self, a, b) -> Evidence | None:
        raise NotImplementedError

    @staticmethod
    def of(table) -> StanceFeatures:
        table = torch.as_tensor(np.asarray(table), dtype=torch.int32)
        number = torch.arange(table.shape[-1], dtype=torch.int32).expand(table.shape[:-1])
        return dataclasses.replace(StanceFeatures.empty(table.shape[:-1]), words=table, count=number)

    def conflicts(self, a, b):
        columns = b.count.long().unsqueeze(-2).expand(*a.count.shape, b.count.shape[-1])
        return a.words.gather(-1, columns).to(torch.int8)


KINDS = ("any", "like", "duplicate", "against", "just above", "just below", "zero")


@dataclasses.dataclass(frozen=True)
class Store:
    """One store in float64 NumPy."""

    query: np.ndarray
    memories: np.ndarray
    mask: np.ndarray
    conflicts: np.ndarray


@st.composite
def stores(draw, kinds=KINDS, max_dim=16):
    """Stores of 1 to 12 memories: aligned, opposed, equal or orthogonal to the query, or close to cosine 0.3."""
    d = draw(st.integers(2, max_dim))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=12))
    mask = np.array(draw(st.lists(st.booleans(), min_size=len(chosen), max_size=len(chosen))))
    density = draw(st.sampled_from([0.0, 0.3, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    query = rng.standard_normal(d)
    query /= np.linalg.norm(query)
    rows = []
    for kind in chosen:
        noise = rng.standard_normal(d)
        across = noise - (noise @ query) * query
        across /= np.linalg.norm(across)
        cosine = 0.3 + rng.choice([1e-5, 1e-3]) * (1 if kind == "just above" else -1)
        row = {
            "any": noise,
            "like": query + 0.5 * noise / np.linalg.norm(noise),
            "duplicate": rows[-1] if rows else query,
            "against": -query + 0.1 * noise,
            "zero": np.zeros(d),
        }.get(kind, cosine * query + math.sqrt(1 - cosine**2) * across)
        rows.append(row * 10 ** rng.uniform(-3, 3))
    upper = np.triu(rng.random((len(rows),) * 2) < density, 1)
    return Store(query * 10 ** rng.uniform(-3, 3), np.array(rows), mask, upper | upper.T)


def cast(store: Store, dtype: torch.dtype) -> tuple[Store, dict]:
    """The store rounded to a dtype, in NumPy and as arguments of the extractor."""
    query, memories = torch.tensor(store.query).to(dtype), torch.tensor(store.memories).to(dtype)
    rounded = dataclasses.replace(store, query=query.double().numpy(), memories=memories.double().numpy())
    arguments = {
        "query": query,
        "memories": memories,
        "risk": torch.tensor(0.5, dtype=dtype),
        "mask": torch.tensor(store.mask),
        "stance": TableDetector.of(store.conflicts),
    }
    return rounded, arguments


def expected(store: Store):
    """(M raw, R, s̄_rel, φ, similarities) by the oracle, over the valid memories only."""
    m = store.mask
    return oracle.signals(store.query, store.memories[m], store.conflicts[np.ix_(m, m)], RELEVANT_ABOVE)


def assert_as_the_oracle_says(store: Store, dtype: torch.dtype) -> None:
    store, arguments = cast(store, dtype)
    raw, reliability, agreement, phi, similarity = expected(store)
    assume(all(abs(s - RELEVANT_ABOVE) > 1e-6 for s in similarity))
    got = SignalExtractor(TableDetector())(**arguments)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    want = {
        "relevance_raw": raw,
        "relevance": min(max(raw, 0.0), 1.0),
        "reliability": reliability,
        "agreement": agreement,
        "conflict_rate": phi,
        "risk": 0.5,
    }
    for name, value in want.items():
        tensor = getattr(got, name)
        assert tensor.dtype == wide, name
        assert tensor.item() == pytest.approx(value, rel=0, abs=VALUE_TOLERANCE[wide]), name
    full = np.zeros(len(store.mask))
    full[store.mask] = similarity
    np.testing.assert_allclose(got.similarity.double(), full, rtol=0, atol=VALUE_TOLERANCE[wide])
    assert got.relevant.tolist() == (full > RELEVANT_ABOVE).tolist()


# --- the equations ---------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(store=stores())
def test_agrees_with_the_oracle_in_float64(store):
    assert_as_the_oracle_says(store, torch.float64)


@settings(max_examples=200)
@given(store=stores())
def test_agrees_with_the_oracle_in_float32(store):
    assert_as_the_oracle_says(store, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@given(store=stores())
def test_half_precision_accumulates_in_float32(dtype, store):
    """On the rounded embeddings the tolerance is that of float32."""
    assume(torch.tensor(store.memories).to(dtype).isfinite().all())
    assert_as_the_oracle_says(store, dtype)


def test_a_worked_example():
    """Cosines with the query 1, 0.8, 0.6 and 0; of the three relevant pairs (0.8, 0.6, 0.96) one conflicts."""
    query = torch.tensor([2.0, 0.0], dtype=torch.float64)
    memories = torch.tensor([[3.0, 0.0], [0.8, 0.6], [6.0, 8.0], [0.0, 1.0]], dtype=torch.float64)
    table = np.zeros((4, 4))
    table[0, 1] = table[1, 0] = 1  # relevant both
    table[0, 3] = table[3, 0] = 1  # the last is irrelevant: this conflict counts for nothing
    s = SignalExtractor(TableDetector())(query, memories, torch.tensor(0.2), stance=TableDetector.of(table))
    assert s.similarity.tolist() == pytest.approx([1, 0.8, 0.6, 0])
    assert s.relevant.tolist() == [True, True, True, False]
    assert s.relevance.item() == 1
    assert s.agreement.item() == pytest.approx((0.8 + 0.6 + 0.96) / 3)
    assert s.conflict_rate.item() == pytest.approx(1 / 3)
    assert s.reliability.item() == pytest.approx((0.8 + 0.6 + 0.96) / 3 * (1 - 1 / 3) ** 2)
    assert s.status.item() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_relevant_is_strictly_above_the_threshold(dtype):
    """(3, 9, 3, 1) has the length 10 exactly, and so the cosine 0.3 exactly; a hair more is relevant."""
    query = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=dtype)
    at = torch.tensor([3.0, 9.0, 3.0, 1.0], dtype=dtype)
    above = torch.tensor([3.00001, 9.0, 3.0, 1.0], dtype=dtype)
    s = SignalExtractor()(query, torch.stack((at, above)), torch.tensor(0.5))
    assert s.similarity[0].item() == torch.tensor(0.3, dtype=dtype).item()
    assert s.relevant.tolist() == [False, True]


@pytest.mark.parametrize(("others", "count"), [([], 1), ([[0.0, 1.0]], 1), ([[-1.0, 0.0], [0.1, 1.0]], 1)])
def test_one_relevant_memory_is_neutral(others, count):
    """Whatever the irrelevant ones say."""
    memories = torch.tensor([[1.0, 0.1], *others])
    stance = TableDetector.of(1 - np.eye(len(memories)))
    s = SignalExtractor(TableDetector())(torch.tensor([1.0, 0.0]), memories, torch.tensor(0.5), stance=stance)
    assert s.relevant.sum().item() == count
    assert (s.reliability.item(), s.agreement.item(), s.conflict_rate.item()) == (0.5, 0, 0)


def test_all_conflicts_make_reliability_zero():
    memories = torch.eye(3)[:1].repeat(4, 1)
    s = SignalExtractor(TableDetector())(
        memories[0], memories, torch.tensor(0.5), stance=TableDetector.of(1 - np.eye(4))
    )
    assert (s.conflict_rate.item(), s.reliability.item()) == (1, 0)


def test_negative_agreement_makes_reliability_zero():
    """Memories relevant to the query, each 70° off it and further from each other."""
    angles = torch.tensor([-1.2, 1.2])
    memories = torch.stack((angles.cos(), angles.sin()), dim=-1)
    s = SignalExtractor()(torch.tensor([1.0, 0.0]), memories, torch.tensor(0.5))
    assert s.relevant.tolist() == [True, True]
    assert s.agreement.item() == pytest.approx(math.cos(2.4), abs=1e-6)
    assert s.reliability.item() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_perfect_match_is_clipped_to_one(dtype):
    """Rounding makes some cosines of equal vectors greater than 1: raw keeps that, relevance does not."""
    query = torch.randn(2000, 384, dtype=dtype, generator=torch.Generator().manual_seed(0))
    s = SignalExtractor()(query, query.unsqueeze(1), torch.tensor(0.5))
    beyond = s.relevance_raw > 1
    assert beyond.any()
    assert (s.relevance[beyond] == 1).all()
    torch.testing.assert_close(s.relevance, torch.ones_like(s.relevance), rtol=0, atol=VALUE_TOLERANCE[dtype])


def test_a_store_against_the_query():
    """Below zero: M is 0, the raw value stays."""
    s = SignalExtractor()(torch.tensor([1.0, 0.0]), torch.tensor([[-1.0, 0.0], [-3.0, 4.0]]), torch.tensor(0.5))
    assert (s.relevance.item(), s.reliability.item(), s.status.item()) == (0, 0.5, BELOW)
    assert s.relevance_raw.item() == pytest.approx(-0.6)


@pytest.mark.parametrize("count", [2, 3, 30, 300])
def test_the_closed_form_is_the_mean_over_pairs(count):
    generator = torch.Generator().manual_seed(count)
    memories = torch.randn(count, 20, dtype=torch.float64, generator=generator) + 0.5
    relevant = torch.rand(count, generator=generator) > 0.3
    relevant[:2] = True
    unit = torch.nn.functional.normalize(memories[relevant], dim=-1)
    i, j = torch.triu_indices(len(unit), len(unit), offset=1)
    pairs = (unit[i] * unit[j]).sum(-1)
    got = mean_agreement(memories, memories.norm(dim=-1), relevant)
    torch.testing.assert_close(got, pairs.mean(), rtol=0, atol=1e-12)


def test_a_memory_is_never_paired_with_itself():
    """Not even for a detector that would have it conflict with itself."""
    stance = TableDetector.of(np.eye(3))
    assert conflict_rate(TableDetector(), stance, torch.ones(3, dtype=torch.bool)).item() == 0
    orthogonal = torch.eye(3)
    assert mean_agreement(orthogonal, torch.ones(3), torch.ones(3, dtype=torch.bool)).item() == 0


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (0,)])
def test_blocks_of_pairs_count_each_pair_once(monkeypatch, block, lead):
    rng = np.random.default_rng(0)
    table = np.triu(rng.random((*lead, 10, 10)) < 0.4, 1)
    table = table | table.swapaxes(-1, -2)
    relevant = torch.from_numpy(rng.random((*lead, 10)) < 0.7)
    n = relevant.sum(-1)
    both = relevant[..., None] & relevant[..., None, :] & torch.from_numpy(table)
    monkeypatch.setattr(signals_module, "PAIR_BLOCK", block)
    got = conflict_rate(TableDetector(), TableDetector.of(table), relevant)
    torch.testing.assert_close(got, both.sum((-2, -1)).double() / (n * (n - 1)), rtol=0, atol=0)


# --- what changes nothing --------------------------------------------------------------------------------------------

GARBAGE = (math.nan, math.inf, -math.inf, 3e38, 1e-40)


@given(store=stores(), garbage=st.sampled_from(GARBAGE))
def test_masked_memories_may_hold_anything(store, garbage):
    """Bit for bit."""
    assume(not store.mask.all())
    _, arguments = cast(store, torch.float32)
    plain = SignalExtractor(TableDetector())(**arguments)
    memories, stance, masked = arguments["memories"].clone(), arguments["stance"], ~arguments["mask"]
    memories[masked] = garbage
    words = stance.words.clone()
    words[masked] = 1
    dirty = {**arguments, "memories": memories, "stance": dataclasses.replace(stance, words=words)}
    assert_identical(SignalExtractor(TableDetector())(**dirty), plain)


def assert_close(got, want, tolerance=1e-13) -> None:
    for name, tensor in fields(want).items():
        exact = not tensor.is_floating_point()
        torch.testing.assert_close(getattr(got, name), tensor, rtol=0, atol=0 if exact else tolerance, msg=name)


@given(store=stores(kinds=("any", "like", "duplicate", "against")), data=st.data())
def test_the_order_of_memories_changes_nothing(store, data):
    order = data.draw(st.permutations(range(len(store.mask))))
    moved = Store(store.query, store.memories[order], store.mask[order], store.conflicts[np.ix_(order, order)])
    extract = SignalExtractor(TableDetector())
    plain, got = (extract(**cast(s, torch.float64)[1]) for s in (store, moved))
    in_order = {name: getattr(plain, name)[list(order)] for name in ("similarity", "relevant")}
    assert_close(got, dataclasses.replace(plain, **in_order))


@given(store=stores(kinds=("any", "like", "duplicate", "against")), extra=st.integers(1, 9))
def test_padding_changes_nothing(store, extra):
    n = len(store.mask)
    padded = Store(
        store.query,
        np.pad(store.memories, ((0, extra), (0, 0)), constant_values=7.0),
        np.pad(store.mask, (0, extra)),
        np.pad(store.conflicts, (0, extra), constant_values=True),
    )
    extract = SignalExtractor(TableDetector())
    plain, got = (extract(**cast(s, torch.float64)[1]) for s in (store, padded))
    assert (got.similarity[n:] == 0).all()
    assert not got.relevant[n:].any()
    assert_close(dataclasses.replace(got, similarity=got.similarity[:n], relevant=got.relevant[:n]), plain)


@pytest.mark.parametrize(("dtype", "reach", "tolerance"), [(torch.float64, 150, 1e-12), (torch.float32, 18, 2e-6)])
@given(store=stores(kinds=("any", "like", "duplicate", "against")), data=st.data())
def test_lengths_change_nothing(dtype, reach, tolerance, store, data):
    """Of query and memories, each scaled on its own, by up to 10^±150 (float32: 10^±18)."""
    powers = st.floats(-reach, reach)
    _, arguments = cast(store, torch.float64)
    plain = SignalExtractor(TableDetector())(**arguments)
    assume(((plain.similarity - RELEVANT_ABOVE).abs() > 1e-6).all())
    unit = torch.nn.functional.normalize(arguments["memories"], dim=-1)
    scale = torch.tensor([10 ** data.draw(powers) for _ in unit], dtype=torch.float64)
    query = torch.nn.functional.normalize(arguments["query"], dim=-1) * 10 ** data.draw(powers)
    scaled = {**arguments, "memories": (unit * scale[:, None]).to(dtype), "query": query.to(dtype)}
    got = SignalExtractor(TableDetector())(**scaled)
    wide = {name: t.double() if t.is_floating_point() else t for name, t in fields(got).items()}
    assert_close(dataclasses.replace(got, **wide), plain, tolerance)


def batch(*lead: int, count: int = 5, dtype=torch.float64, seed: int = 0) -> dict:
    """Arguments with one leading shape: some memories masked, some in conflict."""
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((*lead, count, count)) < 0.4, 1)
    return {
        "query": torch.rand(*lead, 8, dtype=torch.float64, generator=generator).to(dtype),
        "memories": (torch.rand(*lead, count, 8, dtype=torch.float64, generator=generator) - 0.2).to(dtype),
        "risk": torch.rand(lead, dtype=torch.float64, generator=generator).to(dtype),
        "mask": torch.rand(*lead, count, generator=generator) > 0.2,
        "stance": TableDetector.of(upper | upper.swapaxes(-1, -2)),
    }


@pytest.mark.parametrize("lead", [(0,), (1,), (4,), (2, 3), (2, 0, 3)])
@pytest.mark.parametrize("count", [1, 2, 5, 70])
def test_batch_equals_loop_and_vmap(lead, count):
    extract, arguments = SignalExtractor(TableDetector()), batch(*lead, count=count)
    got = extract(**arguments)
    assert {tuple(t.shape[: len(lead)]) for t in fields(got).values()} == {lead}
    for index in np.ndindex(*lead):
        row = extract(**{name: value[index] for name, value in arguments.items()})
        assert_close(row, dataclasses.replace(got, **{n: t[index] for n, t in fields(got).items()}))
    if lead == (4,):
        names = list(arguments)
        mapped = torch.func.vmap(lambda *values: extract(**dict(zip(names, _stance(values), strict=True))))
        flat = [v for v in arguments.values() if isinstance(v, torch.Tensor)]
        stance = [getattr(arguments["stance"], f.name) for f in dataclasses.fields(StanceFeatures)]
        assert_close(mapped(*flat, *stance), got)


def _stance(values):
    return (*values[:4], StanceFeatures(*values[4:]))


def test_inputs_need_not_be_contiguous():
    extract, arguments = SignalExtractor(TableDetector()), batch(3, 2)
    plain = extract(**arguments)
    strided = {
        **arguments,
        "query": arguments["query"].mT.contiguous().mT,
        "memories": torch.stack((arguments["memories"],) * 2, dim=-1)[..., 0],
        "mask": arguments["mask"].transpose(0, 2).contiguous().transpose(0, 2),
        "risk": torch.stack((arguments["risk"],) * 3)[1],
    }
    assert not strided["memories"].is_contiguous()
    assert_close(extract(**strided), plain)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 3), (2, 3)])
def test_risk_broadcasts(shape):
    arguments = batch(2, 3)
    risk = torch.rand(shape, dtype=torch.float64)
    got = SignalExtractor(TableDetector())(**{**arguments, "risk": risk})
    torch.testing.assert_close(got.risk, risk.expand(2, 3), rtol=0, atol=0)


def test_without_a_mask_all_are_valid_and_without_stance_none_conflict():
    arguments = batch(3)
    extract = SignalExtractor(TableDetector())
    bare = {name: arguments[name] for name in ("query", "memories", "risk")}
    full = {**bare, "mask": torch.ones(3, 5, dtype=torch.bool), "stance": TableDetector.of(np.zeros((3, 5, 5)))}
    assert_identical(extract(**bare), extract(**full))


def test_the_default_detector_reads_texts():
    detector = LexicalConflictDetector()
    texts = ["Backups are enabled.", "Backups are disabled.", "Backups are enabled."]
    memories = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2]])
    s = SignalExtractor()(memories[0], memories, torch.tensor(0.5), stance=detector.features(texts))
    assert s.conflict_rate.item() == pytest.approx(2 / 3)


# --- odd and broken stores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.bfloat16])
def test_an_empty_store(count, dtype):
    s = SignalExtractor()(
        torch.ones(3, dtype=dtype),
        torch.full((count, 3), math.nan, dtype=dtype),
        torch.tensor(0.5),
        mask=torch.zeros(count, dtype=torch.bool),
    )
    assert (s.relevance.item(), s.relevance_raw.item(), s.reliability.item()) == (0, 0, 0.5)
    assert (s.agreement.item(), s.conflict_rate.item(), s.status.item()) == (0, 0, EMPTY)
    assert not s.similarity.any()


def test_zero_vectors_have_the_cosine_zero():
    query = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    memories = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).repeat(4, 1, 1)
    memories[1, 0] = torch.tensor([-1.0, 0.0])
    mask = torch.tensor([[True, True], [True, True], [True, True], [True, False]])
    s = SignalExtractor()(query, memories, torch.tensor(0.5), mask=mask)
    assert s.similarity.tolist() == [[1, 0], [-1, 0], [0, 0], [1, 0]]
    assert s.relevance_raw.tolist() == [1, 0, 0, 1]
    assert s.status.tolist() == [Status.ZERO_VECTOR, Status.ZERO_VECTOR | BELOW, Status.ZERO_VECTOR | BELOW, 0]


def test_an_empty_store_with_an_empty_query():
    """No memory has length zero where there is none."""
    s = SignalExtractor()(torch.zeros(2), torch.zeros(1, 2), torch.tensor(0.5), mask=torch.tensor([False]))
    assert s.status.item() == EMPTY


BAD = (math.nan, math.inf, -math.inf, 1e30)
"""The last is finite, but its square is not in float32."""


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", ["query", "memory", "query of an empty store"])
def test_what_is_not_finite_is_flagged_and_touches_no_other_row(bad, where):
    arguments = batch(3, dtype=torch.float32)
    arguments["mask"][1] = where != "query of an empty store"
    clean = SignalExtractor(TableDetector())(**arguments)
    if where == "memory":
        arguments["memories"][1, 2, 0] = bad
    else:
        arguments["query"][1, 0] = bad
    s = SignalExtractor(TableDetector())(**arguments)
    assert s.status[1].item() & Status.NOT_FINITE
    assert s.relevance[1].isnan()
    assert s.relevance_raw[1].isnan()
    for name, tensor in fields(s).items():
        assert torch.equal(tensor[[0, 2]], getattr(clean, name)[[0, 2]]), name


def test_memories_before_a_broken_one_keep_their_similarity():
    memories = torch.tensor([[1.0, 0.0], [math.nan, 0.0], [0.6, 0.8]])
    s = SignalExtractor()(torch.tensor([1.0, 0.0]), memories, torch.tensor(0.5))
    assert s.similarity[[0, 2]].tolist() == pytest.approx([1, 0.6])


def test_a_broken_query_leaves_masked_memories_at_zero():
    mask = torch.tensor([True, False])
    s = SignalExtractor()(torch.tensor([math.nan, 0.0]), torch.ones(2, 2), torch.tensor(0.5), mask=mask)
    assert s.similarity[0].isnan()
    assert s.similarity[1].item() == 0


def test_padding_is_irrelevant_below_any_threshold():
    extract = SignalExtractor()
    extract.relevant_above.fill_(-1.0)
    s = extract(torch.ones(2), torch.ones(2, 2), torch.tensor(0.5), mask=torch.tensor([True, False]))
    assert s.relevant.tolist() == [True, False]


def test_bfloat16_beyond_halfs_range():
    """1e5 has no half, but a bfloat16; its square is computed in float32."""
    query = torch.tensor([1e5, 0.0], dtype=torch.bfloat16)
    assert SignalExtractor()(query, query.unsqueeze(0), torch.tensor(0.5)).relevance.item() == pytest.approx(1)


# --- large stores ----------------------------------------------------------------------------------------------------

LARGE = """
import resource, sys, time, torch
from mdl_torch.signals import SignalExtractor
from mdl_torch.stance import LexicalConflictDetector
torch.set_num_threads(1)
count = int(sys.argv[1])
detector = LexicalConflictDetector()
stance = detector.features(["The port is not open." if i % 2 else "The port is open." for i in range(count)])
memories = torch.randn(count, 384, generator=torch.Generator().manual_seed(0)) + 1
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
s = SignalExtractor(detector)(torch.ones(384), memories, torch.tensor(0.5), stance=stance)
took = time.process_time() - start
assert s.relevant.all()
print(s.conflict_rate.item(), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, took)
"""


@pytest.mark.slow
def test_five_thousand_memories_need_little():
    """Every pair is compared: half of the texts contradict the other half."""
    run = subprocess.run([sys.executable, "-c", LARGE, "5000"], capture_output=True, text=True, check=True)
    phi, megabytes, _ = map(float, run.stdout.split())
    assert phi == pytest.approx(2500 * 2500 / (5000 * 4999 / 2), abs=1e-6)
    assert megabytes < 100


def test_all_pairs_at_once_would_not_fit_where_blocks_do():
    """Of 300 memories, blocks and one block of everything agree; no block is larger than ``PAIR_BLOCK`` squared."""
    seen = []

    class Watched(TableDetector):
        def conflicts(self, a, b):
            seen.append(a.count.numel() * b.count.shape[-1])
            return super().conflicts(a, b)

    for lead in ((), (3,), (5, 2)):
        seen.clear()
        arguments = batch(*lead, count=300)
        conflict_rate(Watched(), arguments["stance"], arguments["mask"])
        assert max(seen) <= signals_module.PAIR_BLOCK**2
        assert len(seen) > 1


# --- errors ----------------------------------------------------------------------------------------------------------

WRONG = [
    ({"query": torch.ones(3, 9)}, ValueError, r"memories must be .*d = 9.*query \(3, 9\).*got \(3, 5, 8\)"),
    ({"query": torch.ones(4, 8)}, ValueError, r"memories must be .*\* = \(4,\).*got \(3, 5, 8\)"),
    ({"query": torch.ones(8)}, ValueError, r"memories must be .*\* = \(\).*got \(3, 5, 8\)"),
    ({"query": torch.tensor(1.0)}, ValueError, r"query must be \(\*, d\), got a scalar"),
    (
        {"query": torch.ones(3, 8, dtype=torch.int64)},
        TypeError,
        "query must be a floating-point tensor, got torch.int64",
    ),
    ({"query": np.ones((3, 8))}, TypeError, "query must be a torch.Tensor, got ndarray"),
    ({"query": torch.ones(3, 8, device="meta")}, ValueError, r"query must be on the device of .* \(cpu\), got meta"),
    ({"memories": torch.ones(3, 8)}, ValueError, r"memories must be \(\*, K, d\) .*got \(3, 8\)"),
    ({"memories": torch.ones(3, 0, 8)}, ValueError, "memories must have K >= 1, got K = 0"),
    ({"memories": [[1.0] * 8]}, TypeError, "memories must be a torch.Tensor, got list"),
    ({"memories": torch.ones(3, 5, 8, device="meta")}, ValueError, r"memories must be on the device .*got meta"),
    ({"risk": torch.ones(2)}, ValueError, r"risk must broadcast to \* = \(3,\) .*got \(2,\)"),
    ({"risk": torch.ones(1, 3)}, ValueError, r"risk must broadcast to \* = \(3,\) .*got \(1, 3\)"),
    ({"risk": 0.5}, TypeError, "risk must be a torch.Tensor, got float"),
    ({"mask": torch.ones(3, 5)}, TypeError, "mask must be a bool tensor, got torch.float32"),
    ({"mask": torch.ones(3, 5, dtype=torch.uint8)}, TypeError, "mask must be a bool tensor, got torch.uint8"),
    ({"mask": [[True] * 5] * 3}, TypeError, "mask must be a bool tensor, got list"),
    ({"mask": torch.ones(3, 4, dtype=torch.bool)}, ValueError, r"mask must be \(\*, K\) = \(3, 5\), got \(3, 4\)"),
    ({"mask": torch.ones(3, 5, dtype=torch.bool, device="meta")}, ValueError, r"mask must be on the device .*got meta"),
    ({"stance": ["a text"] * 5}, TypeError, "stance must be TextFeatures, got list"),
    ({"stance": StanceFeatures.empty((5,))}, ValueError, r"stance must be \(\*, K\) = \(3, 5\), got \(5,\)"),
    ({"stance": StanceFeatures.empty((3, 5), "meta")}, ValueError, r"stance must be on the device .*got meta"),
]


@pytest.mark.parametrize(("change", "error", "message"), WRONG)
def test_errors_name_the_argument(change, error, message):
    with pytest.raises(error, match=message):
        SignalExtractor(TableDetector())(**{**batch(3, dtype=torch.float32), **change})


# --- graphs: what the contract of all modules leaves out -------------------------------------------------------------


def test_new_sizes_do_not_recompile():
    """A first graph for fixed sizes, then dynamic ones, with a change of rank one more."""
    torch._dynamo.reset()
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    extract = SignalExtractor()
    compiled = torch.compile(extract, fullgraph=True, backend=counting)
    for size in range(2, 9):
        arguments = {**batch(size, count=size + 3), "stance": StanceFeatures.empty((size, size + 3))}
        assert_identical(compiled(**arguments), extract(**arguments))
    torch._dynamo.reset()
    assert len(graphs) <= 3
