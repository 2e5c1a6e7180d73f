"""The client's side of an adjustment, against a launcher and a leader that follow a script."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self, cast

import pytest

from edl.client import Job, parse_slots
from edl.errors import (
    AdjustmentFailed,
    EdlError,
    JobFinished,
    PeerError,
    Refused,
    StoreError,
    TimedOut,
    UsageError,
    WrongSecret,
)
from edl.launch.access import Access
from edl.launch.adjusting import Adjuster
from edl.launch.messages import (
    AskOutcome,
    AwaitGone,
    Gone,
    Release,
    Reserve,
    Reserved,
    Started,
    StartWorkers,
    Unsettled,
)
from edl.launch.seen import bare_status
from edl.protocol import messages as m
from edl.protocol.election import Known
from edl.protocol.tale import Parts
from edl.types import Address, Gpu, WorkerId

W2 = WorkerId("w2")
JOINER = m.Joiner(worker=W2, slot=Gpu("localhost", 2))
RECORD = m.AdjustmentRecord(
    request_id="4f2",
    kind="scale_out",
    joined=(W2,),
    left=(),
    generation=2,
    step=7,
    size=3,
    total_s=1.0,
    transfer_bytes=0,
    parts=Parts(),
)
ACCEPTED = m.Accepted(request_id="4f2")
ADJUSTED = m.Adjusted(request_id="4f2", record=RECORD)
PARTED = m.Adjusted(request_id="4f2", record=replace(RECORD, left=(WorkerId("w1"),)))


def waiting(request_id: str) -> m.Status:
    """What a leader says while this request waits for a newcomer."""
    adjustment = m.AdjustmentStatus(
        request_id=request_id,
        kind="scale_out",
        phase="waiting for new workers",
        age_s=1.0,
        workers=(WorkerId("w2"),),
        detail="w2 to start",
    )
    return replace(bare_status("training"), adjustment=adjustment)


class FakeChannel:
    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._world.said.append("closed")

    def send(self, message: object) -> None:
        self._world.said.append(message)

    def receive(self, timeout_s: float | None) -> object:
        if not self._world.leader_says:
            raise TimedOut("the leader sent nothing")
        answer = self._world.leader_says.popleft()
        if isinstance(answer, BaseException):
            raise answer
        return answer


class FakeWorld:
    """Stands in for `Access`; remembers everything that was said, in order."""

    def __init__(self, *leader_says: object) -> None:
        self.leader_says = deque(leader_says)
        self.launcher_says: dict[type, object] = {
            AskOutcome: Unsettled(request_id="4f2"),
            Reserve: Reserved(request_id="4f2", joiners=(JOINER,)),
            StartWorkers: Started(request_id="4f2"),
            Release: ACCEPTED,
            AwaitGone: Gone(request_id="4f2", still=()),
        }
        self.said: list[object] = []

    def leader(self) -> Known:
        return Known(worker=WorkerId("w0"), address=Address("127.0.0.1", 7), token=1)

    def connect(self, address: Address) -> FakeChannel:
        return FakeChannel(self)

    def ask_launcher(self, message: object, timeout_s: float = 5.0) -> object:
        self.said.append(message)
        answer = self.launcher_says[type(message)]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def names(self) -> list[str]:
        return [type(each).__name__ for each in self.said if each != "closed"]

    def adjuster(
        self,
        *,
        wait: bool = True,
        timeout_s: float = 5.0,
        progress: Callable[[str], None] | None = None,
    ) -> Adjuster:
        return Adjuster(
            cast(Access, self),
            job="mnist",
            request_id="4f2",
            timeout_s=timeout_s,
            wait=wait,
            check_running=lambda: None,
            progress=progress,
        )


def scale_in() -> m.ScaleIn:
    return m.ScaleIn(request_id="4f2", workers=(WorkerId("w1"),), gpus=(), count=0)


def test_workers_start_once_the_leader_has_accepted() -> None:
    world = FakeWorld(ACCEPTED, ADJUSTED)
    assert world.adjuster().scale_out(1, (), for_s=0.0) == RECORD
    assert world.names()[:3] == ["Reserve", "ScaleOut", "StartWorkers"]
    assert world.said[1] == m.ScaleOut(request_id="4f2", joiners=(JOINER,))


def test_without_waiting_the_workers_are_started_all_the_same() -> None:
    world = FakeWorld(ACCEPTED)
    assert world.adjuster(wait=False).scale_out(1, (), for_s=0.0) is None
    assert world.names() == ["Reserve", "ScaleOut", "StartWorkers"]


@pytest.mark.parametrize(
    "trouble",
    [
        m.Retry(request_id="4f2", reason="already adjusting", after_s=0.0),
        m.NotLeader(request_id="4f2"),
        PeerError("it went away"),
        TimedOut("silence"),
    ],
)
def test_a_request_that_is_not_settled_is_asked_again_under_its_id(trouble: object) -> None:
    world = FakeWorld(trouble, ACCEPTED, ADJUSTED)
    assert world.adjuster().scale_out(1, (), for_s=0.0) == RECORD
    assert [each for each in world.said if isinstance(each, m.ScaleOut)] == [
        m.ScaleOut(request_id="4f2", joiners=(JOINER,))
    ] * 2
    assert "Release" not in world.names()


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (m.Undone(request_id="4f2", reason="w2 died"), AdjustmentFailed, "w2 died"),
        (m.Refusal(request_id="4f2", reason="over --max 2"), Refused, "over --max 2"),
        (m.Finished(request_id="4f2", reason="the job is over"), JobFinished, "over"),
    ],
)
def test_a_request_that_fails_gives_its_slots_back(
    answer: object, error: type[Exception], words: str
) -> None:
    world = FakeWorld(ACCEPTED, answer)
    with pytest.raises(error, match=words):
        world.adjuster().scale_out(1, (), for_s=0.0)
    assert world.names()[-1] == "Release"


def test_a_request_that_is_never_granted_times_out_with_the_last_reason() -> None:
    again = m.Retry(request_id="4f2", reason="already adjusting (request 77)", after_s=0.01)
    world = FakeWorld(*[again] * 1000)
    with pytest.raises(TimedOut, match=r"after 0\.05 s: already adjusting \(request 77\)"):
        world.adjuster(timeout_s=0.05).scale_out(1, (), for_s=0.0)
    assert world.names()[-1] == "Release"


def test_a_launcher_without_slots_refuses_before_the_leader_is_asked() -> None:
    world = FakeWorld()
    world.launcher_says[Reserve] = m.Refusal(request_id="4f2", reason="no free slots")
    with pytest.raises(Refused, match="no free slots"):
        world.adjuster().scale_out(1, (), for_s=0.0)
    assert world.names() == ["Reserve", "Release"]


def test_a_wrong_secret_is_not_tried_again() -> None:
    world = FakeWorld(WrongSecret("not ours"), ADJUSTED)
    with pytest.raises(WrongSecret):
        world.adjuster().scale_in(scale_in())
    assert world.names() == ["AskOutcome", "ScaleIn"]


def test_a_scale_in_waits_until_the_leavers_are_gone() -> None:
    world = FakeWorld(ACCEPTED, PARTED)
    assert world.adjuster().scale_in(scale_in()) == PARTED.record
    assert world.names() == ["AskOutcome", "ScaleIn", "AwaitGone"]
    last = world.said[-1]
    assert isinstance(last, AwaitGone)
    assert last.workers == (WorkerId("w1"),)


def test_a_scale_out_waits_until_the_history_tells_of_it() -> None:
    world = FakeWorld(ACCEPTED, ADJUSTED)
    assert world.adjuster().scale_out(1, (), for_s=0.0) == RECORD
    assert world.names() == ["Reserve", "ScaleOut", "StartWorkers", "AwaitGone"]


def test_a_scale_out_that_is_undone_waits_until_the_history_tells_of_it() -> None:
    world = FakeWorld(ACCEPTED, m.Undone(request_id="4f2", reason="w2 died"))
    with pytest.raises(AdjustmentFailed):
        world.adjuster().scale_out(1, (), for_s=0.0)
    assert world.names() == ["Reserve", "ScaleOut", "StartWorkers", "AwaitGone", "Release"]


@pytest.mark.parametrize(
    "trouble", [PeerError("gone"), TimedOut("silence"), StoreError("no store")]
)
def test_what_is_done_is_done_though_the_launcher_cannot_be_asked(trouble: EdlError) -> None:
    world = FakeWorld(ACCEPTED, ADJUSTED)
    world.launcher_says[AwaitGone] = trouble
    assert world.adjuster().scale_out(1, (), for_s=0.0) == RECORD
    world = FakeWorld(ACCEPTED, m.Undone(request_id="4f2", reason="w2 died"))
    world.launcher_says[AwaitGone] = trouble
    with pytest.raises(AdjustmentFailed, match="w2 died"):
        world.adjuster().scale_out(1, (), for_s=0.0)


def test_a_migration_starts_workers_and_waits_until_the_leavers_are_gone() -> None:
    world = FakeWorld(ACCEPTED, PARTED)
    leave = (Gpu("localhost", 1),)
    assert world.adjuster().migrate((), leave, 1, ()) == PARTED.record
    assert world.names() == ["Reserve", "Migrate", "StartWorkers", "AwaitGone"]
    assert world.said[1] == m.Migrate(request_id="4f2", joiners=(JOINER,), workers=(), gpus=leave)


def test_a_migration_that_is_undone_gives_its_slots_back() -> None:
    world = FakeWorld(ACCEPTED, m.Undone(request_id="4f2", reason="w2 died"))
    with pytest.raises(AdjustmentFailed, match="migrate of job mnist was undone"):
        world.adjuster().migrate((WorkerId("w1"),), (), 1, ())
    assert world.names()[-1] == "Release"


def test_progress_is_told_once_for_each_thing_that_is_waited_for() -> None:
    silence = TimedOut("silence")
    world = FakeWorld(
        m.Retry(request_id="4f2", reason="job mnist is already adjusting", after_s=0.01),
        *(ACCEPTED, silence, waiting("4f2"), silence, waiting("4f2"), silence, waiting("other")),
        ADJUSTED,
    )
    lines: list[str] = []
    assert world.adjuster(progress=lines.append).scale_out(1, (), for_s=0.0) == RECORD
    assert lines == [
        "scale_out: waiting: job mnist is already adjusting",
        "scale_out: accepted",
        "scale_out: waiting for new workers: w2 to start",
    ]


def test_a_request_that_is_asked_again_is_not_told_as_accepted_again() -> None:
    silence = TimedOut("silence")
    world = FakeWorld(
        *(ACCEPTED, silence, waiting("4f2")),
        *(PeerError("it went away"), ACCEPTED, silence, waiting("4f2"), ADJUSTED),
    )
    lines: list[str] = []
    assert world.adjuster(progress=lines.append).scale_out(1, (), for_s=0.0) == RECORD
    assert lines == [
        "scale_out: accepted",
        "scale_out: waiting for new workers: w2 to start",
        "scale_out: the leader has changed; asking the next one",
        "scale_out: waiting for new workers: w2 to start",
    ]


def test_a_leader_that_is_at_work_on_a_request_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long newcomers take: whatever it says of the request is a sign of life."""
    clock = [0.0]

    class Slow(FakeWorld):
        def connect(self, address: Address) -> FakeChannel:
            world = self

            class Channel(FakeChannel):
                def receive(self, timeout_s: float | None) -> object:
                    clock[0] += timeout_s if timeout_s is not None else 0.0
                    return super().receive(timeout_s)

            return Channel(world)

    monkeypatch.setattr("edl.launch.adjusting.time.monotonic", lambda: clock[0])
    world = Slow(ACCEPTED, *[TimedOut("silence"), waiting("4f2")] * 40, ADJUSTED)
    lines: list[str] = []
    adjuster = world.adjuster(timeout_s=60.0, progress=lines.append)
    assert adjuster.scale_out(1, (), for_s=0.0) == RECORD
    assert clock[0] > 20.0
    assert world.names().count("ScaleOut") == 1
    assert lines == ["scale_out: accepted", "scale_out: waiting for new workers: w2 to start"]


def test_nobody_is_asked_for_a_status_that_nobody_wants_to_hear() -> None:
    world = FakeWorld(ACCEPTED, ADJUSTED)
    world.adjuster().scale_out(1, (), for_s=0.0)
    assert "AskStatus" not in world.names()


def test_a_wait_is_told_once_for_however_long_it_lasts() -> None:
    lines: list[str] = []
    busy = [
        m.Retry(request_id="4f2", reason=f"already adjusting (for {age} s)", after_s=0.01)
        for age in ("1.0", "1.3", "12.5")
    ]
    world = FakeWorld(*busy, ACCEPTED, ADJUSTED)
    world.adjuster(progress=lines.append).scale_out(1, (), for_s=0.0)
    assert [line for line in lines if "already adjusting" in line] == [
        "scale_out: waiting: already adjusting (for 1.0 s)"
    ]


def test_a_second_ctrl_c_does_not_wait() -> None:
    world = FakeWorld(ACCEPTED, KeyboardInterrupt(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt, match="is interrupted"):
        world.adjuster().scale_out(1, (), for_s=0.0)


@pytest.mark.parametrize(
    ("remove", "add", "twice"),
    [
        (["localhost:3", "localhost:3"], 2, "localhost:3"),
        (["w1", "w1"], 2, "w1"),
        (["w1", "w2"], ["localhost:8", "localhost:8"], "localhost:8"),
    ],
)
def test_a_migration_names_nobody_twice(
    remove: list[str], add: int | list[str], twice: str
) -> None:
    with pytest.raises(UsageError, match=f"migrate names {twice} twice"):
        Job.migrate(cast(Job, object()), remove, add)


def test_slots_are_written_in_three_ways() -> None:
    expected = [Gpu("node2", 0), Gpu("node2", 1), Gpu("node3", 0)]
    assert parse_slots("node2:0,1,node3:0") == expected
    assert parse_slots(["node2:0", "node2:1", "node3:0"]) == expected
    assert parse_slots(expected) == expected


@pytest.mark.parametrize("text", ["0", "node2", "node2:x"])
def test_what_is_no_slot_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:INDEX"):
        parse_slots(text)
