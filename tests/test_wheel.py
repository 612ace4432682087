"""What a user gets: the built wheel, installed into a fresh environment and used from another folder."""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {"PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution so that both are known to be whole."""
    out = tmp_path_factory.mktemp("dist")
    # .venv holds the pinned build tool; elsewhere `build` fetches one.
    isolation = ["--no-isolation"] if importlib.util.find_spec("hatchling") else []
    run(sys.executable, "-m", "build", *isolation, "--outdir", out, project_root, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel alone, its dependencies borrowed from the one that runs the tests."""
    environment = tmp_path_factory.mktemp("fresh environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=environment)
    site_packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=environment).strip()
    # A plain path in a .pth file adds that folder only: the editable install there is not followed.
    (Path(site_packages) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def test_wheel_holds_every_file_of_the_package(wheel: Path, project_root: Path) -> None:
    package = project_root / "mdl_torch"
    expected = {
        path.relative_to(project_root).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    assert "mdl_torch/py.typed" in expected
    assert "mdl_torch/data/sample.jsonl" in expected
    in_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("mdl_torch/")}
    assert in_wheel == expected


def test_wheel_carries_the_licences(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for notice in ("LICENSE", "NOTICE"):
        assert any(name.endswith(f".dist-info/licenses/{notice}") for name in names)


def test_installed_package_is_the_wheels(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "bin" / "python", "-c", "import mdl_torch; print(mdl_torch.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed)


def test_command_line_scores_the_sample(installed: Path, tmp_path: Path) -> None:
    mdl = installed / "bin" / "mdl"
    assert "0.1.0" in run(mdl, "--version", cwd=tmp_path)
    (sample,) = installed.rglob("mdl_torch/data/sample.jsonl")
    run(mdl, "score", sample, "-o", tmp_path / "decisions.jsonl", cwd=tmp_path)
    decisions = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert [line["id"] for line in decisions] == [json.loads(line)["id"] for line in sample.read_text().splitlines()]
    assert {line["action"] for line in decisions} == {"active", "supp", "silent", "opt_out"}
