"""What a linter does not know: names, silence, pickles, docstrings, `__all__`, and words.

The repository speaks of the product alone, so that every sentence in it helps a reader who was
not there when it was written.
"""

from __future__ import annotations

import ast
import re

import pytest

from tests.tidy.source import Module, modules_of_edl, modules_of_everything, parse, text_files

VAGUE_NAMES = {"data2", "helper", "helpers", "manager", "managers", "util", "utils"}
BROAD = {"BaseException", "Exception"}
PICKLERS = {"cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
# These look harmless, and pickle behind the caller's back.
PICKLING_CALLS = {
    "torch.load", "torch.save", "all_gather_object", "broadcast_object_list", "gather_object",
    "recv_object_list", "scatter_object_list", "send_object_list",
}  # fmt: skip

# Text that becomes code: a stranger's text must have no way to get there.
EVALUATORS = {
    "eval", "exec", "compile", "builtins.eval", "builtins.exec", "yaml.load", "yaml.unsafe_load",
    "yaml.full_load", "np.load", "numpy.load",
}  # fmt: skip

# Pieced together, for this file is read by its own check.
FORBIDDEN = {
    "an issue number": re.compile(r"\bissue" + r"(\s+|\s*#\s*)\d", re.I),
    "a session number": re.compile(r"\bsession" + r"(\s+|\s*#\s*|\s+number\s+)\d", re.I),
    "a path of one machine": re.compile(r"(?<![\w.])/" + r"(work/|root/|opt/wheels|opt/pypi)"),
    "a neighbouring folder": re.compile(r"\.\./" + r"shared/(?!data\b)"),
    "an office": re.compile(r"\bC" + r"EO\b"),
}


def vague_names(path: str) -> list[str]:
    words = {word for part in path.split("/") for word in part.split(".")[0].split("_")}
    return [f"{path}: {word!r} says nothing" for word in sorted(words & VAGUE_NAMES)]


def silenced_errors(module: Module) -> list[str]:
    """Handlers that catch everything and say nothing, and those that name no type at all."""
    found = []
    for node in ast.walk(module.tree):
        where = f"{module.path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                found.append(f"{where}: except without a type")
            elif BROAD & names_in(node.type) and all(is_nothing(line) for line in node.body):
                found.append(f"{where}: every error is swallowed")
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("suppress")
            and any(BROAD & names_in(argument) for argument in node.args)
        ):
            found.append(f"{where}: every error is suppressed")
    return found


def names_in(node: ast.expr) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def is_nothing(node: ast.stmt) -> bool:
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant or isinstance(node, ast.Pass | ast.Continue)


def pickles(module: Module) -> list[str]:
    found = []
    for node in ast.walk(module.tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").split(".")[0], *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call):
            whole = ast.unparse(node.func)
            names = [whole, whole.split(".")[-1]]
        bad = (PICKLERS | PICKLING_CALLS) & set(names)
        found += [f"{module.path}:{getattr(node, 'lineno', 0)}: {name} pickles" for name in bad]
    return found


def evaluations(module: Module) -> list[str]:
    """By the whole name: `model.eval()` and `re.compile()` are other things."""
    return [
        f"{module.path}:{node.lineno}: {name} runs what it reads"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in EVALUATORS
    ]


def missing_docstring(module: Module) -> list[str]:
    """An empty `__init__.py` only marks a folder; anything with code says why it is there."""
    bare = bool(module.tree.body) and not ast.get_docstring(module.tree)
    return [f"{module.path}: no docstring"] if bare else []


def missing_all(module: Module) -> list[str]:
    """A module with public functions or classes says which of its names others may use."""
    named: set[str] = set()
    public = False
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            public = public or not node.name.startswith("_")
        elif isinstance(node, ast.Assign):
            named |= {name for target in node.targets for name in names_in(target)}
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            named |= names_in(node.target)
    return [f"{module.path}: no __all__"] if public and "__all__" not in named else []


def forbidden_words(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number}: {what}: {match.group()!r}"
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in FORBIDDEN.items()
        if (match := pattern.search(line))
    ]


def test_no_file_has_a_vague_name() -> None:
    found = [line for module in modules_of_everything() for line in vague_names(module.path)]
    assert not found, "\n".join(found)


def test_no_error_is_swallowed() -> None:
    found = [line for module in modules_of_everything() for line in silenced_errors(module)]
    assert not found, "\n".join(found)


def test_nothing_is_pickled() -> None:
    found = [line for module in modules_of_edl() for line in pickles(module)]
    assert not found, "\n".join(found)


def test_nothing_that_is_read_is_run() -> None:
    found = [line for module in modules_of_edl() for line in evaluations(module)]
    assert not found, "\n".join(found)


def test_every_module_says_why_it_exists() -> None:
    found = [line for module in modules_of_everything() for line in missing_docstring(module)]
    assert not found, "\n".join(found)


def test_every_module_says_what_is_public() -> None:
    found = [line for module in modules_of_edl() for line in missing_all(module)]
    assert not found, "\n".join(found)


def test_the_repository_speaks_of_the_product_alone() -> None:
    found = [line for path, text in text_files() for line in forbidden_words(path, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", ["src/edl/utils.py", "src/edl/manager/a.py", "tests/a_helper.py"])
def test_a_vague_name_is_caught(path: str) -> None:
    assert len(vague_names(path)) == 1
    assert vague_names("src/edl/protocol/leader.py") == []


@pytest.mark.parametrize(
    "handler",
    ["except: raise", "except Exception: pass", "except (OSError, BaseException) as e: ..."],
)
def test_a_swallowed_error_is_caught(handler: str) -> None:
    assert len(silenced_errors(parse("src/edl/a.py", f"try: x()\n{handler}"))) == 1


def test_a_suppressed_exception_is_caught() -> None:
    text = "import contextlib\nwith contextlib.suppress(Exception): x()"
    assert len(silenced_errors(parse("src/edl/a.py", text))) == 1


def test_a_handled_error_is_let_through() -> None:
    text = "try: x()\nexcept Exception as e: log(e)\ntry: x()\nexcept OSError: pass"
    assert silenced_errors(parse("src/edl/a.py", text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(path)",
        "def f(): dist.all_gather_object(a, b)",
    ],
)
def test_a_pickle_is_caught(text: str) -> None:
    assert len(pickles(parse("src/edl/a.py", text))) == 1


@pytest.mark.parametrize(
    "text", ["eval(text)", "exec(text)", "import yaml\nyaml.load(file)", "np.load(path)"]
)
def test_an_evaluation_is_caught(text: str) -> None:
    assert len(evaluations(parse("src/edl/a.py", text))) == 1


def test_what_only_sounds_like_an_evaluation_is_let_through() -> None:
    text = "import re\nre.compile('a')\nmodel.eval()\nyaml.safe_load(file)"
    assert evaluations(parse("src/edl/a.py", text)) == []


def test_a_missing_docstring_is_caught() -> None:
    assert len(missing_docstring(parse("src/edl/a.py", "x = 1"))) == 1
    assert missing_docstring(parse("src/edl/a/__init__.py", "")) == []
    assert missing_docstring(parse("src/edl/a.py", '"""Why."""\nx = 1')) == []


def test_a_missing_all_is_caught() -> None:
    assert len(missing_all(parse("src/edl/a.py", "def f(): ..."))) == 1
    assert missing_all(parse("src/edl/a.py", "__all__ = ['f']\ndef f(): ...")) == []
    assert missing_all(parse("src/edl/a.py", "def _f(): ...\nX = 1")) == []


@pytest.mark.parametrize(
    "words",
    [
        ("see issue", " #12"),
        ("as session", " 7 found"),
        ("in /wo", "rk/main"),
        ("from ../sha", "red/seed"),
        ("asked by the C", "EO"),
    ],
)
def test_a_forbidden_word_is_caught(words: tuple[str, str]) -> None:
    assert len(forbidden_words("docs/a.md", "".join(words))) == 1


def test_ordinary_words_are_let_through() -> None:
    text = "The session of worker 3 reads ../shared/data or a/work/b; issue a request."
    assert forbidden_words("docs/a.md", text) == []
