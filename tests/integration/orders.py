"""Jobs of the script `dying.py`, whose workers die on order at named points of an adjustment."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from edl.client import Job
from edl.errors import AdjustmentFailed, EdlError, Refused
from edl.protocol.messages import AdjustmentRecord
from edl.protocol.tale import WorkerStatus
from tests.contract.servers import until
from tests.integration.conftest import Start
from tests.integration.judge import Journal, read_journal

__all__ = ["Answer", "Doomed"]

SAMPLES, BATCH = 120, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a requester was told in the end."""

    what: str  # adjusted, undone or refused
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    generation: int = 0
    size: int = 0
    reason: str = ""


def adjusted(record: AdjustmentRecord | None) -> Answer:
    assert record is not None
    return Answer(
        what="adjusted",
        joined=tuple(record.joined),
        left=tuple(record.left),
        generation=record.generation,
        size=record.size,
    )


class Doomed:
    """One job whose founders are `w0` and so on, and are led by the one that is named."""

    def __init__(
        self,
        start: Start,
        folder: Path,
        *,
        workers: int,
        leader: str = "w1",
        env: dict[str, str] | None = None,
    ) -> None:
        self.log, self.orders, self._end = folder / "log", folder / "orders", folder / "end"
        self.log.mkdir(exist_ok=True)
        self.orders.mkdir()
        self.next = workers
        self.dead: list[str] = []
        self.last: Answer | None = None  # to the last request
        # Many buckets: a peer may be lost between two of them.
        size = ("--samples", str(SAMPLES), "--batch", str(BATCH), "--bucket-mb", "0.0005")
        model = ("--model", "batchnorm", "--optimizer", "adam")
        until_told = ("--epochs", "100000", "--until", str(self._end))
        pace = ("--pause", "0.05", "--pause-until", str(self._end))
        self.job: Job = start(
            "dying.py",
            *("--log", str(self.log), *size, *model, *until_told, *pace),
            *("--orders", str(self.orders), "--leader", leader),
            workers=workers,
            # Loaders here are never ahead: a long allowance would only make the tests longer.
            env={"EDL_SWITCH_ALLOWANCE_S": "0.1", **(env or {})},
        )
        self.train(3)

    # -- looking ---------------------------------------------------------------------------

    def _members(self) -> list[WorkerStatus]:
        """In the order of their ranks; waits for somebody who can tell."""
        found: list[WorkerStatus] = []

        def told() -> bool:
            with contextlib.suppress(EdlError):
                found[:] = [worker for worker in self.job.status().workers if worker.rank >= 0]
            return any(worker.leader for worker in found)

        until(told, "a leader that tells who is there", 60.0)
        return sorted(found, key=lambda worker: worker.rank)

    def members(self) -> list[str]:
        return [worker.id for worker in self._members()]

    def leader(self) -> str:
        return next(worker.id for worker in self._members() if worker.leader)

    def victim(self, role: str) -> str:
        """The worker in this role now: leader, source, elder (neither of both) or joiner."""
        if role == "joiner":
            return f"w{self.next}"
        members, leader = self.members(), self.leader()
        if role == "leader":
            return leader
        if role == "source":
            return members[0]
        return next(worker for worker in reversed(members) if worker not in (leader, members[0]))

    def train(self, steps: int) -> None:
        """Until so many more steps are done."""
        seen = [-1]

        def further() -> bool:
            with contextlib.suppress(EdlError):
                status = self.job.status()
                if status.state == "training":
                    seen[0] = status.step if seen[0] < 0 else seen[0]
                    return status.step >= seen[0] + steps
            return False

        until(further, f"{steps} more steps", 60.0)

    # -- dying -----------------------------------------------------------------------------

    def order(self, worker: str, point: str) -> None:
        """This worker (or `anyone...`) dies when it comes to the point."""
        draft = self.orders / f".{worker}"
        draft.write_text(point)
        draft.rename(self.orders / worker)

    def obeyed(self, name: str) -> str:
        """Which worker has died by this order."""
        found: list[str] = []

        def taken() -> bool:
            found[:] = [path.name.rsplit("-", 1)[1] for path in self.orders.glob(f"done-{name}-*")]
            return bool(found)

        until(taken, f"a death by order {name!r}", 60.0)
        self.dead += found
        return found[0]

    # -- asking ----------------------------------------------------------------------------

    def scale_out(self, request_id: str) -> Answer:
        """Ask for one more; both times the same answer comes."""
        self.last = answer = self._out(request_id)
        assert self._out(request_id) == answer
        self.next += 1
        return answer

    def scale_in(self, worker: str, request_id: str) -> Answer:
        self.last = answer = self._in(worker, request_id)
        assert self._in(worker, request_id) == answer
        return answer

    def migrate(self, workers: list[str], request_id: str) -> Answer:
        """As many come as go."""
        self.last = answer = self._move(workers, request_id)
        if answer.what != "refused":
            assert self._move(workers, request_id) == answer
        self.next += len(workers)
        return answer

    def _move(self, workers: list[str], request_id: str) -> Answer:
        try:
            record = self.job.migrate(workers, len(workers), request_id=request_id)
        except (AdjustmentFailed, Refused) as error:
            what = "refused" if isinstance(error, Refused) else "undone"
            return Answer(what=what, reason=str(error))
        return adjusted(record)

    def _out(self, request_id: str) -> Answer:
        try:
            record = self.job.scale_out(1, request_id=request_id)
        except AdjustmentFailed as error:
            return Answer(what="undone", reason=str(error))
        return adjusted(record)

    def _in(self, worker: str, request_id: str) -> Answer:
        try:
            record = self.job.scale_in([worker], request_id=request_id)
        except (AdjustmentFailed, Refused) as error:
            what = "refused" if isinstance(error, Refused) else "undone"
            return Answer(what=what, reason=str(error))
        return adjusted(record)

    # -- judging ---------------------------------------------------------------------------

    def finish(self, *, survivors: set[str]) -> Journal:
        """End the job: nothing is lost, and exactly these workers have come to its end."""
        self._end.touch()
        result = self.job.wait(90)
        assert result.state == "finished", result.why
        # A joiner that dies before it is a member, or a leaver that has left, fails nobody.
        assert {failure.worker for failure in result.failures} <= set(self.dead)
        journal = read_journal(self.log)
        journal.check_exactly_once(samples=SAMPLES, epochs=set(range(max(journal.used()) + 1)))
        journal.check_batches(batch=BATCH, samples=SAMPLES)
        journal.check_replicas()
        journal.check_end(steps=max(journal.counted()) + 1)
        ended = {w for w, lines in journal.lines.items() if lines and lines[-1]["what"] == "end"}
        assert ended == survivors
        return journal
