"""The shape of the package: which way imports run, what is public, and what ``import mdl_torch`` loads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import mdl_torch

ROOT = Path(mdl_torch.__file__).parent

ORDER = (
    "errors",
    "data",
    "outputs",
    "plain",
    "config",
    "words",
    "lexicon",
    "superlatives",
    "reading",
    "stance",
    "risk",
    "cache",
    "encoder",
    "stage",
    "encoding",
    "subspace",
    "fusion",
    "head",
    "policy",
    "calibration",
    "certificate",
    "layer",
    "signals",
    "embedding_gate",
    "audit",
    "enclosure",
    "bounds",
    "certify",
    "figures",
    "sensitivity",
    "retrieval",
    "records",
    "gate",
    "verify",
    "stability",
    "certificate_card",
    "generation",
    "generation.forms",
    "generation.prompts",
    "generation.backend",
    "generation.thinking",
    "generation.draws",
    "generation.weights",
    "generation.local",
    "generation.http",
    "generation.scripted",
    "generation.build",
    "evaluation",
    "evaluation.questions",
    "evaluation.stores",
    "evaluation.splits",
    "evaluation.refusals",
    "evaluation.scoring",
    "evaluation.judge",
    "evaluation.oracle",
    "evaluation.statistics",
    "evaluation.agreement",
    "evaluation.controllers",
    "evaluation.systems.base",
    "evaluation.systems.plain",
    "evaluation.systems.crag",
    "evaluation.systems.self_rag",
    "evaluation.systems.learned",
    "evaluation.systems.consensus",
    "evaluation.systems",
    "evaluation.experiment",
    "evaluation.journal",
    "evaluation.environment",
    "evaluation.fitting",
    "evaluation.runner",
    "evaluation.results",
    "evaluation.tables",
    "evaluation.report",
    "analysis",
    "analysis.samples",
    "analysis.study",
    "analysis.accuracy",
    "analysis.complementarity",
    "analysis.ablation",
    "analysis.supervised",
    "analysis.information",
    "analysis.safety",
    "analysis.gating",
    "analysis.selective",
    "analysis.plots",
    "analysis.cases",
    "analysis.latency",
    "analysis.everything",
    "score",
    "explain",
    "benchmarks",
    "benchmarks.conflicts",
    "cli",
)
"""A module may import those above it, never one below. One query's way through the files is the same order."""

PUBLIC = {
    "Action",
    "Calibration",
    "Certificate",
    "Decision",
    "MDLConfig",
    "MemoryDecisionLayer",
    "MemoryGate",
    "Signals",
    "Status",
}


def files() -> dict[str, Path]:
    """Every module of the package but its front door, by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(p for p in parts if p != "__init__")
        if name and parts[-1] != "__main__":
            found[name] = path
    return found


def imports(path: Path) -> set[str]:
    """What a file imports of the package, wherever in it: at the top, in a function, for type checking.

    By the modules' dotted names; an empty one is the front door, ``mdl_torch`` itself.
    """
    names = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    inner = [name.removeprefix("mdl_torch").removeprefix(".") for name in names if name.split(".")[0] == "mdl_torch"]
    longest_first = sorted(files(), key=len, reverse=True)
    return {next((m for m in longest_first if f"{name}.".startswith(f"{m}.")), "") for name in inner}


def test_every_module_has_its_place():
    assert set(files()) == set(ORDER), "give the new module its place in ORDER, and take out what is gone"
    assert len(set(ORDER)) == len(ORDER)


@pytest.mark.parametrize("name", files())
def test_the_architecture_names_every_module(name):
    """ARCHITECTURE.md tells a newcomer what each file is for."""
    parts = name.split(".")
    file = f"{parts[0]}/" if (ROOT / parts[0]).is_dir() else f"{parts[0]}.py"
    assert file in (ROOT.parent / "ARCHITECTURE.md").read_text("utf-8")


@pytest.mark.parametrize("name", files())
def test_imports_run_one_way(name):
    """Nothing imports what comes after it; the front door is for users, the command line, and who needs the version."""
    for imported in imports(files()[name]):
        if imported == "":
            assert name in ("certify", "cli"), (
                f"{name} imports from the front door; import from the module that defines it"
            )
        else:
            assert ORDER.index(imported) < ORDER.index(name), f"{name} must not import {imported}"


def test_public_names():
    assert set(mdl_torch.__all__) == PUBLIC
    assert list(mdl_torch.__all__) == sorted(mdl_torch.__all__)
    for name in PUBLIC:
        assert getattr(mdl_torch, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="MemoryGte"):
        _ = mdl_torch.MemoryGte


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a statement loads in a fresh interpreter, without torch, NumPy and Python's own."""
    code = f"""
import json, sys
import numpy, torch, torch.export
before = set(sys.modules)
{statement}
print(json.dumps(sorted({{name.split(".")[0] for name in set(sys.modules) - before}})))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(out.stdout)) - sys.stdlib_module_names - {"torch", "numpy"}


def test_import_loads_torch_and_numpy_only():
    assert loaded_by("import mdl_torch") == {"mdl_torch"}


def test_a_layer_decides_with_torch_and_numpy_only():
    statement = "import mdl_torch; mdl_torch.MemoryDecisionLayer()(*torch.rand(3, 2))"
    assert loaded_by(statement) == {"mdl_torch"}


def test_the_wheel_is_typed():
    assert (ROOT / "py.typed").is_file()
