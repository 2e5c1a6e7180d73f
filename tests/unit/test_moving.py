"""Batches are copied ahead beside the computation, and used only for the step they are for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from edl.errors import UsageError
from edl.torch.moving import Moving, OnDevice, chosen_device, each_tensor, side_of

CPU, META = torch.device("cpu"), torch.device("meta")


class Point(NamedTuple):
    x: torch.Tensor
    name: str


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    rows: int


class Opaque:
    def __init__(self) -> None:
        self.x = torch.zeros(1)


class FakeSide:
    """Notes what is asked of it, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.marks = 0
        self.inside = False

    @contextmanager
    def beside(self) -> Iterator[None]:
        self.inside = True
        yield
        self.inside = False

    def mark(self) -> int:
        assert not self.inside
        self.marks += 1
        self.told.append(("mark", self.marks))
        return self.marks

    def wait_for(self, mark: int) -> None:
        self.told.append(("wait", mark))

    def lend(self, tensor: torch.Tensor) -> None:
        self.told.append(("lend", tensor.item()))


class FakeFetched:
    """Batches 0, 1, 2, ... in this order; those below `come` are there."""

    def __init__(self, *, come: int, broken: set[int] | None = None) -> None:
        self.at = 0
        self.come = come
        self.broken = broken or set()
        self.got: list[Hashable] = []

    def get(self, key: Hashable) -> Any:
        assert isinstance(key, int)
        self.got.append(key)
        self.at = key + 1
        if key in self.broken:
            raise ValueError(f"batch {key} is a banana")
        return [torch.tensor(key), {"twice": torch.tensor(2 * key)}]

    def next_come(self) -> tuple[Hashable, int] | None:
        return (self.at, self.at) if self.at < self.come else None

    def steps_beyond(self, step: int) -> int:
        return 0


def numbers(batch: Any) -> tuple[int, int]:
    return int(batch[0].item()), int(batch[1]["twice"].item())


def test_the_computation_waits_for_the_copy_and_every_tensor_is_lent() -> None:
    side, fetched = FakeSide(), FakeFetched(come=100)
    ahead = OnDevice(fetched, Moving(CPU, side), 2)
    assert numbers(ahead.get(0)) == (0, 0)
    first = [("mark", 1), ("wait", 1), ("lend", 0), ("lend", 0)]
    assert side.told == [*first, ("mark", 2), ("mark", 3)]
    side.told.clear()
    assert numbers(ahead.get(1)) == (1, 2)
    assert side.told == [("wait", 2), ("lend", 1), ("lend", 2), ("mark", 4)]
    assert fetched.got == [0, 1, 2, 3]


def test_a_batch_that_has_not_come_is_not_waited_for() -> None:
    fetched = FakeFetched(come=2)
    ahead = OnDevice(fetched, Moving(CPU, FakeSide()), 2)
    ahead.get(0)
    assert fetched.got == [0, 1]
    assert numbers(ahead.get(1)) == (1, 2)
    assert numbers(ahead.get(2)) == (2, 4)
    assert fetched.got == [0, 1, 2]


def test_what_was_copied_for_another_step_is_dropped() -> None:
    fetched = FakeFetched(come=100)
    ahead = OnDevice(fetched, Moving(CPU, FakeSide()), 2)
    ahead.get(0)
    assert numbers(ahead.get(2)) == (2, 4)  # 1 was copied in vain
    assert numbers(ahead.get(50)) == (50, 100)  # and so were 3 and 4
    assert numbers(ahead.get(50)) == (50, 100)  # a step that is done again
    assert fetched.got == [0, 1, 2, 3, 4, 50, 51, 52, 50, 51, 52]


def test_a_batch_that_cannot_be_read_matters_in_its_own_step() -> None:
    ahead = OnDevice(FakeFetched(come=100, broken={1, 5}), Moving(CPU, FakeSide()), 2)
    ahead.get(0)
    with pytest.raises(ValueError, match="batch 1 is a banana"):
        ahead.get(1)
    assert numbers(ahead.get(4)) == (4, 8)
    assert numbers(ahead.get(6)) == (6, 12)


def test_copies_ahead_count_as_steps_that_were_asked_for() -> None:
    ahead = OnDevice(FakeFetched(come=100), Moving(CPU, FakeSide()), 3)
    ahead.get(7)
    assert ahead.steps_beyond(7) == 3
    assert ahead.next_come() == (8, 8)


def test_nothing_is_copied_ahead_with_a_depth_of_0() -> None:
    fetched = FakeFetched(come=100)
    ahead = OnDevice(fetched, Moving(CPU, side_of(CPU)), 0)
    assert [numbers(ahead.get(key)) for key in range(3)] == [(0, 0), (1, 2), (2, 4)]
    assert fetched.got == [0, 1, 2]


def test_every_tensor_of_a_structure_is_moved() -> None:
    opaque = Opaque()
    batch = {
        "tuple": (torch.zeros(2), 3, "text"),
        "list": [torch.zeros(1), [torch.zeros(1)]],
        "named": Point(torch.zeros(3), "p"),
        "dataclass": Frozen(torch.zeros(4), 4),
        "ordered": OrderedDict(b=torch.zeros(1), a=1),
        "size": torch.Size([1, 2]),
        "none": None,
        "opaque": opaque,
    }
    moved, _ = Moving(META, side_of(META)).begin(batch)
    assert moved["tuple"][0].device == META
    assert moved["tuple"][1:] == (3, "text")
    assert [moved["list"][0].device, moved["list"][1][0].device] == [META, META]
    assert (type(moved["named"]), moved["named"].x.device, moved["named"].name) == (
        Point,
        META,
        "p",
    )
    assert moved["dataclass"].x.device == META
    assert (type(moved["ordered"]), list(moved["ordered"])) == (OrderedDict, ["b", "a"])
    assert moved["ordered"]["b"].device == META
    assert type(moved["size"]) is torch.Size
    assert moved["opaque"] is opaque
    assert batch["tuple"][0].device == CPU  # type: ignore[index]


def test_a_packed_sequence_keeps_its_batch_sizes_on_the_cpu() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = each_tensor(packed, lambda tensor: tensor + 1)
    assert moved.data.tolist() == [2.0] * 5
    assert moved.batch_sizes.tolist() == [2, 2, 1]


def test_a_batch_that_is_there_already_stays_the_same_object() -> None:
    batch = {"x": [torch.zeros(1), (torch.zeros(1), 2)], "y": Frozen(torch.zeros(1), 1)}
    moved, mark = Moving(CPU, side_of(CPU)).begin(batch)
    assert Moving(CPU, side_of(CPU)).hand_over(moved, mark) is batch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match=r"device='cuda:0', but torch sees no GPU"):
        chosen_device("cuda:0")


def test_a_device_that_torch_does_not_know_is_told() -> None:
    with pytest.raises(UsageError, match="device='gpu' is no device of torch"):
        chosen_device("gpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_on_a_gpu_are_what_they_were() -> None:
    device = torch.device("cuda", 0)
    ahead = OnDevice(FakeFetched(come=100), Moving(device, side_of(device)), 2)
    for key in range(50):
        batch = ahead.get(key)
        assert batch[0].device == device
        assert numbers(batch) == (key, 2 * key)
