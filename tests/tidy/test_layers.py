"""Imports point down only, pure rooms stay pure, and a third-party library has one room.

A room that is in no layer fails, so that a new one is placed by decision and not by accident.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.tidy.source import Module, modules_of_edl, parse

# From the top down. Rooms on one line are neighbours, which never import each other.
LAYERS = [
    ["__main__"],
    ["cli"],
    ["scheduler", "simulator"],
    ["client"],
    ["launch", "plain", "torch", "tensorflow"],
    ["plugin"],
    ["data"],
    ["collective"],
    ["runtime"],
    ["store"],
    ["wire"],
    ["protocol", "policy"],
    ["config"],
    ["types"],
    ["errors", "failpoints", "redaction"],
    ["__init__"],
]
HEIGHT = {room: -depth for depth, rooms in enumerate(LAYERS) for room in rooms}

PURE = ("protocol/", "policy/", "simulator/engine.py")
# Clocks, sockets, threads, processes, the environment, and randomness that nobody seeded.
IMPURE = {
    "_thread", "asyncio", "concurrent", "http", "logging", "multiprocessing", "os", "queue",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver", "ssl",
    "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
IMPURE_BUILTINS = {"input", "open", "print"}

# A library, and the only places that may import it. The longest name that fits decides.
ROOMS_OF_LIBRARIES = {
    "torch.distributed": ("collective/",),
    # That it is imported only when it is needed is checked by tests/integration/test_imports.py.
    "torch": ("torch/", "collective/", "plugin/buckets.py"),
    "tensorflow": ("tensorflow/",),
    "keras": ("tensorflow/",),
    "numpy": ("torch/", "tensorflow/", "plain/", "plugin/", "collective/", "simulator/", "data/"),
    "msgspec": ("wire/", "runtime/story.py", "plugin/tree.py"),
    "fsspec": ("runtime/", "data/"),
    "pyarrow": ("data/parquet.py",),
    "kazoo": ("store/znodes.py",),
    "ray": ("launch/ray.py",),
    "rich": ("cli/",),
    "matplotlib": ("simulator/", "cli/picture.py"),
}


@dataclass(frozen=True, slots=True)
class Import:
    line: int
    name: str  # dotted, from the root: `edl.protocol.leader`, `torch.distributed`


def imports_of(module: Module) -> Iterator[Import]:
    """Every import, also those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(module, node)
            yield from (Import(node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            yield Import(node.lineno, "torch.distributed")
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            literal = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            yield from (Import(node.lineno, str(name)) for name in literal)


def absolute_base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parents = ["edl", *module.inside_edl.split("/")][: -node.level]
    return ".".join([*parents, node.module] if node.module else parents)


def called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def room_of(module: Module) -> str:
    return module.inside_edl.split("/")[0].removesuffix(".py")


def room_imported(name: str) -> str | None:
    """The room of EDL that a dotted name lies in; None for other people's modules."""
    parts = name.split(".")
    if parts[0] != "edl":
        return None
    # `from edl import __version__` is the package itself, `from edl import client` a room.
    inner = parts[1] if len(parts) > 1 else "__init__"
    return "__init__" if inner in {"__version__", "*"} else inner


def upward_imports(module: Module) -> list[str]:
    """What `module` imports from its own height or from above."""
    here = room_of(module)
    if here not in HEIGHT:
        return [f"{module.path}: room {here!r} is in no layer; place it in LAYERS"]
    found = []
    for imported in imports_of(module):
        there = room_imported(imported.name)
        if there is None or there == here:
            continue
        if there not in HEIGHT:
            found.append(f"{module.path}:{imported.line}: {imported.name} is in no layer")
        elif HEIGHT[there] >= HEIGHT[here]:
            relation = "its neighbour" if HEIGHT[there] == HEIGHT[here] else "above it"
            found.append(f"{module.path}:{imported.line}: {here} imports {there}, {relation}")
    return found


def impurities(module: Module) -> list[str]:
    """What a pure room uses that is neither its argument nor a constant."""
    if not module.inside_edl.startswith(PURE):
        return []
    found = []
    for imported in imports_of(module):
        top = imported.name.split(".")[0]
        if top in IMPURE:
            found.append(f"{module.path}:{imported.line}: a pure room imports {top}")
        elif top != "edl" and top not in sys.stdlib_module_names:
            found.append(f"{module.path}:{imported.line}: a pure room imports {top}, not stdlib")
        elif top == "random" and imported.name not in {"random", "random.Random"}:
            found.append(f"{module.path}:{imported.line}: {imported.name} is unseeded randomness")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random":
            if node.attr != "Random":
                found.append(f"{module.path}:{node.lineno}: random.{node.attr} has hidden state")
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in {"Random", "random.Random"} and not node.args:
                found.append(f"{module.path}:{node.lineno}: Random() without a seed")
            elif name in IMPURE_BUILTINS:
                found.append(f"{module.path}:{node.lineno}: a pure room calls {name}()")
    return found


def strayed_libraries(module: Module) -> list[str]:
    """Third-party imports outside the room that keeps the library."""
    found = []
    for imported in imports_of(module):
        top = imported.name.split(".")[0]
        if top == "edl" or top in sys.stdlib_module_names:
            continue
        fitting = [
            name for name in ROOMS_OF_LIBRARIES if f"{imported.name}.".startswith(f"{name}.")
        ]
        if not fitting:
            found.append(f"{module.path}:{imported.line}: {top} has no room in ROOMS_OF_LIBRARIES")
        elif not module.inside_edl.startswith(rooms := ROOMS_OF_LIBRARIES[max(fitting, key=len)]):
            allowed = ", ".join(rooms)
            found.append(f"{module.path}:{imported.line}: {imported.name} belongs in {allowed}")
    return found


def test_imports_point_down_only() -> None:
    found = [line for module in modules_of_edl() for line in upward_imports(module)]
    assert not found, "\n".join(found)


def test_pure_rooms_are_pure() -> None:
    found = [line for module in modules_of_edl() for line in impurities(module)]
    assert not found, "\n".join(found)


def test_a_library_is_imported_in_its_room_only() -> None:
    found = [line for module in modules_of_edl() for line in strayed_libraries(module)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("store/memory.py", "from edl.runtime.agent import Agent"),
        ("store/memory.py", "from edl import client"),
        ("wire/codec.py", "import edl.store.base"),
        ("wire/codec.py", "from ..store import base"),
        ("wire/codec.py", "def late():\n    from edl.cli import main"),
        ("wire/codec.py", "import importlib\nimportlib.import_module('edl.client')"),
        ("protocol/leader.py", "from edl.policy.view import View"),
        ("torch/state.py", "from edl.launch import local"),
        ("errors.py", "from edl.types import Gpu"),
        ("wire/codec.py", "import edl.nowhere"),
        ("attic/old.py", "x = 1"),
        ("__init__.py", "from edl.errors import EdlError"),
    ],
)
def test_an_upward_import_is_caught(path: str, text: str) -> None:
    assert len(upward_imports(parse(f"src/edl/{path}", text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("runtime/agent.py", "from edl.protocol import leader\nfrom edl.store.base import Store"),
        ("protocol/leader.py", "from edl.protocol.worker import W\nfrom . import ledger"),
        ("cli/main.py", "from edl import __version__, client\nimport edl.errors"),
        ("types.py", "from edl.errors import UsageError"),
    ],
)
def test_a_downward_import_is_let_through(path: str, text: str) -> None:
    assert upward_imports(parse(f"src/edl/{path}", text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "import os.path",
        "from threading import Lock",
        "import msgspec",
        "import random\nx = random.random()",
        "from random import shuffle",
        "import random\nx = random.Random()",
        "def f():\n    import socket",
        "print(1)",
    ],
)
def test_an_impurity_is_caught(text: str) -> None:
    for path in ["protocol/ledger.py", "policy/book.py", "simulator/engine.py"]:
        assert len(impurities(parse(f"src/edl/{path}", text))) == 1
    assert impurities(parse("src/edl/runtime/agent.py", text)) == []


def test_a_seeded_random_is_pure() -> None:
    text = "import random\ndef f(r: random.Random, s: int): return r.random(), random.Random(s)"
    assert impurities(parse("src/edl/protocol/ledger.py", text)) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("torch/optimizer.py", "import torch.distributed as dist"),
        ("torch/optimizer.py", "from torch import distributed"),
        ("torch/optimizer.py", "import torch\nx = torch.distributed.is_available"),
        ("runtime/session.py", "import torch"),
        ("runtime/session.py", "import msgspec"),
        ("store/base.py", "import kazoo"),
        ("client.py", "from rich.table import Table"),
        ("wire/stream.py", "import zmq"),
    ],
)
def test_a_strayed_library_is_caught(path: str, text: str) -> None:
    assert len(strayed_libraries(parse(f"src/edl/{path}", text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("collective/group.py", "import torch.distributed as dist"),
        ("torch/optimizer.py", "import torch\nfrom torch import nn"),
        ("runtime/story.py", "import msgspec"),
        ("store/znodes.py", "import kazoo"),
        ("cli/job.py", "from rich.table import Table"),
    ],
)
def test_a_library_in_its_room_is_let_through(path: str, text: str) -> None:
    assert strayed_libraries(parse(f"src/edl/{path}", text)) == []
