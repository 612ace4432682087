"""Embeddings to decisions: the stages composed, and the guard that keeps absent and irrelevant memories out."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from cases import assert_identical, fields, tensors, unit
from hypothesis import given
from hypothesis import strategies as st

from mdl_torch import Action, Calibration, MemoryDecisionLayer, Status
from mdl_torch.embedding_gate import EmbeddingGate
from mdl_torch.outputs import INVALID
from mdl_torch.policy import guard
from mdl_torch.signals import SignalExtractor
from mdl_torch.stance import LiteralConflictDetector

DTYPES = (torch.float64, torch.float32)
NONE, IRRELEVANT = Status.NO_MEMORY | Status.NO_RELEVANT_MEMORY, Status.NO_RELEVANT_MEMORY

LAYERS = {
    "exact range": MemoryDecisionLayer(),
    "reference": MemoryDecisionLayer().calibrated(Calibration.reference()),
}


def store(*lead: int, count: int = 4, dtype=torch.float64, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "query": torch.rand(*lead, 8, dtype=torch.float64, generator=generator).to(dtype),
        "memories": torch.rand(*lead, count, 8, dtype=torch.float64, generator=generator).to(dtype),
        "risk": torch.rand(lead, dtype=torch.float64, generator=generator).to(dtype),
        "mask": torch.rand(*lead, count, generator=generator) > 0.3,
    }


# --- the guard -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
@given(m=unit(), r=unit(), a=unit())
def test_a_store_without_memories_is_never_injected(layer, m, r, a):
    """For any signals, whatever is required: Silent, or Opt-Out where the equations say so (or the risk is high)."""
    decision = layer(*tensors(m, r, a))
    for status in (NONE, Status.NO_MEMORY):
        free = guard(decision, torch.tensor(int(status)), require_relevant=False)
        assert free.action.item() == max(decision.action.item(), Action.SILENT)
        strict = guard(decision, torch.tensor(int(status)), require_relevant=True)
        assert strict.action.item() == (Action.OPT_OUT if a >= 0.7 else max(decision.action.item(), Action.SILENT))


@pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
@given(m=unit(), r=unit(), a=unit())
def test_an_irrelevant_store(layer, m, r, a):
    """The equations decide, unless relevance is required: then Silent, or Opt-Out by the equations or by high risk."""
    decision = layer(*tensors(m, r, a))
    status = torch.tensor(int(IRRELEVANT))
    assert guard(decision, status, require_relevant=False).action.item() == decision.action.item()
    required = guard(decision, status, require_relevant=True).action.item()
    opts_out = a >= 0.7 or decision.action.item() == Action.OPT_OUT
    assert required == (Action.OPT_OUT if opts_out else Action.SILENT)


@given(m=unit(), r=unit(), a=unit(), required=st.booleans(), bits=st.sampled_from([0, int(Status.ZERO_VECTOR)]))
def test_a_relevant_store_is_left_to_the_equations(m, r, a, required, bits):
    decision = LAYERS["reference"](*tensors(m, r, a))
    guarded = guard(decision, torch.tensor(bits), require_relevant=required)
    assert guarded.status.item() == bits
    assert_identical(dataclasses.replace(guarded, status=decision.status), decision)


@given(m=unit(), r=unit(), a=unit(), required=st.booleans(), others=st.integers(0, 31))
def test_a_fault_opts_out(m, r, a, required, others):
    decision = LAYERS["exact range"](*tensors(m, r, a))
    for fault in (Status.NOT_FINITE, Status.OUT_OF_RANGE):
        status = torch.tensor(others | int(fault), dtype=torch.int32)
        assert guard(decision, status, require_relevant=required).action.item() == Action.OPT_OUT


def test_the_guard_changes_action_and_status_only():
    decision = LAYERS["exact range"](*tensors([1.0, 1.0], [1.0, 1.0], [0.0, 0.9]))
    guarded = guard(decision, torch.tensor(int(NONE)), require_relevant=True)
    assert guarded.action.tolist() == [Action.SILENT, Action.OPT_OUT]
    assert (guarded.action.dtype, guarded.status.dtype) == (torch.int8, torch.int32)
    assert_identical(dataclasses.replace(guarded, action=decision.action, status=decision.status), decision)


def test_the_guard_keeps_the_decisions_own_status():
    decision = LAYERS["exact range"](*tensors(math.nan, 0.5, 0.5))
    guarded = guard(decision, torch.tensor(int(NONE)), require_relevant=False)
    assert guarded.status.item() == NONE | Status.NOT_FINITE
    assert guarded.action.item() == Action.OPT_OUT


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_top_tier_begins_at_070(dtype):
    """0.7 itself belongs to it, in float32 as well; what is visibly less does not."""
    gate = EmbeddingGate()
    at = torch.tensor(0.7, dtype=dtype)
    below = at - 1e-5
    query, memories = torch.tensor([1.0, 0.0], dtype=dtype), torch.tensor([[0.2, 1.0]], dtype=dtype)
    assert gate(query, memories, at)[1].action.item() == Action.OPT_OUT
    assert gate(query, memories, below)[1].action.item() == Action.SILENT


# --- the composition -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.bfloat16])
def test_it_is_signals_layer_and_guard(dtype, required):
    layer, extractor = LAYERS["reference"], SignalExtractor(LiteralConflictDetector())
    texts = ["It is open.", "It is not open.", "Yes.", "No."] * 50
    arguments = store(50, dtype=dtype) | {
        "stance": extractor.detector.features(texts)[torch.arange(200).reshape(50, 4)]
    }
    signals, decision = EmbeddingGate(layer, extractor, require_relevant=required)(**arguments)
    expected = extractor(**arguments)
    assert expected.conflict_rate.any()
    assert_identical(signals, expected)
    plain = layer(expected.relevance, expected.reliability, expected.risk)
    assert_identical(decision, guard(plain, expected.status, require_relevant=required))


def test_require_relevant_is_the_default():
    query, memories = torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 1.0]])
    signals, strict = EmbeddingGate()(query, memories, torch.tensor(0.2))
    _, free = EmbeddingGate(require_relevant=False)(query, memories, torch.tensor(0.2))
    plain = MemoryDecisionLayer()(signals.relevance, signals.reliability, signals.risk)
    assert strict.action.item() == Action.SILENT
    assert free.action.item() == plain.action.item() < Action.SILENT
    assert strict.status.item() == free.status.item() == IRRELEVANT


@pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
@pytest.mark.parametrize("required", [True, False])
@given(risk=unit(), count=st.integers(1, 5))
def test_an_empty_store_is_never_injected(layer, required, risk, count):
    query, memories = torch.ones(3), torch.full((count, 3), math.nan)
    mask = torch.zeros(count, dtype=torch.bool)
    signals, decision = EmbeddingGate(layer, require_relevant=required)(query, memories, torch.tensor(risk), mask=mask)
    assert decision.action.item() in (Action.SILENT, Action.OPT_OUT)
    assert decision.status.item() == signals.status.item() == NONE
    assert (decision.relevance.item(), decision.reliability.item()) == (0, 0.5)


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("where", ["query", "memories", "risk"])
@pytest.mark.parametrize("masked", [True, False])
def test_a_broken_row_opts_out_and_touches_no_other(bad, where, masked):
    """With scalars of 0 and a risk of 1, as the controller has them; also where the rest of the store is empty."""
    gate, arguments = EmbeddingGate(LAYERS["reference"], require_relevant=False), store(3, dtype=torch.float32)
    arguments["mask"][1] = torch.tensor([True, not masked, not masked, not masked])
    clean = gate(**arguments)[1]
    arguments[where].reshape(3, -1)[1, 0] = bad
    _, decision = gate(**arguments)
    assert decision.action[1] == Action.OPT_OUT
    assert decision.status[1].item() & INVALID
    assert [t[1].item() for n, t in fields(decision).items() if n not in ("action", "status", "risk")] == [0] * 7
    assert decision.risk[1] == 1
    for name, tensor in fields(decision).items():
        assert torch.equal(tensor[[0, 2]], getattr(clean, name)[[0, 2]]), name


def test_a_masked_fault_is_none():
    gate, arguments = EmbeddingGate(), store(20, dtype=torch.float32)
    arguments["memories"][~arguments["mask"]] = math.nan
    assert not (gate(**arguments)[1].status & INVALID).any()


@pytest.mark.parametrize("risk", [-0.1, 1.1])
def test_risk_out_of_range_opts_out(risk):
    signals, decision = EmbeddingGate()(torch.ones(2), torch.ones(1, 2), torch.tensor(risk))
    assert signals.status.item() == 0
    assert (decision.action.item(), decision.status.item()) == (Action.OPT_OUT, Status.OUT_OF_RANGE)


def test_a_perfect_match_is_in_range():
    """Cosines of 1.0000001 are no fault."""
    query = torch.randn(500, 384, generator=torch.Generator().manual_seed(0))
    signals, decision = EmbeddingGate()(query, query.unsqueeze(1), torch.full((500,), 0.2))
    assert (signals.relevance_raw > 1).any()
    assert not decision.status.any()


def test_errors_are_those_of_the_extractor():
    with pytest.raises(ValueError, match=r"risk must broadcast to \* = \(3,\)"):
        EmbeddingGate()(**{**store(3), "risk": torch.ones(2)})


# --- graphs: what the contract of all modules leaves out -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_actions_are_the_same_at_the_edges():
    """Empty stores, faults and a risk of exactly 0.7 through the inductor."""
    torch._dynamo.reset()
    gate, arguments = EmbeddingGate(LAYERS["reference"]), store(64, dtype=torch.float32)
    arguments["mask"][:8] = False
    arguments["risk"][:16:2] = 0.7
    arguments["memories"][8:16] -= 1.0
    arguments["query"][20, 0] = math.nan
    arguments["memories"][21, 0, 0] = math.inf
    signals, decision = torch.compile(gate, fullgraph=True)(**arguments)
    expected_signals, expected = gate(**arguments)
    torch._dynamo.reset()
    assert {0, 2, 3} <= set(expected.action.tolist())
    assert torch.equal(decision.action, expected.action)
    assert torch.equal(decision.status, expected.status)
    assert torch.equal(signals.relevant, expected_signals.relevant)
    torch.testing.assert_close(decision.gated_confidence, expected.gated_confidence, rtol=0, atol=2e-6)
