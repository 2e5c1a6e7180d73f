"""Workers die, freeze and fail in real jobs; whoever is left goes on and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from edl.client import Job
from edl.errors import PeerError, TimedOut
from tests.contract.servers import until
from tests.integration.conftest import Start
from tests.integration.judge import Journal, read_journal
from tests.integration.moments import kill_together

SAMPLES, BATCH, EPOCHS = 400, 40, 6

JOURNAL = (
    *("--samples", str(SAMPLES), "--batch", str(BATCH), "--epochs", str(EPOCHS)),
    # Many buckets: a peer may be lost between two of them.
    *("--model", "batchnorm", "--optimizer", "adam", "--bucket-mb", "0.0005"),
)


def endless(log: Path, pause_s: float = 0.06) -> tuple[str, ...]:
    """Until there is a file `end` beside its logs, so that it is not over before anybody dies."""
    end = str(log / "end")
    pace = ("--pause", str(pause_s), "--pause-until", end)
    return ("--log", str(log), *JOURNAL, "--epochs", "100000", "--until", end, *pace)


def judge(log: Path) -> Journal:
    """Every sample once an epoch, the batch constant, replicas equal."""
    journal = read_journal(log)
    epochs = max(journal.used()) + 1 if (log / "end").exists() else EPOCHS
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(epochs)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
    return journal


def wait_step(job: Job, step: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        # A leader that is frozen or dead cannot answer; soon another one does.
        with contextlib.suppress(PeerError, TimedOut):
            if job.status().step >= step:
                return
        assert job.running(), f"the job ended before step {step}: {job.result()}\n{story(job)}"
        time.sleep(0.02)
    raise AssertionError(f"the job did not reach step {step} within 60 s\n{story(job)}")


def story(job: Job) -> str:
    """The last events and log lines of a job, for the message of a failed test."""
    events = [f"{e.time:.3f} {e.what} step={e.step} {e.fields}" for e in job.events()]
    return "\n".join(["last events:", *events[-30:], "last log lines:", *[*job.logs()][-60:]])


def end_with(job: Job, log: Path, left: int) -> None:
    """Let an endless job end when so many are left, and have done a step."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(PeerError, TimedOut):
            if len(job.status().workers) == left:
                break
        time.sleep(0.02)
    wait_step(job, job.status().step + 2)
    (log / "end").touch()


def pid_of(job: Job, *, leader: bool) -> int:
    return next(worker.pid for worker in job.status().workers if worker.leader is leader)


@pytest.mark.parametrize("leader", [False, True], ids=["follower", "leader"])
def test_a_killed_worker_costs_nothing(start: Start, log: Path, *, leader: bool) -> None:
    job = start("journal.py", *endless(log), workers=3)
    wait_step(job, 10)
    os.kill(pid_of(job, leader=leader), signal.SIGKILL)
    end_with(job, log, 2)
    result = job.wait(90)
    assert result.state == "finished", result.why
    journal = judge(log)
    assert journal.sizes()[-1] == 2
    events = [event.what for event in job.events()]
    assert "job.recovered" in events
    assert ("leader.changed" in events) is leader
    of_recovery = {"leader.changed", "worker.lost", "recovery.building", "job.recovered"}
    # The leader reported step 10; a follower may be a step behind it.
    assert all(event.step >= 9 for event in job.events() if event.what in of_recovery)


def test_two_at_once_the_leader_among_them(start: Start, log: Path) -> None:
    job = start("journal.py", *endless(log), workers=4)
    wait_step(job, 10)
    doomed = [pid_of(job, leader=True), pid_of(job, leader=False)]
    kill_together(doomed)
    end_with(job, log, 2)
    result = job.wait(90)
    assert result.state == "finished", result.why
    assert judge(log).sizes()[-1] == 2


def test_all_but_one(start: Start, log: Path) -> None:
    job = start("journal.py", *endless(log), workers=3)
    for step in (10, 20):
        wait_step(job, step)
        os.kill(pid_of(job, leader=True), signal.SIGKILL)
    end_with(job, log, 1)
    result = job.wait(90)
    assert result.state == "finished", result.why
    assert judge(log).sizes()[-1] == 1


@pytest.mark.parametrize("leader", [False, True], ids=["follower", "leader"])
def test_a_frozen_worker_is_lost_and_cannot_come_back(
    start: Start, log: Path, *, leader: bool
) -> None:
    job = start("journal.py", *endless(log, 0.3), workers=3, env={"EDL_SILENCE_S": "2.0"})
    wait_step(job, 10)
    frozen = pid_of(job, leader=leader)
    os.kill(frozen, signal.SIGSTOP)
    try:
        wait_step(job, 20)
    finally:
        os.kill(frozen, signal.SIGCONT)
    end_with(job, log, 2)
    result = job.wait(90)
    assert result.state == "finished", result.why
    assert judge(log).sizes()[-1] == 2


# Points of a step, of a reduction and of the closing; three workers die one after another.
CHAINS = {
    "step": [["step", 8], ["opened", 16], ["record", 24]],
    "gradients": [["bucket", 8], ["reduced", 16], ["update", 24]],
    "boundary": [["commit", 8], ["committed", 16], ["evened", 24]],
    "recovery": [["update", 8], ["mend", 8], ["mended", 8]],
    "levelling": [["bucket", 8], ["level", 8], ["levelled", 8]],
    "between": [["reduce", 8], ["reduced-own", 18], ["closing", 28]],
    "closing": [["closing-round", 8], ["closed", 18], ["shutdown", 0]],
    "the end": [["over", 0], ["over", 0], ["over", 0]],
}


@pytest.mark.parametrize("chain", [*CHAINS])
def test_death_at_a_named_point(start: Start, log: Path, chain: str) -> None:
    plan = {f"w{index}": point for index, point in enumerate(CHAINS[chain])}
    job = start(
        "dying.py",
        *("--log", str(log), *JOURNAL, "--until", str(log / "never"), "--die", json.dumps(plan)),
        workers=4,
    )
    result = job.wait(120)
    assert result.state == "finished", result.why
    ended = {w for w, lines in judge(log).lines.items() if lines[-1]["what"] == "end"}
    assert ended == {"w3"}


# Every point with every rank of three. The one that leads is w1, and w0 is whom the others take
# buffers from, so each rank is another part.
OF_A_STEP = ("step", "opened", "record", "bucket", "reduced", "update", "commit", "committed")
OF_A_RECOVERY = ("broke", "mend", "level", "levelled", "mended")
OF_THE_CLOSING = (
    *("reduce", "reduced-own", "evened", "closing", "closing-round", "closed"),
    *("shutdown", "over"),
)


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("point", [*OF_A_STEP, *OF_THE_CLOSING])
def test_each_rank_at_each_point(
    start: Start, log: Path, tmp_path: Path, point: str, rank: int
) -> None:
    die = {f"w{rank}": [point, 8]}
    assert die_as_planned(start, log, tmp_path, die, workers=3) == {"w0", "w1", "w2"} - {*die}


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("point", OF_A_RECOVERY)
def test_each_rank_at_each_point_of_a_recovery(
    start: Start, log: Path, tmp_path: Path, point: str, rank: int
) -> None:
    """The death of w3 is what they recover from."""
    die = {f"w{rank}": [point, 8], "w3": ["update", 8]}
    assert die_as_planned(start, log, tmp_path, die, workers=4) == {"w0", "w1", "w2"} - {*die}


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(3))
def test_each_rank_as_it_gives_its_state(
    start: Start, log: Path, tmp_path: Path, rank: int
) -> None:
    """Another one is behind; if whoever gives first is this rank, it dies, else nobody does."""
    behind = (rank + 1) % 3
    die = {f"w{behind}": ["lose-gradient", 8], f"w{rank}": ["give", 8]}
    ended = die_as_planned(start, log, tmp_path, die, workers=3)
    assert ended | {f"w{rank}"} == {"w0", "w1", "w2"}


def die_as_planned(
    start: Start, log: Path, folder: Path, die: dict[str, list[object]], *, workers: int
) -> set[str]:
    """Who came to the end; the job is judged."""
    (folder / "orders").mkdir()
    job = start(
        "dying.py",
        *("--log", str(log), *JOURNAL, "--until", str(log / "never"), "--die", json.dumps(die)),
        *("--orders", str(folder / "orders"), "--leader", "w1"),
        workers=workers,
    )
    result = job.wait(120)
    assert result.state == "finished", result.why
    return {w for w, lines in judge(log).lines.items() if lines[-1]["what"] == "end"}


# Worker w2 does not get to see the end of a collective that all others have completed.
LOSSES = {
    "gradient": {"w2": ["lose-gradient", 8]},
    "reduction": {"w2": ["lose-reduction", 8]},
    "buffers": {"w2": ["lose-buffers", 8]},
    "gradient, and the others die": {
        "w2": ["lose-gradient", 8], "w0": ["give", 8], "w1": ["give", 8],
    },
}  # fmt: skip


@pytest.mark.parametrize("case", [*LOSSES])
def test_whoever_is_behind_takes_the_most_advanced_state(
    start: Start, log: Path, case: str
) -> None:
    plan = LOSSES[case]
    job = start(
        "dying.py",
        *("--log", str(log), *JOURNAL, "--until", str(log / "never"), "--die", json.dumps(plan)),
        workers=3,
    )
    result = job.wait(120)
    assert result.state == "finished", result.why
    journal = judge(log)
    assert journal.lines["w2"][-1]["what"] == "end"
    # Nobody went back: a step that anyone had committed was not done again.
    committed = [line["step"] for line in journal.lines["w2"] if line.get("committed")]
    assert committed == sorted(set(committed))
    assert any(event.what == "job.recovered" for event in job.events())


@pytest.mark.parametrize("every", [1, 4])
def test_reductions_between_steps_are_the_same_after_a_void_step(
    start: Start, log: Path, every: int
) -> None:
    """The others are in step 8 when w2 loses the reduction before it: they pass it again."""
    plan = {"w2": ["lose-reduction-late", 8]}
    job = start(
        "dying.py",
        *("--log", str(log), *JOURNAL, "--die", json.dumps(plan)),
        *("--reduce-every", str(every)),
        workers=3,
    )
    result = job.wait(120)
    assert result.state == "finished", result.why
    lines = judge(log).lines
    at_8 = {
        worker: [
            line["sum"]
            for line in lines[worker]
            if (line["what"], line.get("step")) == ("reduced", 8)
        ]
        for worker in ("w0", "w1", "w2")
    }
    assert at_8 == {"w0": [6.0, 6.0], "w1": [6.0, 6.0], "w2": [6.0]}


@pytest.mark.parametrize("stuck", [False, True], ids=["training", "stuck"])
def test_worker_whose_agent_fails_leads_no_more_and_ends(
    start: Start, log: Path, tmp_path: Path, *, stuck: bool
) -> None:
    job = start("faulty_agent.py", *endless(log), "--orders", str(tmp_path), workers=3)
    wait_step(job, 5)
    leader = next(worker for worker in job.status().workers if worker.leader)
    if stuck:
        # The others wait for its gradients: only its connections can show that it is lost.
        (tmp_path / f"stuck-{leader.id}").touch()
        until((tmp_path / f"waits-{leader.id}").exists, "the leader's script to wait")
    (tmp_path / f"fault-{leader.id}").touch()
    end_with(job, log, 2)
    result = job.wait(90)
    assert result.state == "finished", result.why
    ended = {w for w, lines in judge(log).lines.items() if lines[-1]["what"] == "end"}
    assert ended == {"w0", "w1", "w2"} - {leader.id}
    if not stuck:  # otherwise the launcher ends it, as it does with a worker that was evicted
        (failure,) = result.failures
        assert failure.worker == leader.id
        assert "the agent failed: RuntimeError('a planted fault')" in failure.error
    assert not psutil.pid_exists(leader.pid)
    assert any(event.what == "leader.changed" for event in job.events())
