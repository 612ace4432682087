"""One contract that every public module keeps. A new module joins by an entry in ``CASES``; without, a test fails.

A module whose configuration changes its shapes has several entries.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.export import Dim, ShapesCollection
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

import mdl_torch
from mdl_torch.config import PRESETS
from mdl_torch.embedding_gate import EmbeddingGate
from mdl_torch.encoding import ValueEncoder
from mdl_torch.fusion import MetaFusion
from mdl_torch.head import ConfidenceHead
from mdl_torch.layer import MemoryDecisionLayer
from mdl_torch.policy import ActionPolicy
from mdl_torch.signals import SignalExtractor
from mdl_torch.stage import Stage
from mdl_torch.stance import LexicalConflictDetector, LiteralConflictDetector
from mdl_torch.subspace import SubspaceProjection

# --- the register ----------------------------------------------------------------------------------------------------


@dataclass
class Draw:
    """Example inputs of one leading shape, number of memories and dtype, the same every time."""

    lead: tuple[int, ...]
    memories: int = 4
    dtype: torch.dtype = torch.float64
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def unit(self, *trailing: int) -> Tensor:
        """Uniform in [0, 1], of shape ``(*lead, *trailing)``."""
        return torch.rand((*self.lead, *trailing), generator=self.generator, dtype=torch.float64).to(self.dtype)

    def normal(self, *trailing: int) -> Tensor:
        """Normal, of shape ``(*lead, *trailing)``."""
        return torch.randn((*self.lead, *trailing), generator=self.generator, dtype=torch.float64).to(self.dtype)

    def stance(self, detector):
        """A detector's features of stores that agree and conflict, ``(*lead, K)``."""
        texts = ["Backups are enabled.", "Backups are disabled.", "Backups are not enabled.", "Yes, they are.", ""]
        shape = (*self.lead, self.memories)
        count = torch.Size(shape).numel()
        features = detector.features(list(islice(cycle(texts), count)))
        return tree_map(lambda t: t.reshape(*shape, *t.shape[1:]), features)

    def store(self) -> dict[str, Any]:
        """Query, memories, risk, mask and stance: embeddings of 8 dimensions with something in common."""
        memories = self.unit(self.memories, 8)
        mask = torch.rand((*self.lead, self.memories), generator=self.generator) > 0.2
        stance = self.stance(LexicalConflictDetector())
        return {"query": self.unit(8), "memories": memories, "risk": self.unit(), "mask": mask, "stance": stance}


@dataclass(frozen=True)
class Case:
    """How a module is built and called.

    Attributes:
        build: Makes a module.
        inputs: Keyword arguments of ``forward``; every tensor begins with the leading shape.
        state: The names that a saved state has; they are part of the file format.
        promotes: Whether half precision computes in and returns float32 (else outputs have the dtype of the inputs).
        floats: Whether it takes floating-point inputs at all.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[Draw], dict[str, Any]]
    state: tuple[str, ...] = ()
    promotes: bool = False
    floats: bool = True


LAYER_STATE = (
    "encoder.centres",
    "encoder.sigma",
    "projection.basis",
    "projection.gains",
    "projection.leakage",
    "fusion.coefficients",
    "fusion.bias",
    "head.norm_range",
    "head.gate",
    "policy.thresholds",
)


def signals(draw: Draw) -> dict[str, Tensor]:
    return {"relevance": draw.unit(), "reliability": draw.unit(), "risk": draw.unit()}


def preset(name: str) -> Callable[[], MemoryDecisionLayer]:
    return lambda: MemoryDecisionLayer.from_preset(name)


CASES: dict[str, Case] = {
    "ValueEncoder": Case(ValueEncoder, lambda d: {"scalars": d.unit()}, ("centres", "sigma")),
    "SubspaceProjection": Case(
        SubspaceProjection, lambda d: {"vectors": d.normal(3, 16)}, ("basis", "gains", "leakage")
    ),
    "SubspaceProjection-ensemble": Case(
        lambda: SubspaceProjection(PRESETS["ensemble"]),
        lambda d: {"vectors": d.normal(1, 3, 16)},
        ("basis", "gains", "leakage"),
    ),
    "MetaFusion": Case(MetaFusion, lambda d: {"channels": d.normal(3, 16)}, ("coefficients", "bias")),
    "ConfidenceHead": Case(
        lambda: ConfidenceHead(norm_range=(1.0, 3.0)),
        lambda d: {"relevance_vector": d.unit(16), "meta": d.unit(16)},
        ("norm_range", "gate"),
    ),
    "ConfidenceHead-ensemble": Case(
        lambda: ConfidenceHead(norm_range=((1.0, 3.0), (1.5, 2.5))),
        lambda d: {"relevance_vector": d.unit(1, 16), "meta": d.unit(2, 16)},
        ("norm_range", "gate"),
    ),
    "ActionPolicy": Case(ActionPolicy, lambda d: {"gated_confidence": d.unit()}, ("thresholds",), promotes=True),
    **{f"MemoryDecisionLayer-{name}": Case(preset(name), signals, LAYER_STATE, promotes=True) for name in PRESETS},
    "LexicalConflictDetector": Case(
        LexicalConflictDetector, lambda d: {"features": d.stance(LexicalConflictDetector())}, floats=False
    ),
    "LiteralConflictDetector": Case(
        LiteralConflictDetector, lambda d: {"features": d.stance(LiteralConflictDetector())}, floats=False
    ),
    "SignalExtractor": Case(SignalExtractor, Draw.store, ("relevant_above",), promotes=True),
    **{
        f"EmbeddingGate-{name}": Case(
            lambda name=name: EmbeddingGate(MemoryDecisionLayer.from_preset(name)),
            Draw.store,
            (*(f"layer.{name}" for name in LAYER_STATE), "extractor.relevant_above"),
            promotes=True,
        )
        for name in ("paper", "ensemble")
    },
}

BASES = {Stage}
"""Concrete classes without a forward of their own."""


def modules_of_the_package() -> set[type[nn.Module]]:
    """Every public, concrete nn.Module that a module of the package defines."""
    found = set()
    for info in pkgutil.walk_packages(mdl_torch.__path__, "mdl_torch."):
        if info.name.endswith("__main__"):
            continue
        for name, member in inspect.getmembers(importlib.import_module(info.name), inspect.isclass):
            public = issubclass(member, nn.Module) and member.__module__ == info.name and not name.startswith("_")
            if public and not inspect.isabstract(member):
                found.add(member)
    return found - BASES


def test_every_public_module_has_an_entry():
    assert {m.__name__ for m in modules_of_the_package()} == {type(case.build()).__name__ for case in CASES.values()}


def test_every_entry_is_named_after_its_module():
    for name, case in CASES.items():
        assert name.split("-")[0] == type(case.build()).__name__


def every(applies: Callable[[Case], bool] = lambda case: True) -> dict[str, Any]:
    """Arguments of a fixture that runs over the cases to which a rule applies."""
    return {"params": [name for name, case in CASES.items() if applies(case)]}


@pytest.fixture(**every())
def case(request):
    return CASES[request.param]


@pytest.fixture(**every(lambda case: case.floats))
def float_case(request):
    return CASES[request.param]


@pytest.fixture(**every(lambda case: case.promotes))
def promoting_case(request):
    """A module that decides, and so does not leave precision to its caller as the inner stages do."""
    return CASES[request.param]


@pytest.fixture(**every(lambda case: case.promotes or not case.floats))
def sealed_case(request):
    """A module that autocast cannot reach."""
    return CASES[request.param]


# --- helpers ---------------------------------------------------------------------------------------------------------


def agree(got, expected, atol: float = 1e-12) -> None:
    """Two outputs have the same structure, dtypes and shapes, equal integers and close floats."""
    assert tree_structure(got) == tree_structure(expected)
    for a, b in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=atol if b.is_floating_point() else 0, equal_nan=True)


def same(got, expected) -> None:
    """Bit for bit."""
    agree(got, expected, atol=0)


def submodule_attributes(module: nn.Module):
    """Every plain attribute of a module and of those inside it, one level into containers."""
    for part in module.modules():
        for name, value in vars(part).items():
            if name.startswith("_") and name not in ("_cache",):
                continue  # torch's own registers
            inner = (
                value if isinstance(value, list | tuple | set) else value.values() if isinstance(value, dict) else ()
            )
            for item in (value, *inner):
                yield f"{type(part).__name__}.{name}", item


# --- the contract ----------------------------------------------------------------------------------------------------


def test_docstring_has_a_runnable_example():
    for module in modules_of_the_package():
        text = inspect.getdoc(module) or ""
        assert "Example:" in text, module
        assert ">>>" in text, module


def test_buffers_only(case):
    """No parameters, and no tensor outside of the buffers: those would not move, be saved or be copied."""
    module = case.build()
    assert not list(module.named_parameters())
    assert not [name for name, value in submodule_attributes(module) if isinstance(value, Tensor)]


def test_state_round_trip(case):
    module, other = case.build(), case.build()
    assert tuple(module.state_dict()) == case.state
    for buffer in other.buffers():
        buffer.zero_()
    inputs = case.inputs(Draw((3,)))
    expected = module(**inputs)
    other.load_state_dict(module.state_dict(), strict=True)
    same(other(**inputs), expected)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        other.load_state_dict({**module.state_dict(), "unknown": torch.zeros(1)}, strict=True)


def test_copies(case):
    """By deepcopy, and by pickle to another process."""
    module = case.build()
    inputs = case.inputs(Draw((3,)))
    expected = module(**inputs)
    twin = copy.deepcopy(module)
    same(twin(**inputs), expected)
    same(pickle.loads(pickle.dumps(module))(**inputs), expected)
    for buffer in twin.buffers():
        buffer.zero_()
    same(module(**inputs), expected)


def test_it_is_pure(case):
    """The inputs stay as they were, and a second call gives the same."""
    module = case.build()
    inputs = case.inputs(Draw((3,)))
    before = tree_map(lambda t: t.clone(), inputs)
    same(module(**inputs), module(**inputs))
    same(inputs, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_dtypes_are_kept(float_case, dtype):
    out = float_case.build()(**float_case.inputs(Draw((3,), dtype=dtype)))
    assert {t.dtype for t in tree_leaves(out) if t.is_floating_point()} <= {dtype}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(promoting_case, dtype):
    case = promoting_case
    inputs = case.inputs(Draw((5,), dtype=dtype))
    single = tree_map(lambda t: t.float() if t.is_floating_point() else t, inputs)
    same(case.build()(**inputs), case.build()(**single))


def test_casting_the_module_changes_nothing(case):
    inputs = case.inputs(Draw((5,), dtype=torch.float32))
    expected = case.build()(**inputs)
    for cast in (torch.float16, torch.bfloat16):
        same(case.build().to(cast)(**inputs), expected)


def test_autocast_changes_nothing(sealed_case):
    case = sealed_case
    inputs = case.inputs(Draw((5,), dtype=torch.float32))
    expected = case.build()(**inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(case.build()(**inputs), expected)


@pytest.mark.parametrize("lead", [(), (0,), (1,), (2, 3)])
def test_leading_shapes(case, lead):
    out = case.build()(**case.inputs(Draw(lead)))
    for leaf in tree_leaves(out):
        assert tuple(leaf.shape[: len(lead)]) == lead


def test_batch_equals_loop(case):
    module, inputs = case.build(), case.inputs(Draw((4,)))
    rows = [module(**tree_map(lambda t, i=i: t[i], inputs)) for i in range(4)]
    agree(tree_map(lambda *ts: torch.stack(ts), *rows), module(**inputs))


def test_batch_equals_vmap(case):
    module, inputs = case.build(), case.inputs(Draw((4, 2)))
    one = torch.func.vmap(lambda kwargs: module(**kwargs))
    for mapped in (one, torch.func.vmap(one)):
        agree(mapped(inputs), module(**inputs))


def test_meta_forward(case):
    """Shapes and dtypes come out without a value: nothing on the way asked for one."""
    expected = case.build()(**case.inputs(Draw((3,))))
    inputs = tree_map(lambda t: t.to("meta"), case.inputs(Draw((3,))))
    out = case.build().to("meta")(**inputs)
    assert tree_structure(out) == tree_structure(expected)
    for leaf, real in zip(tree_leaves(out), tree_leaves(expected), strict=True):
        assert (leaf.device.type, leaf.shape, leaf.dtype) == ("meta", real.shape, real.dtype)


def test_fake_forward(case):
    """The same with fake tensors, which also refuse a factory on the wrong device."""
    module, inputs = case.build(), case.inputs(Draw((3,)))
    expected = module(**inputs)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = module(**tree_map(mode.from_tensor, inputs))
    for leaf, real in zip(tree_leaves(out), tree_leaves(expected), strict=True):
        assert isinstance(leaf, FakeTensor)
        assert (leaf.shape, leaf.dtype) == (real.shape, real.dtype)


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    "leads", [((3,), (5,)), pytest.param(((2, 3), (4, 2)), marks=pytest.mark.slow)], ids=["batch", "grid"]
)
def test_no_graph_breaks(case, leads):
    """One graph, also when the batch changes: fullgraph raises at the first break."""
    module = case.build()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for lead in leads:
        inputs = case.inputs(Draw(lead))
        same(compiled(**inputs), module(**inputs))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_compiled_equals_eager(case, dtype, atol):
    module = case.build()
    inputs = case.inputs(Draw((5,), dtype=dtype))
    agree(torch.compile(module, fullgraph=True)(**inputs), module(**inputs), atol)


def test_export_equals_eager(case):
    """With every size dynamic that differs between two draws: the batch, and the number of memories; from 2 on.

    The output is the same dataclass. A size that the code turned into a constant raises.
    """
    small, large = (case.inputs(Draw((batch,), memories)) for batch, memories in ((3, 4), (5, 6)))
    shapes = ShapesCollection()
    for a, b in zip(tree_leaves(small), tree_leaves(large), strict=True):
        shapes[a] = {i: Dim.DYNAMIC for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n}
    module = case.build()
    run = torch.export.export(module, (), small, dynamic_shapes=shapes).module()
    for batch, memories in ((2, 2), (3, 4), (7, 9)):
        inputs = case.inputs(Draw((batch,), memories))
        out = run(**inputs)
        assert type(out) is type(module(**inputs))
        agree(out, module(**inputs))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_cuda_equals_cpu_without_a_sync(case, dtype, atol):
    inputs = case.inputs(Draw((64,), dtype=dtype))
    module = case.build().cuda()
    on_device = tree_map(lambda t: t.cuda(), inputs)
    module(**on_device)  # the first call may load kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = module(**on_device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    agree(tree_map(lambda t: t.cpu(), out), case.build()(**inputs), atol)
