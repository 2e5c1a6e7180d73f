"""What tests of readers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from edl.data import files as files_module
from tests.unit.specimens import Write


@pytest.fixture(params=["path", "memory"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Write]:
    """Write a file to a disk, or where only a URL leads."""
    memory = fsspec.filesystem("memory")

    def to_disk(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    def to_memory(name: str, content: bytes) -> str:
        memory.pipe_file(f"/readers/{name}", content)
        return f"memory://readers/{name}"

    yield to_disk if request.param == "path" else to_memory
    memory.store.clear()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "PAUSE_S", 0.0)
