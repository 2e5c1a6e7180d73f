"""Which lost workers are replaced, and when; the clock is a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from edl.launch.base import JobSpec
from edl.launch.keeping import PAUSE_S, PAUSE_S_MAX, STEADY_S, Keeping, Replacer
from edl.launch.service import LaunchService
from edl.launch.slots import SlotBook
from edl.protocol import messages as m
from edl.protocol.tale import Parts
from edl.types import WorkerId

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")


def test_a_lost_worker_is_replaced_at_once_and_once() -> None:
    keeping = Keeping(4)
    assert keeping.wanted(4, 10.0) == 0
    keeping.on_lost(W1, 10.0)
    keeping.on_lost(W2, 10.0)
    assert keeping.wanted(2, 10.0) == 2
    assert keeping.wanted(2, 11.0) == 0, "it is asked for already"
    keeping.on_joined([WorkerId("w5"), WorkerId("w6")], 15.0)
    assert keeping.wanted(4, 15.0) == 0


def test_one_that_was_told_to_leave_is_not_replaced() -> None:
    keeping = Keeping(4)
    assert keeping.wanted(2, 10.0) == 0
    keeping.on_lost(W1, 20.0)
    assert keeping.wanted(1, 20.0) == 1, "the lost one alone"


def test_nobody_is_replaced_where_there_are_enough() -> None:
    keeping = Keeping(2)
    keeping.on_lost(W1, 10.0)
    assert keeping.wanted(3, 10.0) == 0
    # What was lost above the target is no debt for later.
    assert keeping.wanted(1, 20.0) == 0


def test_replacements_that_do_not_come_are_tried_later_and_later() -> None:
    keeping, now = Keeping(2), 100.0
    keeping.on_lost(W1, now)
    for pause_s in (PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S):
        assert keeping.wanted(1, now) == 1
        assert keeping.on_undone(now) == pause_s
        assert keeping.wanted(1, now + pause_s - 0.1) == 0
        now += pause_s
    for _ in range(20):
        last = keeping.on_undone(now)
    assert last == PAUSE_S_MAX


def test_replacements_that_die_young_are_tried_later_and_later() -> None:
    keeping, now = Keeping(2), 100.0
    keeping.on_lost(W1, now)
    assert keeping.wanted(1, now) == 1
    for number in range(3):
        worker = WorkerId(f"new{number}")
        keeping.on_joined([worker], now)
        keeping.on_lost(worker, now + 5.0)
        now += 5.0
        assert keeping.wanted(1, now) == 0
        now += PAUSE_S * 2**number
        assert keeping.wanted(1, now) == 1


def test_one_that_lasted_ends_the_waiting() -> None:
    keeping, now = Keeping(2), 100.0
    keeping.on_lost(W1, now)
    for _ in range(5):
        keeping.on_undone(now)
    now += PAUSE_S_MAX
    assert keeping.wanted(1, now) == 1
    keeping.on_joined([W2], now)
    now += STEADY_S
    assert keeping.wanted(2, now) == 0
    keeping.on_lost(W2, now)
    assert keeping.wanted(1, now) == 1


# -- the one who asks ------------------------------------------------------------------------


@dataclass
class Launcher:
    """The floor of a launch service that starts nothing, and what was said on it."""

    started: list[str] = field(default_factory=list)
    told: dict[str, m.Message] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    free: Callable[[WorkerId], None] = lambda worker: None  # its process has ended
    gone: set[int] = field(default_factory=set)  # numbers of workers whose process has ended

    def withdraw(self, key: str) -> None:
        self.told.pop(key, None)

    def note(self, what: str, request_id: str, /, **told: str | int | float) -> None:
        self.said.append(f"{what} {told}")

    def over(self) -> str:
        return ""

    def away(self) -> str:
        return ""

    def outcome(self, request_id: str) -> m.AdjustmentRecord | None:
        return None

    def start(self, joiners: Iterable[m.Joiner], request_id: str) -> None:
        self.started.append(request_id)

    def give_up(self, request_id: str) -> None:
        self.said.append(f"gave up {request_id}")

    def alive(self) -> tuple[WorkerId, ...]:
        return tuple(WorkerId(f"w{number}") for number in range(10) if number not in self.gone)

    def end(self, why: str, *, force: bool) -> None:
        raise AssertionError


def replacer(slots: int = 0) -> tuple[Launcher, Replacer]:
    floor = Launcher()
    service = LaunchService(floor, SlotBook({}, limit=slots), lambda peer, message: None)
    service.found(1)
    made = Replacer(
        Keeping(2),
        service,
        tell=floor.told.__setitem__,
        withdraw=floor.withdraw,
        say=floor.said.append,
        note=floor.note,
    )
    return floor, made


def test_it_asks_the_leader_and_starts_what_was_accepted() -> None:
    floor, asking = replacer()
    asking.on_lost(W1, 10.0)
    asking.on_tick(1, 10.0)
    request = floor.told["keep-1"]
    assert isinstance(request, m.ScaleOut)
    assert [str(joiner.worker) for joiner in request.joiners] == ["w1"]
    assert floor.started == []
    asking.on_answer(m.Accepted(request_id="another"), 11.0)
    assert floor.started == []
    for _ in range(2):
        asking.on_answer(m.Accepted(request_id="keep-1"), 11.0)
    assert floor.started == ["keep-1"]
    record = m.AdjustmentRecord(
        request_id="keep-1",
        kind="scale_out",
        joined=(W1,),
        left=(),
        generation=2,
        step=3,
        size=2,
        total_s=1.0,
        transfer_bytes=0,
        parts=Parts(),
    )
    asking.on_answer(m.Adjusted(request_id="keep-1", record=record), 12.0)
    assert floor.told == {}
    asking.on_tick(2, 12.0)
    assert floor.told == {}


def test_what_was_undone_is_withdrawn_and_asked_anew_under_another_id() -> None:
    floor, asking = replacer()
    asking.on_lost(W1, 10.0)
    asking.on_tick(1, 10.0)
    asking.on_answer(m.Accepted(request_id="keep-1"), 11.0)
    asking.on_answer(m.Undone(request_id="keep-1", reason="w1 went away"), 12.0)
    assert floor.told == {}
    assert "w1 went away; tried again in 1 s" in floor.said[-1]
    asking.on_tick(1, 12.5)
    assert floor.told == {}
    asking.on_tick(1, 13.0)
    assert list(floor.told) == ["keep-2"]


def test_no_slot_is_a_reason_to_wait() -> None:
    floor, asking = replacer(slots=1)
    asking.on_lost(W1, 10.0)
    asking.on_tick(1, 10.0)
    assert floor.told == {}
    assert "1 more worker needs" in floor.said[0]


def test_a_job_that_is_kept_at_n_starts_with_n() -> None:
    assert JobSpec(script="a", keep=3).founders(0) == 3
    assert JobSpec(script="a", keep=3, workers=1).founders(0) == 1
