"""State through shared memory: the same bytes as by TCP, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from edl.collective import gloo, lane, memory
from tests.integration.rings import build_ring, in_threads, memory_files

pytestmark = pytest.mark.paired

# More rows than slots, a small one among them, one just a slot long.
SIZES = [3 << 20, 100, lane.SLOT, *[lane.LARGE + i for i in range(2 * lane.SLOTS)], 2 << 20]


def rows(seed: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (n,), dtype=torch.uint8, generator=made) for n in SIZES]


def broadcast(receivers: int) -> tuple[list[Any], list[list[torch.Tensor]]]:
    groups = build_ring(receivers + 1, newcomers=receivers)
    held = [rows(seed=index) for index in range(receivers + 1)]

    def take(index: int) -> Callable[[], None]:
        def run() -> None:
            for row in held[index]:
                groups[index].broadcast_state(row).wait()

        return run

    in_threads([take(index) for index in range(receivers + 1)])
    return groups, held


@pytest.mark.parametrize("receivers", [1, 3])
def test_every_row_arrives_by_shared_memory(receivers: int) -> None:
    before = memory_files()
    groups, held = broadcast(receivers)
    assert all(group._lane is not None for group in groups)
    for mine in held[1:]:
        assert all(torch.equal(a, b) for a, b in zip(mine, held[0], strict=True))
    for group in groups:
        group.drop()
    assert not memory_files() - before


def test_who_cannot_open_the_memory_makes_everybody_go_by_tcp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    before = memory_files()

    def sometimes(pid: int, file: int, size: int, nonce: int) -> Any:
        asked.append(file)
        return None if len(asked) == 2 else memory.open_memory(pid, file, size, nonce)

    monkeypatch.setattr(lane, "open_memory", sometimes)
    groups, held = broadcast(3)
    assert len(asked) == 3
    assert all(group._lane is None for group in groups)
    assert all(torch.equal(a, b) for mine in held[1:] for a, b in zip(mine, held[0], strict=True))
    assert not memory_files() - before


def test_a_machine_without_memory_files_goes_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "create_memory", lambda size: None)
    groups, held = broadcast(1)
    assert all(group._lane is None for group in groups)
    assert all(torch.equal(a, b) for a, b in zip(held[1], held[0], strict=True))


def test_members_on_two_machines_do_not_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(**named: Any) -> None:
        raise AssertionError("this is for one machine only")

    monkeypatch.setattr(gloo, "open_lane", never)
    monkeypatch.setattr("tests.integration.rings.HOSTS", ["one", "two"])
    _, held = broadcast(1)
    assert all(torch.equal(a, b) for a, b in zip(held[1], held[0], strict=True))


def test_memory_is_opened_by_its_descriptor_size_and_nonce() -> None:
    with closing_memory(100) as mine:
        opened = memory.open_memory(os.getpid(), mine.file, 100, mine.nonce)
        assert opened is not None
        mine.memory[:4] = b"here"
        assert opened[:4] == b"here"


def test_memory_of_another_job_with_an_equal_size_is_refused() -> None:
    """In another PID namespace the same numbers name another job's memory."""
    size = lane.SLOT * lane.SLOTS
    with closing_memory(size) as mine, closing_memory(size) as foreign:
        assert memory.open_memory(os.getpid(), foreign.file, size, mine.nonce) is None


def test_a_file_that_is_no_such_memory_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(bytes(108))
    with path.open("r+b") as file:
        assert memory.open_memory(os.getpid(), file.fileno(), 100, 0) is None
    assert memory.open_memory(os.getpid(), file_that_is_closed(), 100, 0) is None


@contextlib.contextmanager
def closing_memory(size: int) -> Iterator[memory.SharedMemory]:
    made = memory.create_memory(size)
    assert made is not None
    try:
        yield made
    finally:
        os.close(made.file)


def file_that_is_closed() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    return reading
