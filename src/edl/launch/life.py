"""One job of local processes, from its first worker to its last.

Everything here runs in the hub's thread, which also starts the processes: it lives as long as the
job, so no locks are needed and no worker is orphaned. Owns: the processes, and how the job ends.
Holds: when the job is over no process of it is left, and result.json says how it ended.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial

from edl.config import Settings
from edl.launch.base import Backend, Ended, JobSpec, WorkerPlan
from edl.launch.census import Census, Judged
from edl.launch.ending import Ending
from edl.launch.environment import checkpoint_environment, worker_environment
from edl.launch.follow import Follower
from edl.launch.jobs import JobFolder, Result
from edl.launch.processes import how_it_ended
from edl.launch.service import LaunchService
from edl.launch.slots import SlotBook
from edl.protocol.messages import Happened, Joiner, ProcessEnded, Status, StopJob
from edl.store.base import Versioned
from edl.types import WorkerId
from edl.wire.hub import Hub, Peer

__all__ = ["Life"]

log = logging.getLogger("edl.launch")

# Between asking a process to go and killing it.
TERMINATE_S = 3.0
REMIND_S = 0.3
# A newcomer whose adjustment was undone hears of it by itself; this is for one that does not.
UNDONE_S = 5.0


class Life:
    """The `Floor` of the launch service. `told` carries what a user should see.

    `revoke` ends a lease in the store, by its name.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        spec: JobSpec,
        settings: Settings,
        folder: JobFolder,
        slots: SlotBook,
        processes: Backend,
        url: str,
        revoke: Callable[[str], None],
    ) -> None:
        self._hub = hub
        self._spec = spec
        self._settings = settings
        self._folder = folder
        self._slots = slots
        self._processes = processes
        self._url = url
        self._revoke = revoke
        self._pids: dict[WorkerId, int] = {}
        self.service = LaunchService(self, slots, hub.send)
        self.founders = self.service.found(spec.founders(slots.gpus))
        self.follower = Follower(hub, on_event=self._on_event, on_status=self._on_status)
        self._census = Census(joiner.worker for joiner in self.founders)
        self._ending = Ending(folder, self._census)
        self._events = open(folder.events_file, "a", buffering=1)  # noqa: SIM115
        self._began = time.monotonic()
        self._interrupts = 0
        self.told: queue.SimpleQueue[str | Happened] = queue.SimpleQueue()
        self.status: Status | None = None
        self.result: Result | None = None
        self._last_event: Happened | None = None
        self.over_event = threading.Event()

    def close(self) -> None:
        self._events.close()

    # -- what the launch service asks ------------------------------------------------------

    def over(self) -> str:
        name = self._folder.name
        if self._census.over or self._ending.failed or self.result is not None:
            return f"job {name} is over"
        return f"job {name} is stopping" if self._ending.stopping else ""

    def start(self, joiners: Iterable[Joiner], request_id: str) -> None:
        joiners = tuple(joiners)
        together = len(self._processes.alive()) + len(joiners)
        for joiner in joiners:
            environment = worker_environment(
                {**os.environ, **self._spec.env, **checkpoint_environment(self._spec)},
                folder=self._folder,
                store=self._url,
                settings=self._settings,
                joiner=joiner,
                request_id=request_id,
                founders=len(self.founders),
                together=together,
                device=self._slots.device(joiner.slot),
            )
            plan = WorkerPlan(
                worker=joiner.worker,
                slot=joiner.slot,
                request_id=request_id,
                environment=environment,
            )
            pid = self._pids[joiner.worker] = self._processes.start(plan)
            self._census.on_started(joiner.worker, request_id)
            log.info("launch.started worker=%s pid=%d slot=%s", joiner.worker, pid, joiner.slot)

    def give_up(self, request_id: str) -> None:
        """The leader decides: it undoes the adjustment, unless the switch has happened."""
        for worker in self._census.of_request(request_id):
            self._tell_gone(worker, request_id, "its requester gave up")

    def alive(self) -> tuple[WorkerId, ...]:
        return self._processes.alive()

    def end(self, why: str, *, force: bool) -> None:
        self._stop(why, status=128 + signal.SIGTERM, force=force)

    # -- the launcher's callbacks ----------------------------------------------------------

    def begin(self) -> None:
        try:
            self.start(self.founders, "")
        except OSError as error:
            self._ending.fail_without_worker(f"the workers could not be started: {error}")
            self._census.on_not_started(joiner.worker for joiner in self.founders)
            self._kill_all()

    def on_interrupt(self, signum: int) -> None:
        """The first asks everybody to leave at the step's end, the second kills."""
        self._interrupts += 1
        name = signal.Signals(signum).name
        self._stop(f"interrupted ({name})", status=128 + signum, force=self._interrupts > 1)
        if self._interrupts == 1:
            self.told.put("stopping at the end of this step; once more kills the workers")

    def on_message(self, peer: Peer, message: object) -> None:
        if self.follower.on_message(peer, message):
            return
        if self.service.handles(message):
            self.service.on_message(peer, message, time.monotonic())
        else:
            log.warning("launch.stray peer=%s message=%s", peer.name, type(message).__name__)

    def on_leader(self, news: Versioned) -> None:
        self._census.led = self._census.led or news.value is not None
        self.follower.on_leader(news.value, news.revision)

    def on_state(self, news: Versioned) -> None:
        if news.value is not None:
            self._census.on_state(news.value.decode(errors="replace"))

    def on_tick(self) -> None:
        if self.result is not None:
            return
        try:
            self._look_around(time.monotonic())
        except Exception as error:
            log.exception("launch.tick failed")
            self._ending.fail_without_worker(f"the launcher failed: {error!r}")
            self._kill_all()
            if not self._processes.alive():
                self._finish()

    def _look_around(self, now: float) -> None:
        for ended in self._processes.ended():
            self._on_ended(ended, now)
        for judged in self._census.judge(now):
            self._on_judged(judged)
        self.service.on_tick(now)
        self.follower.on_tick(now)
        if self._census.over:
            self._dismiss(self._census.pending())
        if not self._census.open:
            self._finish()

    # -- processes end ---------------------------------------------------------------------

    def _on_ended(self, ended: Ended, now: float) -> None:
        worker, how = ended.worker, how_it_ended(ended.status)
        log.info("launch.ended worker=%s how=%r", worker, how)
        # As the worker named it. Whatever it held in the store need not wait until it lapses.
        self._revoke(f"{worker}-{self._pids.pop(worker)}")
        self.service.on_process_ended(worker, now)
        self._census.on_ended(ended, now)
        self._ending.also_ended(ended)
        if not self._census.over:
            self._tell_gone(worker, self._census.request_of(worker), how)

    def _on_judged(self, judged: Judged) -> None:
        worker = judged.ended.worker
        if self._census.is_member(worker) or self._census.has_left(worker):
            self.follower.withdraw(f"gone-{worker}")
        if judged.failed:
            self._ending.fail(judged)
            self._end_all()
        elif judged.why:
            self.told.put(f"worker {worker}: {judged.why}; the job goes on")
            log.warning("launch.harmless worker=%s why=%r", worker, judged.why)

    def _tell_gone(self, worker: WorkerId, request_id: str, why: str) -> None:
        gone = ProcessEnded(request_id=request_id, worker=worker, why=why)
        self.follower.tell(f"gone-{worker}", gone)

    # -- what the leader says --------------------------------------------------------------

    def _on_status(self, status: Status) -> None:
        self.status = status
        self._census.on_status(status)

    def _on_event(self, event: Happened) -> None:
        self._last_event = event
        self._census.on_event(event)
        self.told.put(event)
        try:
            self._events.write(json.dumps({"time": time.time(), **asdict(event)}) + "\n")
        except OSError as error:
            # A full disk must not end a job that trains.
            log.error("launch.event lost seq=%d why=%r", event.seq, str(error))
        if event.what == "adjust.complete":
            leavers = [WorkerId(w) for w in str(event.fields.get("left", "")).split(",") if w]
            allowance_s = self._settings.leave_allowance_s
            self._hub.call_later(allowance_s, partial(self._dismiss, leavers))
        if event.what == "adjust.undone":
            pending = self._census.of_request(event.request_id)
            self._hub.call_later(UNDONE_S, partial(self._dismiss, pending))
        if event.what in ("adjust.complete", "adjust.undone"):
            # The adjustment is settled, so nobody needs to hear again whose process ended.
            for worker in self._census.started_for(event.request_id):
                self.follower.withdraw(f"gone-{worker}")

    # -- ending ----------------------------------------------------------------------------

    def _stop(self, why: str, *, status: int, force: bool) -> None:
        self._ending.stop(why, status=status)
        if force:
            self._kill_all()
        elif self._census.founded and not self._census.over:
            stop = StopJob(request_id=f"stop-{self._folder.name}", why=why)
            self.follower.tell("stop", stop)
        else:
            self._end_all()

    def _end_all(self) -> None:
        """Nothing is left to save: ask the processes to go, and do not wait long."""
        self._census.ending = self._ending.forced = True
        for worker in self._processes.alive():
            self._processes.terminate(worker)
        self._hub.call_later(TERMINATE_S, self._kill_all)
        self._hub.call_later(REMIND_S, self._remind)

    def _remind(self) -> None:
        """Ask those again whose script has failed: they only wait to be ended.

        While it failed, the first request was to them a wish to leave at the step's end.
        """
        waiting = [w for w in self._processes.alive() if self._folder.failure_file(w).exists()]
        for worker in waiting:
            self._processes.terminate(worker)
        if self.result is None:
            self._hub.call_later(REMIND_S, self._remind)

    def _kill_all(self) -> None:
        self._census.ending = self._ending.forced = True
        for worker in self._processes.alive():
            self._processes.kill(worker)

    def _dismiss(self, workers: Iterable[WorkerId]) -> None:
        """End processes that are no members (any more)."""
        alive = set(self._processes.alive())
        for worker in workers:
            if worker not in alive or self._census.is_member(worker):
                continue
            if self._census.on_dismissed(worker):
                log.info("launch.dismissed worker=%s", worker)
                self._processes.terminate(worker)
                self._hub.call_later(TERMINATE_S, partial(self._processes.kill, worker))

    def _finish(self) -> None:
        self.result = self._ending.result(time.monotonic() - self._began)
        try:
            self._folder.write_result(self.result)
        except OSError as error:
            log.error("launch.result not written why=%r", str(error))
        if self.result.state == "failed":
            self._on_event(self._failure_event(self.result))
        log.info("launch.over state=%s status=%d", self.result.state, self.result.exit_status)
        self.service.on_job_over(f"job {self._folder.name}: {self.result.state}")
        self.follower.close()
        self.over_event.set()

    def _failure_event(self, result: Result) -> Happened:
        """The history's last line: no leader is left to write it."""
        last, first = self._last_event, result.first_failure
        fields: dict[str, str | int | float] = {"why": result.why}
        if first is not None:
            fields |= {"worker": first.worker, "reason": first.reason, "log": first.log}
        return Happened(
            seq=last.seq + 1 if last else 1,
            what="job.failed",
            request_id="",
            generation=last.generation if last else 0,
            step=result.steps,
            fields=fields,
        )
