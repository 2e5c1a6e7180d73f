"""One job of local processes, from its first worker to its last.

Everything here but the start, the end and `interrupt` runs in the hub's thread, which also starts
the processes: it lives as long as the job, so no locks are needed and no worker is orphaned.

Owns: the port, the store served on it, the processes, and how the job ends. Holds: when the job is
over no process of it is left, and result.json says how it ended.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from edl.config import Settings
from edl.errors import EdlError, UsageError
from edl.launch.base import Ended, JobSpec, WorkerPlan
from edl.launch.census import Census, Judged
from edl.launch.environment import worker_environment
from edl.launch.ending import Ending
from edl.launch.follow import Follower
from edl.launch.jobs import JobInfo, claim
from edl.launch.messages import port_codec
from edl.launch.processes import LocalProcesses, how_it_ended
from edl.launch.service import LaunchService
from edl.launch.slots import SlotBook, find_gpus, gpus_from_text
from edl.protocol.election import LEADER_KEY
from edl.protocol.leader import STATE_KEY
from edl.protocol.messages import Happened, Joiner, ProcessEnded, Status, StopJob
from edl.store.base import Store, Versioned, open_store
from edl.store.service import EmbeddedService
from edl.types import WorkerId
from edl.wire.hub import Hub, Peer

__all__ = ["LocalLauncher"]

log = logging.getLogger("edl.launch")

TICK_S = 0.05
# Between asking a process to go and killing it.
TERMINATE_S = 3.0
# A newcomer whose adjustment was undone hears of it by itself; this is for one that does not.
UNDONE_S = 5.0


class LocalLauncher:
    """Made: the name, the port and the slots are this job's. Raises UsageError if they cannot be.

    `told` carries what a user should see: lines of text, and the job's events.
    """

    def __init__(self, spec: JobSpec) -> None:
        spec.check()
        script = Path(spec.script)
        if not script.is_file():
            what = "is a folder" if script.is_dir() else "does not exist"
            raise UsageError(f"script {spec.script!r} {what}; give the path of a Python file")
        devices = _devices(spec)
        settings = Settings.from_environment({**os.environ, **spec.env})
        self.settings = replace(
            settings, min_workers=spec.min_workers, max_workers=spec.max_workers
        )
        self._spec = spec
        self._slots = SlotBook(devices, limit=spec.slots, oversubscribe=spec.oversubscribe)
        self._service = LaunchService(self, self._slots, self._send)
        self._founders = self._service.found(spec.founders(self._slots.total or 0))
        self._census = Census(joiner.worker for joiner in self._founders)
        self.told: queue.SimpleQueue[str | Happened] = queue.SimpleQueue()
        self.status: Status | None = None
        self.finished = threading.Event()
        self._store: Store | None = None
        self._began = time.monotonic()
        self._interrupts = 0
        self._stopping = False
        self._claim = claim(spec.name, stem=script.stem)
        self.folder = self._claim.folder
        self.ending = Ending(self.folder, self._census)
        try:
            self._open(script)
        except BaseException:
            self._claim.withdraw()
            raise

    def _open(self, script: Path) -> None:
        self._hub = Hub(
            name="edl-launch",
            job=self.folder.name,
            secret=self.folder.secret(),
            codec=port_codec(),
            on_message=self._on_message,
            on_open=self._on_open,
            on_closed=self._on_closed,
            on_tick=self._on_tick,
            tick_s=TICK_S,
        )
        self._store_service = EmbeddedService(self._send, tick_s=TICK_S)
        self._follower = Follower(self._hub, on_event=self._on_event, on_status=self._on_status)
        self._processes = LocalProcesses(self.folder, [str(script), *self._spec.args])
        try:
            address = self._hub.listen("127.0.0.1", self._spec.port)
        except BaseException:
            self._hub.stop()
            raise
        self.url = f"edl://{address}"
        info = JobInfo(
            name=self.folder.name,
            pid=os.getpid(),
            script=str(script.resolve()),
            args=self._spec.args,
            store=self.url,
            created=time.time(),
            backend="local",
            workers=len(self._founders),
            min=self._spec.min_workers,
            max=self._spec.max_workers,
            slots=self._slots.total or 0,
            python=sys.executable,
        )
        self.folder.write_info(info)
        self._events = open(self.folder.events_file, "a", buffering=1)  # noqa: SIM115

    # -- the owner's thread ----------------------------------------------------------------

    def start(self) -> None:
        """Serve the port and start the founders."""
        self._hub.start()
        self._store = open_store(self.url, job=self.folder.name, secret=self.folder.secret())
        self._store.watch(LEADER_KEY, self._posting(self._on_leader))
        self._store.watch(STATE_KEY, self._posting(self._on_state))
        self._hub.post(self._start_founders)

    def interrupt(self, signum: int) -> None:
        """The first asks everybody to leave at the step's end, the second kills. From anywhere."""
        self._hub.post(partial(self._on_interrupt, signum))

    def close(self) -> None:
        """After `finished`: close the port and let go of the name. Workers left are killed."""
        if self._store is not None:
            self._store.close()
        self._hub.stop()
        self._events.close()
        self._claim.release()

    # -- what the service asks of its launcher ---------------------------------------------

    def over(self) -> str:
        if self._census.over or self.ending.begun:
            return f"job {self.folder.name} is over"
        return f"job {self.folder.name} is stopping" if self._stopping else ""

    def start_workers(self, joiners: Iterable[Joiner], request_id: str) -> None:
        joiners = tuple(joiners)
        together = len(self._processes.alive()) + len(joiners)
        for joiner in joiners:
            environment = worker_environment(
                {**os.environ, **self._spec.env},
                folder=self.folder,
                store=self.url,
                settings=self.settings,
                joiner=joiner,
                request_id=request_id,
                founders=len(self._founders),
                together=together,
                device=self._slots.device(joiner.slot),
            )
            plan = WorkerPlan(
                worker=joiner.worker,
                slot=joiner.slot,
                request_id=request_id,
                environment=environment,
            )
            pid = self._processes.start(plan)
            self._census.on_started(joiner.worker, request_id)
            log.info("launch.started worker=%s pid=%d slot=%s", joiner.worker, pid, joiner.slot)

    def give_up(self, request_id: str) -> None:
        """The leader decides: it undoes the adjustment, unless the switch has happened."""
        for worker in self._census.of_request(request_id):
            self._tell_gone(worker, request_id, "its requester gave up")

    def alive(self) -> tuple[WorkerId, ...]:
        return self._processes.alive()

    def end(self, why: str, *, force: bool) -> None:
        self.ending.stop(why, status=128 + signal.SIGTERM)
        if force:
            self._kill_all()
        else:
            self._stop(why)

    # -- the hub's callbacks ---------------------------------------------------------------

    def _send(self, peer: Peer, message: object) -> None:
        self._hub.send(peer, message)

    def _on_message(self, peer: Peer, message: object) -> None:
        if self._follower.on_message(peer, message):
            return
        if self._store_service.handles(message):
            self._store_service.on_message(peer, message)
        elif self._service.handles(message):
            self._service.on_message(peer, message, time.monotonic())
        else:
            log.warning("launch.stray peer=%s message=%s", peer.name, type(message).__name__)

    def _on_open(self, peer: Peer) -> None:
        self._follower.on_open(peer)

    def _on_closed(self, peer: Peer, why: str) -> None:
        self._follower.on_closed(peer, why)
        self._store_service.on_closed(peer)
        self._service.on_closed(peer)

    def _on_tick(self) -> None:
        self._store_service.on_tick()
        if self.finished.is_set():
            return
        now = time.monotonic()
        try:
            for ended in self._processes.ended():
                self._on_ended(ended, now)
            for judged in self._census.judge(now):
                self._on_judged(judged)
            self._service.on_tick(now)
            self._follower.on_tick(now)
            if self._census.over:
                self._dismiss(self._census.pending())
            if not self._census.open:
                self._finish()
        except Exception as error:
            log.exception("launch.tick failed")
            self.ending.fail_without_worker(f"the launcher failed: {error!r}")
            self._kill_all()
            if not self._processes.alive():
                self._finish()

    # -- what is heard ---------------------------------------------------------------------

    def _posting(self, fn: Callable[[Versioned], None]) -> Callable[[Versioned], None]:
        return lambda news: self._hub.post(partial(fn, news))

    def _on_leader(self, news: Versioned) -> None:
        self._census.led = self._census.led or news.value is not None
        self._follower.on_leader(news.value, news.revision)

    def _on_state(self, news: Versioned) -> None:
        if news.value is not None:
            self._census.on_state(news.value.decode(errors="replace"))

    def _on_status(self, status: Status) -> None:
        self.status = status
        self._census.on_status(status)

    def _on_event(self, event: Happened) -> None:
        self._census.on_event(event)
        self.told.put(event)
        try:
            self._events.write(json.dumps({"time": time.time(), **asdict(event)}) + "\n")
        except OSError as error:
            # A full disk must not end a job that trains.
            log.error("launch.event lost seq=%d why=%r", event.seq, str(error))
        if event.what == "adjust.complete":
            left = str(event.fields.get("left", "")).split(",")
            leavers = [WorkerId(name) for name in left if name]
            self._hub.call_later(
                self.settings.leave_allowance_s, partial(self._dismiss, leavers)
            )
        if event.what == "adjust.undone":
            pending = self._census.of_request(event.request_id)
            self._hub.call_later(UNDONE_S, partial(self._dismiss, pending))
