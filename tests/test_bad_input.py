"""Every bad input that a user can produce: a defined result, or an error that says what to do; and the gate goes on."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl_torch import Action, MemoryGate, Status
from mdl_torch.data import read_text
from mdl_torch.retrieval import Memory, ReadySignals, Retrieval

NAN, INF = float("nan"), float("inf")
QUERY, STORE = "When does the library open?", ["The library opens at nine.", "The library opens at nine on weekdays."]
EAST = [1.0, 0.0]


@pytest.fixture(autouse=True)
def still_works(gate):
    """Whatever a test does to the gate, it decides afterwards as it did before."""
    before = gate.decide(QUERY, STORE, risk=0.2)
    yield
    assert gate.decide(QUERY, STORE, risk=0.2) == before
    assert before.action is Action.ACTIVE


# --- defined results ----------------------------------------------------------------------------------------------


def test_an_empty_store(gate):
    record = gate.decide(QUERY, [], risk=0.2)
    assert record.action in (Action.SILENT, Action.OPT_OUT)
    assert (record.relevance, record.relevance_raw, record.reliability) == (0.0, None, 0.5)
    assert record.status == Status.NO_MEMORY | Status.NO_RELEVANT_MEMORY
    assert record.memories == record.injected == ()


@pytest.mark.parametrize("risk", [0.0, 0.2, 0.5, 0.85, 1.0])
def test_nothing_is_injected_from_an_empty_or_irrelevant_store(gate, risk):
    for store in ([], ["Penguins live in the southern hemisphere."], [""]):
        assert gate.decide(QUERY, store, risk=risk).action >= Action.SILENT


def test_one_memory(gate):
    record = gate.decide(QUERY, STORE[:1], risk=0.2)
    assert record.reliability == 0.5
    assert record.reasons == ("too_few_to_compare",)


def test_duplicates_agree_with_each_other(gate):
    record = gate.decide(QUERY, STORE[:1] * 5, risk=0.2)
    assert record.agreement == pytest.approx(1, abs=1e-6)
    assert record.reliability == pytest.approx(1, abs=1e-6)
    assert record.conflict_count == 0
    assert len(set(record.injected)) == 5


@pytest.mark.parametrize(
    ("query", "store"),
    [
        ("", STORE),
        (QUERY, [""]),
        (QUERY, ["", ""]),
        ("", [""]),
        (" \n\t", ["\x00", "\u200b", " "]),
        ("🙂" * 300, ["🙃"]),
    ],
    ids=ascii,
)
def test_empty_and_odd_texts_are_decided(gate, query, store):
    record = gate.decide(query, store, risk=0.5)
    assert 0 <= record.relevance <= 1
    assert len(record.memories) == len(store)


@pytest.mark.parametrize("lone", ["\ud800", "open \udc80 shop"])
def test_lone_surrogates_anywhere(gate, lone):
    record = gate.decide(lone, [lone, {"text": lone, "id": lone, "source": lone}], risk=0.5)
    assert record.memories[1].id == lone
    assert json.loads(json.dumps(record.to_dict()))["memories"][1]["id"] == lone
    clean = lone.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert record.relevance == pytest.approx(gate.decide(clean, [clean, clean], risk=0.5).relevance, abs=1e-6)


def test_a_lone_surrogate_in_a_category_is_an_unknown_category(gate):
    with pytest.raises(ValueError, match="unknown category"):
        gate.decide(QUERY, STORE, category="\ud800")


def test_a_zero_vector_is_similar_to_nothing(gate):
    zero = [0.0] * 384
    of_memory = gate.decide(QUERY, [*STORE, {"embedding": zero}], risk=0.2)
    assert of_memory.memories[2].similarity == 0
    assert not of_memory.memories[2].relevant
    assert of_memory.reliability == pytest.approx(gate.decide(QUERY, STORE, risk=0.2).reliability, abs=1e-6)
    (of_query,) = gate.records([Retrieval(QUERY, STORE, query_embedding=zero)])
    assert (of_query.relevance, of_query.action >= Action.SILENT) == (0, True)
    assert "zero_vector" in of_memory.reasons
    assert "zero_vector" in of_query.reasons


LONG = "The library opens at nine on weekdays, and it is not open on Sundays. " * 600 + "Bring your card."


def test_a_long_text(gate):
    record = gate.decide(QUERY, [LONG, STORE[0]], risk=0.2)
    assert record.memories[0].relevant
    assert {"truncated", "stance_truncated"} <= set(record.reasons)
    assert record.truncated == ("0",)


@pytest.mark.slow
def test_a_megabyte_of_text(gate):
    million = LONG * (1_000_000 // len(LONG))
    record = gate.decide(QUERY, [million, "x" * 1_000_000, STORE[0]], risk=0.2)
    assert record.memories[0].relevant
    assert "truncated" in record.reasons
    assert record.truncated == ("0", "1")
    of_query = gate.decide(million, STORE, risk=0.2)
    assert "truncated" in of_query.reasons
    assert of_query.memories[0].relevant


@pytest.mark.parametrize("with_texts", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_five_thousand_memories(lenient, with_texts):
    """As retrievers return them: many are off topic, some are relevant, some of those conflict if they have texts."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(5000, 64, generator=generator)
    embeddings[:, 0] = 0.0
    embeddings[::50, 0] = 20.0
    texts = ["The shop is not open." if n % 100 == 0 else f"The shop is open, says note {n}." for n in range(5000)]
    store = [Memory(text if with_texts else None, embedding=row) for text, row in zip(texts, embeddings, strict=True)]
    (record,) = lenient.records([Retrieval(query_embedding=[1.0, *[0.0] * 63], memories=store, risk=0.5)])
    assert sum(memory.relevant for memory in record.memories) == 100
    conflicts = 50 * 50 if with_texts else 0
    assert record.conflict_count == conflicts
    assert record.conflict_rate == pytest.approx(conflicts / 4950, abs=1e-6)
    unit = torch.nn.functional.normalize(embeddings[::50].double(), dim=-1)
    total = unit.sum(dim=0)
    assert record.agreement == pytest.approx(((total @ total - 100) / 9900).item(), abs=1e-5)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_is_refused_or_opts_out(gate, lenient, value):
    bad = [value, *[1.0] * 383]
    with pytest.raises(ValueError, match=r"memories\[1\]\.embedding must be finite, got NaN or infinity"):
        gate.decide(QUERY, [STORE[0], {"embedding": bad}])
    with pytest.raises(ValueError, match="query_embedding must be finite, got NaN or infinity"):
        gate.records([Retrieval(memories=STORE, query_embedding=bad)])
    in_memory = lenient.decide(QUERY, [*STORE, {"embedding": bad}], risk=0.2)
    (in_query,) = lenient.records([Retrieval(memories=STORE, query_embedding=bad, risk=0.2)])
    for record in (in_memory, in_query):
        assert record.action is Action.OPT_OUT
        assert record.status & Status.NOT_FINITE
        assert record.gated_confidence == 0
        assert record.injected == ()


def test_a_bad_row_leaves_its_neighbours_alone(lenient):
    bad = Retrieval(memories=STORE, query_embedding=[NAN] * 384)
    good = Retrieval(QUERY, STORE)
    before, broken, after = lenient.records([good, bad, good], audits=False)
    (alone,) = lenient.records([good], audits=False)
    assert broken.action is Action.OPT_OUT
    assert before.action == after.action == alone.action == Action.ACTIVE
    assert before.gated_confidence == pytest.approx(alone.gated_confidence, abs=2e-6)


# --- errors that say what to do -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("risk", "error", "message"),
    [
        (1.01, ValueError, "risk must be in [0, 1], got 1.01"),
        (-0.01, ValueError, "risk must be in [0, 1], got -0.01"),
        (NAN, ValueError, "risk must be in [0, 1], got nan"),
        (INF, ValueError, "risk must be in [0, 1], got inf"),
        (10**400, ValueError, "risk is too large"),
        (True, TypeError, "risk must be a number, got True"),
        ("0.5", TypeError, "risk must be a number, got '0.5'"),
        ([0.5], TypeError, "risk must be a number, got [0.5]"),
        (torch.tensor([0.5, 0.5]), TypeError, "risk must be a number, got tensor([0.5000, 0.5000])"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_risk_that_is_none_is_refused(gate, risk, error, message):
    with pytest.raises(error) as raised:
        gate.decide(QUERY, STORE, risk=risk)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("risk", "status"), [(1.01, Status.OUT_OF_RANGE), (-0.01, Status.OUT_OF_RANGE), (NAN, Status.NOT_FINITE)]
)
def test_a_risk_that_is_none_opts_out_where_nothing_is_checked(lenient, risk, status):
    record = lenient.decide(QUERY, STORE, risk=risk)
    assert (record.action, record.status, record.risk) == (Action.OPT_OUT, status, 1.0)


def test_unknown_categories_name_the_nearest(gate, lenient):
    for each in (gate, lenient):
        with pytest.raises(ValueError, match=r"unknown category 'helth'; did you mean 'health'\?"):
            each.decide(QUERY, STORE, category="Helth")


@pytest.mark.parametrize(
    ("query", "memories", "message"),
    [
        (None, STORE, "query is missing"),
        (5, STORE, "query must be a string, got 5"),
        (b"When?", STORE, "query must be a string, got b'When?'"),
        ([QUERY], STORE, "query must be a string, got ['When"),
        (QUERY, STORE[0], "memories must be a list, got str"),
        (QUERY, {"text": STORE[0]}, "memories must be a list, got dict"),
        (QUERY, Memory(STORE[0]), "memories must be a list, got Memory"),
        (QUERY, None, "memories is missing; an empty store is an empty list"),
        (QUERY, (text for text in STORE), "memories must be a list, got generator"),
        (QUERY, set(STORE), "memories must be a list, got set"),
        (QUERY, [None], "memories[0] must be a text or an object, got null"),
        (QUERY, [STORE[0], 5], "memories[1] must be a text or an object, got int"),
        (QUERY, [{"txt": "a"}], "unknown field of memories[0] 'txt'; did you mean 'text'?"),
        (QUERY, [{"id": "a"}], "memories[0].text and embedding are both missing"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_kinds_are_named(gate, query, memories, message):
    with pytest.raises((TypeError, ValueError)) as raised:
        gate.decide(query, memories)
    assert message in str(raised.value)


def test_dimensions_must_be_those_of_the_others(gate, lenient):
    for each in (gate, lenient):
        with pytest.raises(
            ValueError, match=r"memories\[1\]\.embedding must have 384 numbers, as many as the encoder's, got 2"
        ):
            each.decide(QUERY, [STORE[0], {"embedding": EAST}])
        with pytest.raises(
            ValueError, match=r"memories\[1\]\.embedding must have 2 numbers, as many as query_embedding, got 3"
        ):
            each.records([Retrieval(query_embedding=EAST, memories=[{"embedding": EAST}, {"embedding": [1, 0, 0]}])])


def test_batches_must_match(gate):
    with pytest.raises(ValueError, match="memories must be one a query, 2, got 1"):
        gate.decide_batch([QUERY, QUERY], [STORE])
    with pytest.raises(ValueError, match="risk must be one a query, 2, got 3"):
        gate.decide_batch([QUERY, QUERY], [STORE, STORE], risk=[0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="category must be one a query, 2, got 1"):
        gate.decide_batch([QUERY, QUERY], [STORE, STORE], category=["Law"])
    with pytest.raises(TypeError, match="queries must be a list, one entry a retrieval, got str"):
        gate.decide_batch(QUERY, STORE)
    with pytest.raises(TypeError, match="memories must be a list, one entry a retrieval, got str"):
        gate.decide_batch([QUERY], "memories")
    with pytest.raises(TypeError, match="queries must be a list, one entry a retrieval, got generator"):
        gate.decide_batch((q for q in [QUERY]), [STORE])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memories": [STORE, "one text"]}, "retrieval 1: memories must be a list, got str"),
        ({"memories": [STORE, [5]]}, r"retrieval 1: memories\[0\] must be a text or an object, got int"),
        ({"risk": [0.5, 1.5]}, r"retrieval 1: risk must be in \[0, 1\], got 1.5"),
        ({"risk": torch.tensor([0.5, NAN])}, r"retrieval 1: risk must be in \[0, 1\], got nan"),
        ({"risk": torch.tensor([[0.5], [0.5]])}, r"retrieval 0: risk must be a number, got \[0.5\]"),
        ({"category": ["Law", "Lwa"]}, "retrieval 1: unknown category 'lwa'; did you mean 'law'"),
        ({"queries": [QUERY, None]}, "retrieval 1: query is missing"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_in_a_batch_say_where(gate, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        gate.decide_batch(**{"queries": [QUERY, QUERY], "memories": [STORE, STORE], **arguments})


def test_columns_of_arrays_are_lists(gate):
    decision = gate.decide_batch(np.array([QUERY, QUERY]), [STORE, STORE], risk=np.array([0.2, 0.5]))
    assert decision.risk.tolist() == pytest.approx([0.2, 0.5])


@pytest.mark.parametrize(
    ("retrievals", "message"),
    [
        (
            [{"query": QUERY, "memories": STORE}],
            r"retrievals\[0\] must be a Retrieval, got dict; Retrieval\.parse makes one",
        ),
        (Retrieval(QUERY, STORE), "retrievals must be a list, one entry a retrieval, got Retrieval"),
        ("text", "retrievals must be a list, one entry a retrieval, got str"),
    ],
    ids=["mapping", "single", "text"],
)
def test_records_takes_a_list_of_retrievals(gate, retrievals, message):
    with pytest.raises(TypeError, match=message):
        gate.records(retrievals, errors="return")


def test_what_to_do_with_errors_is_one_of_two(gate):
    with pytest.raises(ValueError, match="unknown value of errors 'retrun'; did you mean 'return'"):
        gate.records([], errors="retrun")


# --- one bad retrieval among good ones ----------------------------------------------------------------------------


def test_a_bad_retrieval_takes_its_own_place_only(gate):
    good = [Retrieval.parse(json.loads(line)) for line in read_text("sample.jsonl").splitlines()[:6]]
    bad = {
        1: (Retrieval(QUERY, STORE, risk=2.0), "risk must be in [0, 1], got 2.0"),
        3: (Retrieval(QUERY, STORE, category="Lwa"), "unknown category 'lwa'"),
        4: (Retrieval(signals=ReadySignals(0.5, 0.5, NAN)), "signals.risk must lie in [0.0, 1.0], got nan"),
        7: (Retrieval(query_embedding=EAST, memories=STORE), "query_embedding must have 384 numbers"),
        9: (Retrieval(query_embedding=[NAN, 1.0]), "query_embedding must be finite"),
    }
    rest = iter(good)
    mixed = [bad[place][0] if place in bad else next(rest) for place in range(len(good) + len(bad) - 0)]
    found = gate.records(mixed, errors="return")
    assert len(found) == len(mixed)
    for place, (_, message) in bad.items():
        assert isinstance(found[place], ValueError)
        assert message in str(found[place])
    decided = [record for place, record in enumerate(found) if place not in bad]
    assert decided == gate.records(good)
    with pytest.raises(ValueError, match=r"retrieval 1: risk must be in \[0, 1\], got 2\.0"):
        gate.records(mixed)


def test_nothing_but_bad_retrievals(gate):
    bad = Retrieval(QUERY, STORE, risk=2.0)
    assert [str(error) for error in gate.records([bad, bad], errors="return")] == [
        "risk must be in [0, 1], got 2.0"
    ] * 2


def test_a_missing_model_is_raised_whatever_is_asked_for_errors():
    gate = MemoryGate("./no/such/model")
    ready = Retrieval(query_embedding=EAST, memories=[{"embedding": EAST}])
    with pytest.raises(OSError, match=r"cannot load the encoder './no/such/model' \(no such folder\)"):
        gate.records([ready, Retrieval(QUERY, STORE)], errors="return")
    assert gate.records([ready])[0].memories[0].relevant


ODD_TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)


@settings(max_examples=40)
@given(
    ODD_TEXTS,
    st.lists(st.builds(Memory, text=ODD_TEXTS, id=st.none() | st.integers() | ODD_TEXTS), max_size=4),
    st.floats(0, 1),
)
def test_any_text_is_decided_and_written(gate, query, memories, risk):
    record = gate.decide(query, memories, risk=risk)
    line = record.to_dict()
    assert json.loads(json.dumps(line, allow_nan=False)) == line
    assert 0 <= record.relevance <= 1
    assert 0 <= record.reliability <= 1
    assert len(record.injected) in (0, len(memories))


@settings(max_examples=60)
@given(
    st.lists(st.floats(width=32), min_size=2, max_size=2),
    st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), max_size=4),
    st.floats(),
)
def test_any_numbers_are_decided_and_never_trusted_where_they_are_none(lenient, query, memories, risk):
    store = [Memory(embedding=embedding) for embedding in memories]
    (record,) = lenient.records([Retrieval(query_embedding=query, memories=store, risk=risk)], audits=False)
    finite = np.isfinite(np.array([*query, *np.ravel(memories), risk])).all()
    seen = torch.tensor(risk, dtype=torch.float32).item()  # decisions are float32, where -1e-300 is 0
    if not finite or not 0 <= seen <= 1:
        assert record.action is Action.OPT_OUT
    json.dumps(record.to_dict(), allow_nan=False)


@pytest.mark.parametrize("blank", ["", "   ", "\n\n", "\u200b", "\x00\x01", "\ud800"])
def test_blank_texts_do_not_agree_with_each_other(gate, blank):
    """An encoder gives all of them one embedding; that is no match."""
    record = gate.decide(blank, [blank, " "], risk=0.2)
    assert record.action >= Action.SILENT
    assert record.relevance == 0
    assert "zero_vector" in record.reasons
    assert gate.decide("What is tea?", ["Tea is a drink.", blank], risk=0.2).memories[1].similarity == 0


@pytest.mark.parametrize("name", ["require_relevant", "validate_args"])
def test_switches_are_booleans(encoder, name):
    with pytest.raises(TypeError, match=f"{name} must be a bool, got 'no'"):
        MemoryGate.from_pretrained(encoder, **{name: "no"})


def test_an_embedding_beyond_float32_is_named(gate):
    retrieval = Retrieval.parse({"query_embedding": [1, 0], "memories": [{"embedding": [1e30, 0]}], "risk": 0.2})
    with pytest.raises(ValueError, match=r"memories\[0\].embedding must be finite, got a length beyond float32"):
        gate.records([retrieval])
