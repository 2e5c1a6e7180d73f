"""Modules, functions and lines stay small enough for one reader to hold in mind."""

from __future__ import annotations

import ast

from tests.tidy.source import Module, modules_of_everything, parse

# A module beyond this holds more than one responsibility; a class is never cut to fit it.
MODULE_LINES = 800
FUNCTION_LINES = 60
LINE_CHARACTERS = 100


def long_module(module: Module) -> list[str]:
    lines = len(module.text.splitlines())
    return [f"{module.path}: {lines} lines, limit {MODULE_LINES}"] if lines > MODULE_LINES else []


def long_functions(module: Module) -> list[str]:
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                where = f"{module.path}:{node.lineno}"
                found.append(f"{where}: {node.name} has {lines} lines, limit {FUNCTION_LINES}")
    return found


def long_lines(module: Module) -> list[str]:
    return [
        f"{module.path}:{number}: {len(line)} characters, limit {LINE_CHARACTERS}"
        for number, line in enumerate(module.text.splitlines(), start=1)
        if len(line) > LINE_CHARACTERS
    ]


def test_modules_are_short() -> None:
    found = [line for module in modules_of_everything() for line in long_module(module)]
    assert not found, "\n".join(found)


def test_functions_are_short() -> None:
    found = [line for module in modules_of_everything() for line in long_functions(module)]
    assert not found, "\n".join(found)


def test_lines_are_short() -> None:
    found = [line for module in modules_of_everything() for line in long_lines(module)]
    assert not found, "\n".join(found)


def test_a_long_module_is_caught() -> None:
    assert long_module(parse("src/edl/a.py", "x = 1\n" * MODULE_LINES)) == []
    assert len(long_module(parse("src/edl/a.py", "x = 1\n" * (MODULE_LINES + 1)))) == 1


def test_a_long_function_is_caught_also_in_a_class() -> None:
    body = "        x = 1\n" * FUNCTION_LINES
    fits = f"class A:\n    def f(self):\n{body.removeprefix('        x = 1' + chr(10))}"
    assert long_functions(parse("src/edl/a.py", fits)) == []
    assert len(long_functions(parse("src/edl/a.py", f"class A:\n    def f(self):\n{body}"))) == 1
    assert len(long_functions(parse("src/edl/a.py", f"async def f():\n{body}"))) == 1


def test_a_long_line_is_caught() -> None:
    assert long_lines(parse("src/edl/a.py", "#" * LINE_CHARACTERS)) == []
    assert len(long_lines(parse("src/edl/a.py", "#" * (LINE_CHARACTERS + 1)))) == 1
