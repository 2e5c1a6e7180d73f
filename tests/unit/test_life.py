"""The life of a job in the launcher: whatever fails, it ends with a result."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edl.config import Settings
from edl.launch.base import ColdStart, Ended, JobSpec, WorkerPlan
from edl.launch.jobs import JobFolder
from edl.launch.life import Life
from edl.launch.messages import port_codec
from edl.launch.slots import SlotBook
from edl.protocol.conductor import GENERATION_KEY
from edl.protocol.leader import STATE_KEY
from edl.protocol.recorded import Deed, write_recorded
from edl.protocol.topology import Generation
from edl.store.base import Versioned
from edl.types import Address, Gpu, Member, WorkerId
from edl.wire.hub import Hub
from tests.contract.servers import until

PATIENCE_S = 30.0
RESTARTED = JobSpec(script="train.py", workers=2, checkpoint="checkpoints")


class Processes:
    """A backend of processes that start and end by the test's word; `fault` breaks it."""

    def __init__(self) -> None:
        self.running: dict[WorkerId, int] = {}
        self.dead: list[Ended] = []
        self.fault: Exception | None = None

    def start(self, plan: WorkerPlan) -> int:
        self.running[plan.worker] = 1 << 22
        return self.running[plan.worker]

    def alive(self) -> tuple[WorkerId, ...]:
        return tuple(self.running)

    def ended(self) -> list[Ended]:
        if self.fault is not None:
            raise self.fault
        found, self.dead = self.dead, []
        return found

    def terminate(self, worker: WorkerId) -> None:
        self.kill(worker)

    def kill(self, worker: WorkerId) -> None:
        if self.running.pop(worker, None) is not None:
            self.dead.append(Ended(worker=worker, status=-9, at=0.0))

    def cold_starts(self) -> list[ColdStart]:
        return []

    def close(self) -> None:
        self.running.clear()


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    for name in ("logs", "failures"):
        (tmp_path / name).mkdir()
    return JobFolder(tmp_path)


@pytest.fixture
def processes() -> Processes:
    return Processes()


class Fence:
    """Records what the launcher asks to be fenced, and answers by the test's word."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.revision = -1
        self.done: Callable[[], None] = lambda: None

    def __call__(self, run: str, revision: int, done: Callable[[], None]) -> None:
        self.revision, self.done = revision, done
        self.asked.set()


@pytest.fixture
def fence() -> Fence:
    return Fence()


@pytest.fixture
def spec() -> JobSpec:
    return JobSpec(script="train.py", workers=2)


@pytest.fixture
def gpus() -> int:
    """How many GPUs the job may use; 0 for CPU slots."""
    return 0


@pytest.fixture
def life(
    folder: JobFolder,
    processes: Processes,
    fence: Fence,
    spec: JobSpec,
    gpus: int,
    taken: Taken,
) -> Iterator[Life]:
    hub = Hub(
        name="edl-launch",
        job="life",
        secret=b"s" * 32,
        codec=port_codec(),
        on_message=lambda peer, message: None,
        on_tick=lambda: made.on_tick(),
    )
    made = Life(
        hub,
        spec=spec,
        settings=Settings(),
        folder=folder,
        slots=SlotBook({index: str(index) for index in range(gpus)}, locks=taken),
        processes=processes,
        environment={},
        begin_run=lambda run: None,
        revoke=lambda lease: None,
        fence=fence,
    )
    hub.start()
    yield made
    hub.stop()
    made.close()


def test_fault_of_the_launcher_itself_ends_the_job_with_a_result(
    life: Life, folder: JobFolder, processes: Processes
) -> None:
    processes.fault = OSError(errno.EIO, os.strerror(errno.EIO))
    life._hub.post(life.begin)
    assert life.over_event.wait(PATIENCE_S)
    assert life.result is not None
    assert (life.result.state, life.result.exit_status) == ("failed", 1)
    assert "Input/output error" in life.result.why
    assert json.loads((folder.path / "result.json").read_text())["state"] == "failed"


def test_result_that_cannot_be_written_still_ends_the_job(
    life: Life, folder: JobFolder, processes: Processes
) -> None:
    (folder.path / "result.json").mkdir()
    (folder.path / "seen.json").mkdir()
    processes.fault = ValueError("unexpected")
    life._hub.post(life.begin)
    assert life.over_event.wait(PATIENCE_S)
    assert life.result is not None
    assert life.result.state == "failed"


def test_run_that_cannot_be_recorded_fails_the_job_and_names_the_file(
    folder: JobFolder, life: Life
) -> None:
    (folder.path / "run").mkdir()
    life._hub.post(life.begin)
    assert life.over_event.wait(PATIENCE_S)
    assert life.result is not None
    assert f"cannot write {folder.path / 'run'}" in life.result.why


def generation(number: int, *names: str, deeds: tuple[Deed, ...] = ()) -> bytes:
    members = tuple(
        Member(
            worker=WorkerId(name),
            address=Address("127.0.0.1", 9),
            host="node",
            slot=Gpu("node", index),
            pid=1,
        )
        for index, name in enumerate(names)
    )
    return write_recorded(
        Generation(
            number=number,
            members=members,
            newcomers=(),
            source=members[0].worker,
            leader=members[0].worker,
            founding=False,
            mended=False,
            token=1,
            request_id="",
        ),
        deeds,
    )


def lose_everybody(life: Life, processes: Processes, deeds: tuple[Deed, ...] = ()) -> None:
    """The job trains in generation 1, as recorded at revision 7, and all its processes die."""
    life.begin()
    names = sorted(processes.running)
    life.on_key(life.run, GENERATION_KEY, Versioned(generation(1, *names, deeds=deeds), 7))
    for worker in names:
        processes.kill(WorkerId(worker))


@pytest.mark.parametrize("spec", [RESTARTED], ids=["checkpoint"])
def test_job_restarts_only_after_its_last_generation_is_fenced(
    life: Life, processes: Processes, fence: Fence
) -> None:
    life._hub.post(lambda: lose_everybody(life, processes))
    assert fence.asked.wait(PATIENCE_S)
    assert fence.revision == 7
    assert life.away() == "", "no restart before the fence is confirmed"
    life._hub.post(fence.done)
    until(lambda: life.away() != "", "the restart", PATIENCE_S)


@pytest.mark.parametrize("spec", [RESTARTED], ids=["checkpoint"])
def test_job_that_recorded_its_end_is_not_restarted_by_a_launcher_that_missed_it(
    life: Life, processes: Processes, fence: Fence
) -> None:
    life._hub.post(lambda: lose_everybody(life, processes))
    assert fence.asked.wait(PATIENCE_S)
    life._hub.post(lambda: life.on_key(life.run, STATE_KEY, Versioned(b"finished", 8)))
    assert life.over_event.wait(PATIENCE_S)
    assert life.result is not None
    assert life.result.restarts == 0


@pytest.mark.parametrize("spec", [RESTARTED], ids=["checkpoint"])
def test_generation_that_the_launcher_had_not_seen_is_fenced_at_its_own_revision(
    life: Life, processes: Processes, fence: Fence
) -> None:
    life._hub.post(lambda: lose_everybody(life, processes))
    assert fence.asked.wait(PATIENCE_S)
    fence.asked.clear()
    names = sorted(str(joiner.worker) for joiner in life.founders)
    newer = Versioned(generation(2, *names[:1]), 9)
    life._hub.post(lambda: life.on_key(life.run, GENERATION_KEY, newer))
    assert fence.asked.wait(PATIENCE_S)
    assert fence.revision == 9


@pytest.mark.parametrize("spec", [RESTARTED], ids=["checkpoint"])
def test_request_whose_generation_was_recorded_is_known_after_a_restart(
    life: Life, processes: Processes, fence: Fence
) -> None:
    def adjusted(request_id: str, undone: str) -> Deed:
        return Deed(
            request_id=request_id,
            kind="scale_out",
            joined=(WorkerId("w1"),),
            left=(),
            generation=1,
            size=2,
            undone=undone,
        )

    deeds = (adjusted("done", ""), adjusted("undone", "w1 died"))
    life._hub.post(lambda: lose_everybody(life, processes, deeds))
    assert fence.asked.wait(PATIENCE_S)
    assert life.outcome("done") is None, "the leader of the present run knows better"
    first = life.run
    life._hub.post(fence.done)
    until(lambda: life.run != first, "the next run", PATIENCE_S)
    done = life.outcome("done")
    assert done is not None
    assert (done.kind, done.joined, done.size) == ("scale_out", (WorkerId("w1"),), 2)
    assert life.outcome("undone") is None


def test_start_that_fails_with_an_unusual_error_ends_the_job_with_a_result(
    life: Life, processes: Processes
) -> None:
    begun = processes.start

    def start(plan: WorkerPlan) -> int:
        if processes.running:
            raise ValueError("embedded null byte")
        return begun(plan)

    processes.start = start  # type: ignore[method-assign]
    life._hub.post(life.begin)
    assert life.over_event.wait(PATIENCE_S)
    assert life.result is not None
    assert life.result.state == "failed"
    assert life.result.why == "the workers could not be started: embedded null byte"


class Taken:
    """Locks of a machine where another job holds some GPUs."""

    def __init__(self) -> None:
        self.others: set[str] = set()

    def acquire(self, name: str, *, shared: bool = False, alone: bool = False) -> str:
        return "job other" if name in self.others else ""

    def release(self, name: str) -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def taken() -> Taken:
    return Taken()


def restart(life: Life, processes: Processes, fence: Fence) -> None:
    """Lose all workers, and let the pause pass."""
    life._hub.post(lambda: lose_everybody(life, processes))
    assert fence.asked.wait(PATIENCE_S)
    life._hub.post(fence.done)


@pytest.mark.parametrize("gpus", [2])
@pytest.mark.parametrize("spec", [RESTARTED], ids=["checkpoint"])
def test_job_restarts_on_the_gpus_that_other_jobs_left(
    life: Life, processes: Processes, fence: Fence, taken: Taken
) -> None:
    first = life.run
    taken.others = {"gpu-0"}
    restart(life, processes, fence)
    until(lambda: life.run != first, "the next run", PATIENCE_S)
    assert [str(joiner.slot) for joiner in life.founders] == ["localhost:1"]


@pytest.mark.parametrize("gpus", [2])
@pytest.mark.parametrize(
    "spec", [replace(RESTARTED, min_workers=2, max_restarts=2)], ids=["both are needed"]
)
def test_restart_without_enough_free_gpus_is_counted_and_tried_again(
    life: Life,
    processes: Processes,
    fence: Fence,
    taken: Taken,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edl.launch.restarts.PAUSE_S", 0.05)
    first = life.run
    taken.others = {"gpu-0"}
    restart(life, processes, fence)
    until(lambda: life._restarts.count == 2, "the second restart", PATIENCE_S)
    taken.others = set()
    until(lambda: life.run != first, "the next run", PATIENCE_S)
    assert life.result is None
    assert len(life.founders) == 2


@pytest.mark.parametrize("gpus", [2])
@pytest.mark.parametrize(
    "spec", [replace(RESTARTED, min_workers=2, max_restarts=2)], ids=["both are needed"]
)
def test_job_whose_gpus_stay_taken_fails_after_its_restarts_and_names_their_holder(
    life: Life,
    processes: Processes,
    fence: Fence,
    taken: Taken,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edl.launch.restarts.PAUSE_S", 0.05)
    taken.others = {"gpu-0"}
    restart(life, processes, fence)
    assert life.over_event.wait(PATIENCE_S)
    assert life.result is not None
    assert life.result.restarts == 2
    assert "localhost:0 is held by job other" in life.result.why
    assert "2 restarts in a row" in life.result.why
