"""What the tidy checks read: the repository's files, parsed once and named by their paths."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Module", "modules_of_edl", "modules_of_everything", "parse", "text_files"]

ROOT = Path(__file__).resolve().parents[2]
TEXT_SUFFIXES = {".css", ".html", ".js", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yml"}
TEXT_NAMES = {".gitignore", "Makefile", "run"}


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file: `path` is relative to the repository, `text` its source."""

    path: str
    text: str
    tree: ast.Module

    @property
    def inside_edl(self) -> str:
        """The path below src/edl, such as `protocol/leader.py`."""
        return self.path.removeprefix("src/edl/")


def parse(path: str, text: str) -> Module:
    """A module from a string, so that a check can be tried on a planted violation."""
    return Module(path, text, ast.parse(text))


def files_below(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            # Written by tools: caches and package metadata are nobody's style.
            made = {"__pycache__"} & set(path.parts) or ".egg-info" in str(path)
            if path.is_file() and not made:
                yield path


def read_modules(*folders: str) -> list[Module]:
    paths = [path for path in files_below(*folders) if path.suffix == ".py"]
    return [parse(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]


def modules_of_edl() -> list[Module]:
    return read_modules("src/edl")


def modules_of_everything() -> list[Module]:
    return read_modules("src/edl", "tests", "examples", "bench")


def text_files() -> list[tuple[str, str]]:
    """Path and text of every file that a reader of the repository may open."""
    top = [path for path in sorted(ROOT.iterdir()) if path.is_file()]
    below = files_below("src", "tests", "docs", "examples", "bench", ".ci")
    return [
        (path.relative_to(ROOT).as_posix(), path.read_text())
        for path in [*top, *below]
        if path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES
    ]
