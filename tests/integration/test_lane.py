"""State through shared memory: the same bytes as by TCP, and nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
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
    opened, asked, before = memory.opened, [], memory_files()

    def sometimes(pid: int, number: int, size: int) -> Any:
        asked.append(number)
        return None if len(asked) == 2 else opened(pid, number, size)

    monkeypatch.setattr(memory, "opened", sometimes)
    groups, held = broadcast(3)
    assert len(asked) == 3
    assert all(group._lane is None for group in groups)
    assert all(torch.equal(a, b) for mine in held[1:] for a, b in zip(mine, held[0], strict=True))
    assert not memory_files() - before


def test_a_machine_without_memory_files_goes_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "made", lambda size: (-1, None))
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


def test_a_foreign_file_is_not_taken_for_the_lane(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(b"x" * 100)
    with path.open("r+b") as file:
        assert memory.opened(os.getpid(), file.fileno(), lane.SLOT * lane.SLOTS) is None
        number = file.fileno()
    assert memory.opened(os.getpid(), number, 100) is None
