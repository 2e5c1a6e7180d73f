"""What the store keeps of a generation is all that a leader needs who knew nothing of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.errors import StoreError
from edl.protocol.messages import Adjusted, Undone
from edl.protocol.recorded import VALUE_BYTES, Deed, read_recorded, write_recorded
from edl.protocol.requests import Requests
from edl.protocol.topology import draw_again, draw_next
from tests.seeded.cast import first, member, names, w


def deed(number: int, *, undone: str = "") -> Deed:
    return Deed(
        request_id=f"r{number}",
        kind="scale_out",
        joined=names(number),
        left=(),
        generation=number,
        size=3,
        undone=undone,
    )


@pytest.mark.parametrize("mended", [False, True])
def test_a_generation_is_read_as_it_was_written(mended: bool) -> None:
    drawn = draw_next(
        first(0, 1), number=2, joiners=[member(2)], leavers=(), token=5, request_id="r"
    )
    if mended:
        drawn = draw_again(drawn, number=3, dead=names(0), leader=w(1), token=6)
    deeds = (deed(2), deed(3, undone="w9 died"))
    found = read_recorded(write_recorded(drawn, deeds))
    assert (found.generation, found.deeds) == (drawn, deeds)


def test_only_the_latest_deeds_are_kept() -> None:
    found = read_recorded(write_recorded(first(0), [deed(number) for number in range(100)]))
    assert [d.generation for d in found.deeds] == list(range(36, 100))


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b"\xff", b'{"number": 1}'])
def test_a_foreign_value_is_the_stores_fault(value: bytes) -> None:
    with pytest.raises(StoreError, match="not a generation"):
        read_recorded(value)


def test_a_leader_that_was_not_there_gives_the_same_answers() -> None:
    requests = Requests()
    requests.remember([deed(2), deed(3, undone="w9 died")])
    done, given_up = requests.answered("r2"), requests.answered("r3")
    assert isinstance(done, Adjusted)
    assert (done.record.joined, done.record.generation) == (names(2), 2)
    assert given_up == Undone(request_id="r3", reason="w9 died")
    assert requests.answered("r4") is None


def test_an_answer_that_was_given_is_not_replaced() -> None:
    requests = Requests()
    requests.settle(Undone(request_id="r2", reason="first"))
    requests.remember([deed(2)])
    assert requests.answered("r2") == Undone(request_id="r2", reason="first")


def test_the_value_stays_below_what_stores_accept() -> None:
    many = [replace(deed(number), joined=names(*range(4000))) for number in range(60)]
    value = write_recorded(first(0), many)
    kept = read_recorded(value).deeds
    assert VALUE_BYTES / 2 < len(value) <= VALUE_BYTES
    assert kept == tuple(many[-len(kept) :])


def test_a_deed_that_the_next_leader_may_have_to_complete_is_kept_in_any_case() -> None:
    drawn = draw_next(
        first(0, 1), number=2, joiners=[member(2)], leavers=(), token=5, request_id="r0"
    )
    many = [replace(deed(number), joined=names(*range(4000))) for number in range(60)]
    assert read_recorded(write_recorded(drawn, many)).deeds[0] == many[0]
