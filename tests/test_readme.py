"""What README.md shows is what happens: its code runs, and prints what it says."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest

from mdl_torch.cli import COMMANDS
from mdl_torch.data import read_text

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_python_runs_and_prints_what_it_says() -> None:
    """Every block runs in one session; the ``text`` block that follows one is what it prints."""
    followed = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", README, re.DOTALL | re.MULTILINE)
    assert len(followed) >= 3
    assert any(said for _, said in followed)
    session: dict[str, object] = {}
    for code, said in followed:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), session)
        assert not said or printed.getvalue() == said


@pytest.mark.parametrize("line", [line for block in blocks("bash") for line in block.splitlines() if line.strip()])
def test_the_commands_exist(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "bash":
        assert (Path(__file__).parents[1] / words[1]).is_file()
    else:
        assert words[0] == "mdl"
        assert any(" ".join(words[1:]).startswith(command) for command in COMMANDS)


def test_the_input_line_is_one() -> None:
    for line in blocks("json"):
        jsonschema.validate(json.loads(line), json.loads(read_text("input.schema.json")))
