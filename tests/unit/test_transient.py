"""Workers that were lent are given back in time; the clock is a number."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edl.launch.jobs import JobFolder
from edl.launch.transient import PAUSE_S, Transients, lead_s, save_in, time_left
from edl.protocol import messages as m
from edl.protocol.tale import Parts
from edl.types import WorkerId

W0, W1, W2, W3 = (WorkerId(f"w{number}") for number in range(4))
ALL = {W0, W1, W2}


LEAD_S = 2.0


@dataclass
class Launcher:
    """What was told to the leader, and what was written down."""

    told: dict[str, m.Message] = field(default_factory=dict)
    events: list[tuple[str, str, object]] = field(default_factory=list)
    saved: dict[WorkerId, float] = field(default_factory=dict)
    turned_back: list[str] = field(default_factory=list)

    def note(self, what: str, request_id: str, /, **fields: str | int | float) -> None:
        self.events.append((what, request_id, fields["workers"]))

    def withdraw(self, key: str) -> None:
        self.told.pop(key, None)

    def save(self, ends: dict[WorkerId, float]) -> None:
        self.saved = dict(ends)

    def what(self) -> list[str]:
        return [what for what, _, _ in self.events]


class Book(Transients):
    """One whose workers leave in two seconds."""

    def tick(self, *members: WorkerId, now: float, alive: Collection[WorkerId] = ()) -> None:
        self.on_tick(alive={*alive, *members}, members=set(members), lead_s=LEAD_S, now=now)


def asked(least: int = 1) -> tuple[Launcher, Book]:
    """w1 and w2 were asked for at 100, for 240 s, and their processes run."""
    launcher = Launcher()
    made = Book(
        least=least,
        tell=launcher.told.__setitem__,
        withdraw=launcher.withdraw,
        give_up=launcher.turned_back.append,
        note=launcher.note,
        save=launcher.save,
    )
    made.on_started([W1, W2], request_id="4f2", until=340.0)
    return launcher, made


def lent(least: int = 1) -> tuple[Launcher, Book]:
    """And they have joined at 110."""
    launcher, made = asked(least)
    made.on_joined([W1, W2], request_id="4f2", now=110.0)
    return launcher, made


def leavers(launcher: Launcher, request_id: str) -> tuple[WorkerId, ...]:
    request = launcher.told[request_id]
    assert isinstance(request, m.ScaleIn)
    assert request.request_id == request_id
    return request.workers


def adjusted(request_id: str, *left: WorkerId) -> m.Adjusted:
    record = m.AdjustmentRecord(
        request_id=request_id,
        kind="scale_in",
        joined=(),
        left=left,
        generation=3,
        step=9,
        size=1,
        total_s=1.0,
        transfer_bytes=0,
        parts=Parts(),
    )
    return m.Adjusted(request_id=request_id, record=record)


def test_leaving_takes_the_allowance_some_steps_and_a_margin() -> None:
    assert lead_s(allowance_s=0.5, step_s=0.0) == 1.5
    assert lead_s(allowance_s=0.5, step_s=2.0) == 5.5


def test_leaving_takes_as_many_steps_as_loaders_read_ahead() -> None:
    assert lead_s(allowance_s=0.5, step_s=0.8, switch_steps=7) == pytest.approx(7.4)
    assert lead_s(allowance_s=0.5, step_s=0.1, switch_steps=2) == pytest.approx(1.3)


def test_they_are_asked_to_leave_ahead_of_the_end_and_once() -> None:
    launcher, book = lent()
    assert launcher.saved == {W1: 340.0, W2: 340.0}
    book.tick(W0, W1, W2, now=337.9)
    assert launcher.told == {}
    book.tick(W0, W1, W2, now=338.0)
    book.tick(W0, W1, W2, now=339.0)
    assert list(launcher.told) == ["transient-1"]
    assert set(leavers(launcher, "transient-1")) == {W1, W2}
    book.on_answer(adjusted("another", W1), 339.0)
    assert launcher.told, "the answer to somebody else is none"
    book.on_answer(adjusted("transient-1", W1, W2), 339.2)
    assert launcher.told == {}
    assert launcher.saved == {W1: 340.0, W2: 340.0}, "their processes still run"
    book.tick(W0, W1, W2, now=339.3)
    assert launcher.told == {}, "those that left are not asked again"
    book.tick(W0, now=339.5)
    assert launcher.saved == {}
    assert launcher.events == [
        ("transient.begins", "4f2", "w1,w2"),
        ("transient.ends", "transient-1", "w2,w1"),
        ("transient.over", "", "w1"),
        ("transient.over", "", "w2"),
    ]
    book.tick(W0, now=400.0)
    assert launcher.told == {}


def test_one_that_is_late_is_told_once() -> None:
    launcher, book = lent()
    book.tick(W0, W1, W2, now=338.0)
    for now in (340.5, 341.0):
        book.tick(W0, W1, W2, now=now)
    assert launcher.events[-1] == ("transient.late", "transient-1", "w1,w2")
    assert launcher.what().count("transient.late") == 1


def test_newcomers_that_could_only_leave_again_are_turned_back_once() -> None:
    launcher, book = asked()
    book.tick(W0, alive=ALL, now=337.9)
    assert launcher.turned_back == []
    for now in (338.0, 339.0):
        book.tick(W0, alive=ALL, now=now)
    assert launcher.turned_back == ["4f2"]
    assert launcher.told == {}
    assert launcher.events == [("transient.vain", "4f2", "w1,w2")]


def test_newcomers_that_joined_all_the_same_leave_at_once() -> None:
    launcher, book = asked()
    book.tick(W0, alive=ALL, now=338.0)
    # The switch had been announced.
    book.on_joined([W1, W2], request_id="4f2", now=338.5)
    book.tick(W0, W1, W2, now=338.6)
    assert set(leavers(launcher, "transient-1")) == {W1, W2}


def test_a_newcomer_that_ended_before_it_joined_leaves_no_trace() -> None:
    launcher, book = asked()
    book.tick(W0, alive={W0}, now=150.0)
    assert (launcher.saved, launcher.events) == ({}, [])


def test_workers_that_were_added_for_good_stay() -> None:
    launcher, book = lent()
    book.on_joined([W3], request_id="5a0", now=100.0)
    book.tick(*ALL, W3, now=1000.0)
    assert W3 not in leavers(launcher, "transient-1")


def test_no_more_leave_than_the_least_allows_and_the_rest_later() -> None:
    launcher, book = lent(least=2)
    book.tick(W0, W1, W2, now=338.0)
    assert leavers(launcher, "transient-1") == (W2,)
    book.on_answer(adjusted("transient-1", W2), 338.5)
    for now in (338.6, 339.0):
        book.tick(W0, W1, now=now)
    assert launcher.told == {}
    assert launcher.what().count("transient.waits") == 1
    assert launcher.events[-1] == ("transient.waits", "", "w1")
    book.tick(W0, W1, W3, now=339.5)
    assert leavers(launcher, "transient-2") == (W1,)


@pytest.mark.parametrize("kind", [m.Refusal, m.Undone])
def test_what_came_to_nothing_is_asked_anew_a_little_later(
    kind: type[m.Refusal] | type[m.Undone],
) -> None:
    launcher, book = lent()
    book.tick(W0, W1, W2, now=338.0)
    book.on_answer(kind(request_id="transient-1", reason="w2 is no member"), 338.5)
    assert launcher.told == {}
    book.tick(W0, W1, now=338.5)
    assert launcher.told == {}
    book.tick(W0, W1, now=338.5 + PAUSE_S)
    assert leavers(launcher, "transient-2") == (W1,)


def test_one_that_ended_before_is_forgotten() -> None:
    launcher, book = lent()
    book.tick(W0, W2, now=200.0)
    assert launcher.saved == {W2: 340.0}
    book.tick(W0, W2, now=340.0)
    assert leavers(launcher, "transient-1") == (W2,)


def test_one_whose_joining_is_not_in_the_store_yet_is_not_forgotten() -> None:
    launcher, book = lent()
    book.tick(W0, alive=ALL, now=339.0)
    assert launcher.told == {}
    assert launcher.turned_back == []
    book.tick(W0, W1, W2, now=339.1)
    assert set(leavers(launcher, "transient-1")) == {W1, W2}


NEW = [WorkerId("w3"), WorkerId("w4"), WorkerId("w5")]


def test_new_workers_of_a_job_that_began_again_are_lent_instead() -> None:
    launcher, book = lent()
    book.tick(W0, W1, W2, now=338.0)
    book.restart(NEW, size=3)
    assert launcher.told == {}
    assert launcher.saved == {"w4": 340.0, "w5": 340.0}
    book.tick(*NEW, now=350.0)
    assert set(leavers(launcher, "transient-2")) == {"w4", "w5"}


def test_a_job_begins_again_without_those_whose_time_is_over() -> None:
    launcher, book = lent()
    book.on_started([W3], request_id="5a0", until=500.0)
    book.on_joined([W3], request_id="5a0", now=120.0)
    assert book.over(lead_s=LEAD_S, now=337.9) == 0
    assert book.over(lead_s=LEAD_S, now=338.0) == 2
    book.restart(NEW[:2], size=4)
    assert launcher.saved == {"w4": 500.0}, "w3 is there for good, as w0 was"


def test_a_job_that_begins_again_seats_those_first_that_are_there_for_good() -> None:
    _, book = lent()
    book.on_started([W3], request_id="5a0", until=500.0)
    book.on_joined([W3], request_id="5a0", now=120.0)
    members = [W1, W2, W3, W0, WorkerId("w10")]
    assert book.in_order(members) == [W0, "w10", W3, W1, W2]


def test_who_had_not_joined_has_no_place_in_a_job_that_begins_again() -> None:
    launcher, book = asked()
    book.restart(NEW[:1], size=1)
    assert launcher.saved == {}


def test_nothing_is_asked_of_a_job_that_is_over() -> None:
    launcher, book = lent()
    book.tick(W0, W1, W2, now=340.0)
    book.on_answer(m.Finished(request_id="transient-1", reason="the job is over"), 341.0)
    assert launcher.told == {}


def test_the_time_left_is_found_in_the_jobs_folder(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    assert time_left(folder) == {}
    now = time.monotonic()
    save_in(folder)({W1: now + 100.0, W2: now - 5.0})
    left = time_left(folder)
    assert 90.0 < left[W1] <= 100.0
    assert left[W2] == 0.0
    (tmp_path / "transient.json").write_text("[")
    assert time_left(folder) == {}


def test_whoever_comes_for_a_lent_one_has_its_time() -> None:
    launcher, book = lent()
    book.on_moved([W1], [W3], request_id="move", now=150.0)
    assert launcher.saved[W3] == 340.0
    assert launcher.events[-1] == ("transient.moved", "move", "w3")
    # The process of the one that left may have ended before its request had.
    book.tick(W0, W2, W3, now=151.0)
    assert launcher.saved == {W2: 340.0, W3: 340.0}
    book.tick(W0, W2, W3, now=338.0)
    assert set(leavers(launcher, "transient-1")) == {W2, W3}
    assert book.lends(W1)
    assert not book.lends(W0)


def test_where_fewer_come_than_leave_the_places_for_good_are_kept() -> None:
    launcher, book = lent()
    book.on_moved([W0, W1], [W3], request_id="move", now=150.0)
    assert W3 not in launcher.saved
    assert not book.lends(W3)
