"""Slots: who sits where, and which wishes are refused with which words."""

from __future__ import annotations

import pytest

from edl.errors import Refused, UsageError
from edl.launch.slots import SlotBook, find_gpus, gpus_from_text
from edl.types import Gpu, WorkerId

W0, W1, W2, W3 = (WorkerId(f"w{number}") for number in range(4))


def local(*indexes: int) -> list[Gpu]:
    return [Gpu("localhost", index) for index in indexes]


def test_without_gpus_there_are_as_many_slots_as_are_asked_for() -> None:
    book = SlotBook({})
    taken = book.take([W0, W1])
    assert list(taken.values()) == local(0, 1)
    assert book.total is None
    assert book.device(taken[W0]) is None


def test_the_lowest_free_slot_is_given_first() -> None:
    book = SlotBook({})
    book.take([W0, W1, W2])
    book.free(W1)
    assert book.take([W3])[W3] == Gpu("localhost", 1)


def test_a_slot_can_be_named() -> None:
    book = SlotBook({})
    assert book.take([W0, W1], local(5, 2)) == {W0: local(5)[0], W1: local(2)[0]}


def test_more_workers_than_slots_are_refused() -> None:
    book = SlotBook({}, limit=2)
    book.take([W0])
    with pytest.raises(Refused, match=r"2 more workers need 2 free slots, and 1 of 2"):
        book.take([W1, W2])
    assert book.take([W1])[W1] == Gpu("localhost", 1)


def test_a_refused_wish_takes_nothing() -> None:
    book = SlotBook({}, limit=2)
    with pytest.raises(Refused):
        book.take([W0, W1, W2])
    assert list(book.take([W0, W1]).values()) == local(0, 1)


def test_oversubscribed_slots_are_filled_evenly() -> None:
    book = SlotBook({}, limit=2, oversubscribe=True)
    assert list(book.take([W0, W1, W2, W3]).values()) == local(0, 1, 0, 1)


def test_gpus_are_slots_with_a_device() -> None:
    book = SlotBook({2: "2", 3: "3"})
    taken = book.take([W0, W1])
    assert list(taken.values()) == local(2, 3)
    assert book.device(taken[W1]) == "3"
    assert (book.total, book.gpus) == (2, 2)


def test_a_limit_takes_the_first_gpus() -> None:
    assert list(SlotBook({0: "0", 1: "1"}, limit=1).take([W0]).values()) == local(0)


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ([Gpu("node2", 0)], "host 'node2'"),
        (local(8, 9), "would have 3 slots, and --slots limits it to 2"),
        (local(0), "taken by worker w0"),
        (local(1, 1), "named twice"),
    ],
)
def test_a_named_slot_that_cannot_be_given_is_refused(slots: list[Gpu], words: str) -> None:
    book = SlotBook({}, limit=2)
    book.take([W0])
    workers = [WorkerId(f"x{number}") for number in range(len(slots))]
    with pytest.raises(Refused, match=words):
        book.take(workers, slots)


def test_a_gpu_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(Refused, match="there is no slot localhost:9; this job has localhost:0"):
        SlotBook({0: "0"}).take([W0], local(9))


def test_a_limit_counts_the_slots_of_this_job_whatever_their_index() -> None:
    book = SlotBook({}, limit=2)
    book.take([W0])
    assert book.take([W1], local(9)) == {W1: local(9)[0]}
    with pytest.raises(Refused, match="--slots 2"):
        book.take([W2])


def test_gpus_are_written_as_cuda_has_them() -> None:
    assert gpus_from_text("0,1") == {0: "0", 1: "1"}
    assert gpus_from_text(" 3 ") == {3: "3"}
    assert gpus_from_text("GPU-a,GPU-b") == {0: "GPU-a", 1: "GPU-b"}


@pytest.mark.parametrize("text", ["0,0", "0,GPU-a", "-1"])
def test_a_list_of_gpus_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--gpus"):
        gpus_from_text(text)


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}) == {}
