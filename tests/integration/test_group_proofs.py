"""Every rank of a group proves itself to every other before the group is used.

The groups are real, with one thread a rank; strangers are real connections. See `intruder`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from edl.errors import BuildFailed, GroupBroken
from edl.runtime.framework import Group
from tests.contract.servers import until
from tests.integration.conftest import Start
from tests.integration.intruder import Intruder, listeners_of, port_in
from tests.integration.judge import read_journal
from tests.integration.rings import builders, generation_of, in_threads, members

# Gloo's headers of 48 bytes say "ready to send" and "ready to receive"; a nonce or a proof of 32
# bytes follows one of them if the other side is ready.
MOST_BYTES = 3 * 48 + 32


def outcomes(jobs: list[Callable[[], Group]]) -> list[Group | GroupBroken]:
    """What became of each rank's build."""

    def caught(job: Callable[[], Group]) -> Callable[[], Group | GroupBroken]:
        def call() -> Group | GroupBroken:
            try:
                return job()
            except GroupBroken as error:
                return error

        return call

    return in_threads([caught(job) for job in jobs])


def unproven(result: Group | GroupBroken) -> tuple[str, ...]:
    assert isinstance(result, BuildFailed), result
    assert result.unreached == ()
    return result.unproven


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("group", ["control", "data", "state"])
def test_a_stranger_in_a_ranks_place_fails_the_build(group: str, count: int) -> None:
    with Intruder() as intruder:

        def attack(rank: int, key: str, value: bytes) -> None:
            if key.startswith(f"{group}/"):
                intruder.take_places(port_in(value))

        made = generation_of(members(count), newcomers=1)
        results = outcomes(builders(made, before_publish=attack, proof_timeout_s=2.0))
        # In every pair one side listens and hears the stranger; the other side hears nobody.
        concerned = {"w0", f"w{count - 1}"} if group == "state" else set(made.workers())
        for worker, result in zip(made.workers(), results, strict=True):
            if worker in concerned:
                assert set(unproven(result)) == concerned - {worker}
                assert group in str(result)
        for data in intruder.received():
            assert len(data) <= MOST_BYTES
        for result in results:
            if not isinstance(result, GroupBroken):
                result.drop()


def test_ranks_with_different_secrets_do_not_form_a_group() -> None:
    made = generation_of(members(3), newcomers=0)
    results = outcomes(builders(made, secrets=(b"one", b"one", b"other"), proof_timeout_s=10.0))
    assert "w2" in unproven(results[0])
    assert "w2" in unproven(results[1])
    assert "sent a wrong proof" in str(results[2])
    assert set(unproven(results[2])) == {"w0", "w1"}


def test_a_job_trains_on_though_a_stranger_took_a_place_in_its_group(
    start: Start, log: Path
) -> None:
    end, hold = log / "end", log / "hold"
    scale = ("--samples", "400", "--batch", "40", "--epochs", "100000", "--until", str(end))
    pace = ("--pause", "0.05", "--pause-until", str(end))
    job = start("held.py", "--log", str(log), *scale, *pace, workers=4)
    until(lambda: job.status().step > 3, "the job to train", 90.0)
    workers = job.status().workers
    victim = next(worker for worker in workers if not worker.leader)
    left = [worker for worker in workers if worker is not victim]
    known = listeners_of([worker.pid for worker in left])
    hold.touch()
    os.kill(victim.pid, signal.SIGKILL)
    # The survivors build a new group: that is where the stranger comes in.
    for worker in left:
        until((log / f"listening-{worker.id}").exists, f"{worker.id} to listen", 60.0)
    with Intruder() as intruder:
        for port in listeners_of([worker.pid for worker in left]) - known:
            intruder.take_places(port)
        hold.unlink()
        # The stranger keeps its places meanwhile. Without proofs the job would wait for ever.
        until(
            lambda: max(read_journal(log).counted().values()) > 1, "the survivors to train on", 60.0
        )
        end.touch()
        result = job.wait(60.0)
        received = intruder.received()
    assert (result.state, result.exit_status) == ("finished", 0)
    assert received, "the stranger took no place"
    assert all(len(data) <= MOST_BYTES for data in received)
    again = [event for event in job.events() if event.what == "recovery.again"]
    assert "did not prove the job's secret" in str(again[0].fields["why"])
    journal = read_journal(log)
    journal.check_exactly_once(samples=400, epochs=set(range(max(journal.used()) + 1)))
    journal.check_replicas()
