"""Throughput and efficiency at each parallelism, on a job that is only played."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from edl.errors import AdjustmentFailed, JobFinished, PeerError, Refused, TimedOut, UsageError
from edl.launch import profiling, undoing
from edl.launch.jobs import JobFolder
from edl.launch.profiling import Plan, known_speeds, measure, present
from edl.launch.seen import bare_status
from edl.protocol.messages import AdjustmentRecord, AdjustmentStatus, Parts, Status, WorkerStatus
from edl.protocol.profiling import Meter, judged, row_of
from edl.types import Address, WorkerId

BATCH = 64
# Seconds a step takes with so many workers: t(p) is 32, 40, 32 and 20 samples a second.
STEP_S = {1: 2.0, 2: 0.8, 3: 2 / 3, 4: 0.8}


@dataclass
class PlayedJob:
    """Does three steps between two questions; w0 leads, unless it has left."""

    workers: int
    most: int = 4
    least: int = 1
    ends_after: int = 10**9
    name: str = "mnist"
    timeout_s: float = 0.05
    step: int = 0
    generation: int = 1
    trained_s: float = 0.0
    asked: list[int] = field(default_factory=list)  # how many it had after each adjustment
    # Raised instead of, or with a True beside it after, the change to so many workers.
    fails: dict[int, tuple[BaseException, bool]] = field(default_factory=dict)
    # Called when so many have been measured for a while, as others would.
    meanwhile: dict[int, Callable[[], None]] = field(default_factory=dict)
    in_flight: int = 0  # after so many more questions the change that was begun happens
    begun: Callable[[], object] = lambda: None
    request_id: str = ""
    soon: int = 10  # so many questions after it is accepted a scale-in happens
    switch_steps: int = 0  # what its status says of that
    members: dict[str, str] = field(default_factory=dict)  # slots by worker
    made: int = 0
    lent: dict[WorkerId, float] = field(default_factory=dict)  # who is here for how long
    lent_again: list[tuple[int | Sequence[str], float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.workers):
            self.come()

    def come(self, slot: str = "") -> str:
        worker = f"w{self.made}"
        self.members[worker] = slot or f"localhost:{self.made}"
        self.made, self.workers = self.made + 1, len(self.members)
        return worker

    def go(self, worker: str) -> None:
        del self.members[worker]
        self.workers, self.generation = len(self.members), self.generation + 1

    def running(self) -> bool:
        return self.step < self.ends_after

    def status(self) -> Status:
        self.step += 3
        self.trained_s += 3 * STEP_S[self.workers]
        then = self.meanwhile.get(self.workers)
        if then is not None and self.step % 30 == 0:
            del self.meanwhile[self.workers]
            then()
        if self.in_flight:
            self.in_flight -= 1
            if not self.in_flight:
                self.begun()
        begun = AdjustmentStatus(
            request_id=self.request_id, kind="", phase="", age_s=0.0, workers=()
        )
        return status(
            self.workers,
            members=self.members,
            adjustment=begun if self.in_flight else None,
            step=self.step,
            generation=self.generation,
            trained_s=self.trained_s,
            throughput=BATCH / STEP_S[self.workers],
            switch_steps=self.switch_steps,
        )

    def transients(self) -> dict[WorkerId, float]:
        return {worker: left for worker, left in self.lent.items() if worker in self.members}

    def scale_out(
        self, gpus: int | Sequence[str], *, request_id: str, for_s: float | None = None
    ) -> AdjustmentRecord:
        self.request_id = request_id
        if for_s is not None:
            self.lent_again.append((gpus, for_s))
        slots = [""] * gpus if isinstance(gpus, int) else list(gpus)

        def change() -> tuple[str, ...]:
            return tuple(self.come(slot) for slot in slots)

        joined = self._change(self.workers + len(slots), change)
        return record(joined=joined)

    def scale_in(
        self, workers_or_gpus: Sequence[str], *, request_id: str, wait: bool = True
    ) -> AdjustmentRecord | None:
        self.request_id = request_id
        unknown = [worker for worker in workers_or_gpus if worker not in self.members]
        if unknown:
            raise Refused(f"there is no {unknown[0]}")

        def change() -> tuple[str, ...]:
            for worker in workers_or_gpus:
                self.go(worker)
            return tuple(workers_or_gpus)

        target = self.workers - len(workers_or_gpus)
        if not wait and self.least <= target:
            self.asked.append(target)
            self.in_flight, self.begun = self.soon, change
            return None
        return record(left=self._change(target, change))

    def _change(self, target: int, change: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        if not self.least <= target <= self.most:
            raise Refused(f"{target} workers are not allowed")
        failure, after = self.fails.pop(target, (None, False))
        if failure is not None and not after:
            raise failure
        if failure is not None:
            self.in_flight, self.begun = 5, change
            raise failure
        self.asked.append(target)
        self.generation += 1
        return change()


def record(joined: Sequence[str] = (), left: Sequence[str] = ()) -> AdjustmentRecord:
    return AdjustmentRecord(
        request_id="r",
        kind="",
        joined=tuple(map(WorkerId, joined)),
        left=tuple(map(WorkerId, left)),
        generation=1,
        step=1,
        size=1,
        total_s=0.0,
        transfer_bytes=0,
        parts=Parts(),
    )


def status(
    workers: int, *, leader: str = "w0", members: Mapping[str, str] | None = None, **fields: Any
) -> Status:
    places = members or {f"w{rank}": f"localhost:{rank}" for rank in range(workers)}
    shown = tuple(
        WorkerStatus(
            id=WorkerId(worker),
            rank=rank,
            pid=rank,
            host="localhost",
            slot=slot,
            address=Address("127.0.0.1", 1),
            leader=worker == leader,
            state="training",
            samples=1,
            compute_s=0.0,
        )
        for rank, (worker, slot) in enumerate(places.items())
    )
    known = {"trained_samples": int(fields.get("step", 0)) * BATCH, **fields}
    return replace(bare_status("training"), workers=shown[:workers], **known)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "pause", lambda seconds: None)
    monkeypatch.setattr(undoing, "pause", lambda seconds: None)


def plan(min_p: int, max_p: int | None, *, restore: bool = True) -> Plan:
    return Plan(min_p=min_p, max_p=max_p, steps=20, warm_up=5, restore=restore)


def test_from_many_workers_to_few_and_back_as_it_was() -> None:
    job, lines = PlayedJob(2), list[str]()
    found = measure(job, plan(1, 4), progress=lines.append)
    assert job.asked == [4, 3, 2, 1, 2]
    assert [row.workers for row in found.rows] == [4, 3, 2, 1]
    assert [round(row.throughput, 6) for row in found.rows] == [80.0, 96.0, 80.0, 32.0]
    assert [round(row.per_worker, 6) for row in found.rows] == [20.0, 32.0, 40.0, 32.0]
    # The paper's GPU efficiency: t(p) / t(p*), p* being 2 here.
    assert [round(row.efficiency or 0.0, 6) for row in found.rows] == [0.5, 0.8, 1.0, 0.8]
    assert found.best == 2
    assert found.notes == ()
    assert all(row.steps >= 20 for row in found.rows)
    assert lines[0] == "scaling out to 4 workers"
    assert lines[-2:] == ["back to 2 workers", "the job has 2 workers as before"]
    assert found.restored


def test_those_that_came_for_it_leave_first_and_slots_are_taken_again() -> None:
    job = PlayedJob(3)
    measure(job, plan(3, 4))
    assert list(job.members) == ["w0", "w1", "w2"]
    measure(job, plan(1, 4))
    # w2 and then w1 had to go too: others sit where they sat, beside the leader that stayed.
    assert sorted(job.members.values()) == ["localhost:0", "localhost:1", "localhost:2"]
    assert "w0" in job.members
    assert job.asked[-5:] == [4, 3, 2, 1, 3]


def test_a_slot_that_is_taken_meanwhile_is_no_reason_to_stay_small() -> None:
    job = PlayedJob(2)
    job.fails[2] = (Refused("localhost:1 is taken"), False)
    found = measure(job, plan(1, 1))
    assert job.workers == 2
    assert found.restored


def test_what_the_job_refuses_is_told_and_left_out() -> None:
    job = PlayedJob(2, most=3, least=2)
    found = measure(job, plan(1, 4))
    assert [row.workers for row in found.rows] == [3, 2]
    assert "4 workers are not allowed" in found.notes[0]
    assert "not measured with 1 worker: 1 workers are not allowed" in found.notes[1]
    assert job.workers == 2


@pytest.mark.parametrize("target", [4, 3, 2, 1])
@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), TimedOut("silence")])
def test_it_is_put_back_when_an_adjustment_is_interrupted(
    target: int, carried_out: bool, failure: BaseException
) -> None:
    """Carried out: the request was on its way, and the job does it after all, a little later."""
    job = PlayedJob(3)
    job.fails[target] = (failure, carried_out)
    if isinstance(failure, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            measure(job, plan(1, 4))
        assert target < 3 or set(job.members) == {"w0", "w1", "w2"}
    else:
        measure(job, plan(1, 4))
    assert job.workers == 3
    assert len(job.members) == 3
    assert "w0" in job.members


def test_a_job_that_cannot_be_put_back_is_told(tmp_path: Path) -> None:
    job = PlayedJob(2)
    job.meanwhile[1] = lambda: setattr(job, "most", 1)
    found = measure(job, plan(1, 1), folder=JobFolder(tmp_path))
    assert not found.restored
    assert "not put back to 2 workers: 2 workers are not allowed" in found.notes[-1]
    assert known_speeds(JobFolder(tmp_path)).keys() == {1}


def test_what_others_change_meanwhile_is_told_and_not_undone() -> None:
    job = PlayedJob(3)
    job.meanwhile[3] = lambda: job.go("w1")
    found = measure(job, plan(2, 3))
    # With 3 it was measured anew, with one that came for this and left again.
    assert [row.workers for row in found.rows] == [3, 2]
    assert sorted(job.members) == ["w0", "w2"]
    assert found.notes[-1] == "the job has 2 workers and had 3: w1 went meanwhile, not by this"
    assert found.restored


def test_who_came_for_it_stays_where_the_job_may_not_be_smaller_without_whoever_went() -> None:
    job = PlayedJob(2, least=2)
    job.meanwhile[3] = lambda: job.go("w1")
    found = measure(job, plan(3, 3))
    assert found.restored
    assert len(job.members) == 2
    assert "stays, for w1 went meanwhile, and the job may not be smaller" in found.notes[-1]


def test_a_leaver_that_was_gone_first_is_no_refusal() -> None:
    job = PlayedJob(3)
    kept = job.scale_in

    def late(workers: Sequence[str], *, request_id: str) -> AdjustmentRecord | None:
        if "w2" in job.members:
            job.go("w2")
        return kept(workers, request_id=request_id)

    job.scale_in = late  # type: ignore[assignment]
    found = measure(job, plan(2, 2))
    assert [row.workers for row in found.rows] == [2]


def test_whoever_cannot_listen_keeps_nothing_from_being_put_back() -> None:
    job = PlayedJob(2)

    def deaf(line: str) -> None:
        if job.workers == 1:
            raise OSError("nobody reads this")

    with pytest.raises(OSError, match="nobody reads"):
        measure(job, plan(1, 2), progress=deaf)
    assert job.workers == 2


def test_without_a_highest_number_it_begins_with_the_present_one() -> None:
    job = PlayedJob(3)
    assert [row.workers for row in measure(job, plan(2, None)).rows] == [3, 2]


def test_long_steps_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list[str]()
    monkeypatch.setattr(profiling, "TELL_S", 0.0)
    measure(PlayedJob(2), plan(2, 2), progress=lines.append)
    assert "2 workers: 6 of 20 steps, about 10 s more" in lines, lines


def test_a_job_of_its_own_need_not_be_put_back() -> None:
    job = PlayedJob(2)
    measure(job, plan(1, 2, restore=False))
    assert job.workers == 1


def test_a_job_that_ends_meanwhile_leaves_what_was_measured() -> None:
    found = measure(PlayedJob(2, ends_after=45), plan(1, 2))
    assert [row.workers for row in found.rows] == [2]
    assert "the job ended first" in found.notes[0]
    with pytest.raises(AdjustmentFailed, match="nothing of job mnist could be measured"):
        measure(PlayedJob(2, ends_after=9), plan(1, 2))


def test_a_leader_that_falls_silent_leaves_what_was_measured() -> None:
    job = PlayedJob(2)
    answering = job.status

    def status_while_two() -> Status:
        if job.workers == 1:
            raise PeerError("no answer")
        return answering()

    job.status = status_while_two  # type: ignore[method-assign]
    found = measure(job, plan(1, 2))
    assert [row.workers for row in found.rows] == [2]
    assert found.notes[0] == "the rest is not measured: no answer"
    assert "not put back to 2 workers: no answer" in found.notes[1]
    assert not found.restored


def test_without_a_range_nothing_is_disturbed(tmp_path: Path) -> None:
    folder, job = JobFolder(tmp_path), PlayedJob(3)
    first = present(job, folder)
    assert [(row.workers, round(row.throughput)) for row in first.rows] == [(3, 96)]
    assert (first.rows[0].efficiency, first.best) == (None, None)
    measure(job, plan(1, 2), folder=folder)
    assert {p: round(speed) for p, speed in known_speeds(folder).items()} == {2: 40, 1: 32}
    job.asked.clear()
    later = present(job, folder)
    assert round(later.rows[0].efficiency or 0.0, 6) == 0.8
    assert later.best == 2
    assert job.asked == []


def test_there_is_nothing_to_tell_before_the_first_step_and_after_the_last() -> None:
    job = PlayedJob(1, ends_after=2)
    with pytest.raises(JobFinished):
        present(job, None)
    quiet = PlayedJob(0)
    STEP_S[0] = float("inf")
    try:
        with pytest.raises(TimedOut, match="no step yet"):
            present(quiet, None)
    finally:
        del STEP_S[0]


@pytest.mark.parametrize(("low", "high"), [(0, 2), (3, 2), (-1, -1)])
def test_a_range_that_is_none_is_told(low: int, high: int) -> None:
    with pytest.raises(UsageError, match="1 <= min_p <= max_p"):
        measure(PlayedJob(2), plan(low, high))


def test_a_meter_counts_no_steps_of_another_generation_and_none_of_another_leader() -> None:
    meter = Meter(2, warm_up=5, steps=10)
    assert meter.on_status(status(2, step=1, trained_s=1.0, generation=1))
    assert meter.on_status(status(2, step=6, trained_s=6.0, generation=1))
    assert meter.on_status(status(2, leader="w1", step=7, trained_s=50.0, generation=1))
    assert meter.on_status(status(2, leader="w1", step=17, trained_s=60.0, generation=1))
    assert meter.done == 0, "another leader counts from its own beginning"
    assert meter.on_status(status(2, leader="w1", step=27, trained_s=70.0, generation=1))
    assert meter.row is not None
    assert (meter.row.throughput, meter.row.steps) == (BATCH, 10)
    disturbed = Meter(2, warm_up=0, steps=10)
    assert disturbed.on_status(status(2, step=1, trained_s=1.0, generation=1))
    assert not disturbed.on_status(status(2, step=9, trained_s=9.0, generation=2))
    assert not disturbed.on_status(status(1, step=9, trained_s=9.0, generation=1))
    assert not Meter(2, warm_up=0, steps=1).on_status(status(1, step=1, trained_s=1.0))


def test_of_equally_good_numbers_the_smaller_is_the_best() -> None:
    rows = [row_of(workers=p, samples=10.0 * p, seconds=1.0, steps=1) for p in (1, 2, 3)]
    found = judged("mnist", rows)
    assert found.best == 1
    assert [row.efficiency for row in found.rows] == [1.0, 1.0, 1.0]
    assert judged("mnist", rows[:1]).rows[0].efficiency is None
