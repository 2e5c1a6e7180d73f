"""Errands in the background: in order, and none after one that failed."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from edl.collective.errands import Errands
from edl.errors import GroupBroken


def test_errands_are_done_in_the_order_they_were_given() -> None:
    errands, done, go = Errands("line"), [], threading.Event()
    errands.give(go.wait)

    def work(number: int) -> int:
        done.append(number)
        return number

    given = [errands.give(partial(work, number)) for number in range(20)]
    assert not done
    go.set()
    assert [errand.wait() for errand in given] == list(range(20))
    assert done == list(range(20))
    errands.close()


def test_none_is_done_after_one_that_failed() -> None:
    errands, done = Errands("line"), []

    def fail() -> None:
        raise ValueError("out of step")

    first = errands.give(fail)
    second = errands.give(lambda: done.append(1))
    for errand in (first, second):
        with pytest.raises(ValueError, match="out of step"):
            errand.wait()
    errands.close()
    assert not done


def test_closing_waits_for_what_was_given_and_ends_the_thread() -> None:
    before = threading.active_count()
    errands, done = Errands("line"), []
    for i in range(5):
        errands.give(lambda i=i: done.append(i))  # type: ignore[misc]
    errands.close()
    errands.close()
    assert done == list(range(5))
    assert threading.active_count() == before
    with pytest.raises(GroupBroken, match="dropped"):
        errands.give(lambda: None)


def test_a_line_without_errands_has_no_thread() -> None:
    before = threading.active_count()
    errands = Errands("line")
    assert threading.active_count() == before
    errands.close()
    assert threading.active_count() == before
