"""Every command and every call in docs/operating.md exists as it is written there."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path

import pytest

from edl.cli.main import make_parser
from edl.client import Job, run

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
COMMANDS = [
    line for kind, block in BLOCKS if not kind for line in block.splitlines() if line.strip()
]
PYTHON = [block for kind, block in BLOCKS if kind == "python"]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    assert program == "edl"
    assert callable(make_parser().parse_args(arguments).command)


def calls() -> list[ast.Call]:
    return [node for block in PYTHON for node in ast.walk(ast.parse(block))
            if isinstance(node, ast.Call)]  # fmt: skip


@pytest.mark.parametrize("call", calls(), ids=ast.unparse)
def test_a_call_fits_its_function(call: ast.Call) -> None:
    names = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    places = [None] * len(call.args)
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "job":
        inspect.signature(getattr(Job, call.func.attr)).bind(None, *places, **names)
    elif isinstance(call.func, ast.Name) and call.func.id == "run":
        inspect.signature(run).bind(*places, **names)
    else:
        assert ast.unparse(call.func) in ("print", "Job")


def test_the_page_has_a_recipe_for_each_operation() -> None:
    told = "\n".join(COMMANDS)
    for word in ("scale-out", "scale-in", "migrate", "profile", "--stragglers", "--for", "--warm"):
        assert word in told
    assert len(calls()) >= 8
