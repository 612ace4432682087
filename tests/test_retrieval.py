"""What comes in: memories and retrievals as text, mappings and objects, and what is refused with which words."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mdl_torch.data import read_text
from mdl_torch.retrieval import Memory, ReadySignals, Retrieval

SCHEMA = Draft202012Validator(json.loads(read_text("input.schema.json")))


# --- memories -----------------------------------------------------------------------------------------------------


def test_a_memory_is_a_text_a_mapping_or_a_memory():
    as_text = Memory.parse("Tea is hot.", "memories[0]")
    as_mapping = Memory.parse({"text": "Tea is hot."}, "memories[0]")
    assert as_text == as_mapping == Memory("Tea is hot.")
    assert Memory.parse(as_text, "memories[0]") is as_text


def test_everything_known_of_a_memory_is_kept():
    known = {"text": "Tea", "id": 7, "source": "wiki", "timestamp": "2024-05-01", "score": 12.5, "embedding": [1, 2]}
    memory = Memory.parse(known, "memories[0]")
    assert {name: getattr(memory, name) for name in known if name != "embedding"} == {
        name: value for name, value in known.items() if name != "embedding"
    }
    assert memory.embedding.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "embedding",
    [
        [0.5, -2],
        (0.5, -2),
        np.array([0.5, -2.0]),
        np.array([0.5, -2.0], dtype=np.float16),
        torch.tensor([0.5, -2.0]),
        torch.tensor([0.5, -2.0], dtype=torch.float64),
        torch.tensor([0.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([0.5, -2.0], requires_grad=True),
    ],
    ids=["list", "tuple", "float64-array", "half-array", "tensor", "double", "bfloat16", "gradient"],
)
def test_embeddings_of_every_make_become_float32_on_the_cpu(embedding):
    found = Memory(embedding=embedding).embedding
    assert found.dtype == torch.float32
    assert found.device.type == "cpu"
    assert not found.requires_grad
    assert found.tolist() == [0.5, -2.0]


def test_a_read_only_array_is_copied_without_a_warning():
    array = np.array([0.5, -2.0], dtype=np.float32)
    array.flags.writeable = False
    assert Memory(embedding=array).embedding.tolist() == [0.5, -2.0]


def test_numbers_of_numpy_are_numbers():
    """FAISS and pandas hand out such ids, scores and risks."""
    memory = Memory("Tea", id=np.int64(3), score=np.float32(0.25), timestamp=np.int64(1_700_000_000))
    assert str(memory.id) == "3"
    assert Retrieval("Tea?", [memory], risk=np.float32(0.25)).risk == 0.25


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (7, TypeError, r"memories\[2\] must be a text or an object, got int"),
        (None, TypeError, r"memories\[2\] must be a text or an object, got null"),
        (["a"], TypeError, r"memories\[2\] must be a text or an object, got list"),
        ({}, ValueError, r"memories\[2\]\.text and embedding are both missing: a memory needs one of them"),
        ({"txet": "a"}, ValueError, r"unknown field of memories\[2\] 'txet'; did you mean 'text'\?"),
        ({"text": 5}, TypeError, r"memories\[2\]\.text must be a string, got 5"),
        ({"text": b"a"}, TypeError, r"memories\[2\]\.text must be a string, got b'a'"),
        ({"text": "a", "id": True}, TypeError, r"memories\[2\]\.id must be a string or an integer, got True"),
        ({"text": "a", "id": 1.5}, TypeError, r"memories\[2\]\.id must be a string or an integer, got 1\.5"),
        ({"text": "a", "score": "high"}, TypeError, r"memories\[2\]\.score must be a number, got 'high'"),
        ({"text": "a", "timestamp": []}, TypeError, r"memories\[2\]\.timestamp must be a string or a number, got \[\]"),
        ({"embedding": []}, ValueError, r"memories\[2\]\.embedding must be one vector of at least one number, got sh"),
        ({"embedding": [[1.0]]}, ValueError, r"memories\[2\]\.embedding must be one vector .* got shape \(1, 1\)"),
        (
            {"embedding": torch.tensor(1.0)},
            ValueError,
            r"memories\[2\]\.embedding must be one vector .* got shape \(\)",
        ),
        ({"embedding": "0.5 0.5"}, TypeError, r"memories\[2\]\.embedding must be a list of numbers, got str"),
        ({"embedding": 0.5}, TypeError, r"memories\[2\]\.embedding must be a list of numbers, got float"),
        ({"embedding": ["a"]}, TypeError, r"memories\[2\]\.embedding must be a list of numbers: "),
        ({"embedding": [1, None]}, TypeError, r"memories\[2\]\.embedding must be a list of numbers: "),
        ({"embedding": [[1], [1, 2]]}, TypeError, r"memories\[2\]\.embedding must be a list of numbers: "),
        ({"embedding": [10**400]}, TypeError, r"memories\[2\]\.embedding must be a list of numbers: "),
        ({"embedding": np.array([1j])}, TypeError, r"memories\[2\]\.embedding must be a list of real numbers, got"),
        ({"text": "x" * 99, "id": [0] * 99}, TypeError, r"memories\[2\]\.id must be .*, got \[0, .{0,60}\.\.\.$"),
    ],
    ids=repr,
)
def test_bad_memories_are_named(value, error, message):
    with pytest.raises(error, match=message):
        Retrieval("Tea?", ["fine", "fine", value])


def test_an_object_built_in_code_is_checked_too():
    with pytest.raises(TypeError, match="text must be a string, got 5"):
        Memory(5)
    with pytest.raises(ValueError, match="text and embedding are both missing"):
        Memory(id="a")


# --- retrievals ---------------------------------------------------------------------------------------------------


def test_null_counts_as_absent():
    names = [field.name for field in dataclasses.fields(Retrieval) if field.name not in ("query", "memories")]
    assert Retrieval.parse({"query": "Tea?", "memories": [], **dict.fromkeys(names)}) == Retrieval("Tea?")


def test_texts_and_mappings_become_memories():
    retrieval = Retrieval("Tea?", ["hot", {"text": "cold"}, Memory("warm")])
    assert retrieval.memories == (Memory("hot"), Memory("cold"), Memory("warm"))


def test_ready_signals_need_nothing_else():
    retrieval = Retrieval.parse({"signals": {"relevance": 1, "reliability": 0.5, "risk": 0}})
    assert retrieval.signals == ReadySignals(1.0, 0.5, 0.0)
    assert Retrieval(signals=retrieval.signals) == retrieval


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([], TypeError, "a retrieval must be an object, got list"),
        (None, TypeError, "a retrieval must be an object, got null"),
        ({"query": "a"}, ValueError, "memories is missing; an empty store is an empty list"),
        ({"query": "a", "memories": None}, ValueError, "memories is missing; an empty store is an empty list"),
        ({"memories": []}, ValueError, "query is missing: a retrieval needs a query, a query_embedding or signals"),
        ({"query": "a", "memorys": []}, ValueError, "unknown field of retrieval 'memorys'; did you mean 'memories'?"),
        ({"query": "a", "memories": "b"}, TypeError, "memories must be a list, got str"),
        ({"query": "a", "memories": {"text": "b"}}, TypeError, "memories must be a list, got dict"),
        ({"query": "a", "memories": (m for m in "b")}, TypeError, "memories must be a list, got generator"),
        ({"query": 5, "memories": []}, TypeError, "query must be a string, got 5"),
        ({"query": "a", "memories": [], "id": 1.5}, TypeError, "id must be a string or an integer, got 1.5"),
        ({"query": "a", "memories": [], "risk": "high"}, TypeError, "risk must be a number, got 'high'"),
        ({"query": "a", "memories": [], "risk": True}, TypeError, "risk must be a number, got True"),
        ({"query": "a", "memories": [], "risk": 10**400}, ValueError, "risk is too large"),
        ({"query": "a", "memories": [], "category": 5}, TypeError, "category must be a string, got 5"),
        ({"query": "a", "memories": [], "meta": "mine"}, TypeError, "meta must be an object, got 'mine'"),
        ({"query_embedding": [], "memories": []}, ValueError, "query_embedding must be one vector"),
        ({"signals": 5}, TypeError, "signals must be an object, got int"),
        ({"signals": {"relevance": 1, "risk": 1}}, ValueError, "missing: reliability"),
        ({"signals": {"relevance": 1, "reliability": None, "risk": 1}}, ValueError, "missing: reliability"),
        (
            {"signals": {"relevance": 1, "reliability": "1", "risk": 1}},
            TypeError,
            "signals.reliability must be a number",
        ),
        ({"signals": {"relevanc": 1}}, ValueError, "unknown field of signals 'relevanc'; did you mean 'relevance'?"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", repr(value)),  # the same in every process
)
def test_bad_retrievals_are_named(value, error, message):
    with pytest.raises(error) as raised:
        Retrieval.parse(value)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ((1.02, 0.5, 0.5), r"signals\.relevance must lie in \[-1\.01, 1\.01\], got 1\.02"),
        ((0.5, -0.01, 0.5), r"signals\.reliability must lie in \[0\.0, 1\.0\], got -0\.01"),
        ((0.5, 0.5, 1.01), r"signals\.risk must lie in \[0\.0, 1\.0\], got 1\.01"),
        ((float("nan"), 0.5, 0.5), r"signals\.relevance .* got nan"),
        ((0.5, float("inf"), 0.5), r"signals\.reliability .* got inf"),
    ],
)
def test_signals_that_no_store_can_have_are_refused(signals, message):
    with pytest.raises(ValueError, match=message):
        ReadySignals(*signals).check()


@pytest.mark.parametrize("signals", [(1.0000001, 0, 1), (-1, 1, 0), (0, 0.0, 1.0)])
def test_signals_of_rounded_cosines_are_fine(signals):
    ReadySignals(*signals).check()


PLAIN_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "query", "memories", "text", "embedding", "query_embedding", "risk", "category"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(PLAIN_JSON)
def test_whatever_json_holds_is_read_or_refused_as_the_schema_does(value):
    try:
        Retrieval.parse(value)
    except (TypeError, ValueError):
        assert not SCHEMA.is_valid(value)
