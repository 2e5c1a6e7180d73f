"""The launcher of local processes: a name, a port, a store on it, and the life of one job.

Owns: the hub and what is served on it. Holds: nothing is left behind by a job that could not
begin; when `close` returns the port is free and the name can be used again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from edl.config import Settings
from edl.errors import StoreError, UsageError
from edl.launch.base import JobSpec, checkpoint_interval
from edl.launch.checkpoints import own
from edl.launch.environment import checkpoint_place, template_environment
from edl.launch.jobs import Claim, JobFolder, JobInfo, Result, claim
from edl.launch.keys import Keys
from edl.launch.life import Life
from edl.launch.messages import AskLauncher, LauncherStatus, port_codec
from edl.launch.processes import LocalProcesses
from edl.launch.slot_locks import DIRECTORY_VARIABLE, SlotLocks, directory_of
from edl.launch.slots import SlotBook, find_gpus, gpu_names, gpus_from_text
from edl.launch.template import preloaded
from edl.launch.warm import WarmProcesses, fork_template, start_template
from edl.protocol.messages import Happened, Status
from edl.redaction import redact_url
from edl.runtime.descriptors import raise_descriptor_limit
from edl.store.service import EmbeddedService
from edl.wire.hub import Hub, Peer
from edl.wire.tls import Tls

__all__ = ["LocalLauncher"]

log = logging.getLogger("edl.launch")

TICK_S = 0.05
# A signal that came just before a wait, or went to another thread, does not end that wait; its
# handler runs here all the same, but not before this thread does.
HEARD_S = 0.25


class LocalLauncher:
    """Made: name, port and slots are this job's; UsageError if they cannot be. Then `start`."""

    def __init__(self, spec: JobSpec) -> None:
        spec.check()
        script = Path(spec.script)
        if not script.is_file():
            what = "is a folder" if script.is_dir() else "does not exist"
            raise UsageError(f"script {spec.script!r} {what}; give the path of a Python file")
        self._spec = spec
        self._settings = replace(
            Settings.from_environment({**os.environ, **spec.env}),
            min_workers=spec.min_workers,
            max_workers=spec.max_workers,
        )
        if spec.grace_s:
            self._settings = replace(self._settings, grace_s=spec.grace_s)
        if spec.checkpoint_every:
            steps, seconds = checkpoint_interval(spec.checkpoint_every)
            self._settings = replace(self._settings, checkpoint_steps=steps, checkpoint_s=seconds)
        if spec.stragglers:
            self._settings = replace(self._settings, stragglers=spec.stragglers)
        if spec.on_divergence:
            self._settings = replace(self._settings, on_divergence=spec.on_divergence)
        if spec.digest_steps is not None:
            self._settings = replace(self._settings, digest_steps=spec.digest_steps)
        devices = _devices(spec)
        names = gpu_names(devices)
        slots = self._new_slots(devices, names, job=spec.name or script.stem)
        slots.check_room(spec.founders(slots.gpus))
        self._tls = Tls.from_environment({**os.environ, **spec.env})
        self._claim: Claim = claim(spec.name, stem=script.stem)
        with contextlib.ExitStack() as undo:
            undo.callback(self._claim.withdraw)
            self._slots = self._new_slots(devices, names, job=self.folder.name)
            undo.callback(self._slots.close)
            self._checkpoints = own(
                checkpoint_place(spec), job=self.folder.name, resume=spec.resume
            )
            undo.callback(self._checkpoints.release)
            raise_descriptor_limit()
            # Before any thread is started here.
            self._processes = self._new_processes()
            undo.callback(self._processes.close)
            self._hub = self._new_hub()
            undo.callback(self._hub.stop)
            self._keys = self._new_keys()
            undo.callback(self._keys.close)
            self._life = self._new_life(script)
            undo.pop_all()

    @property
    def folder(self) -> JobFolder:
        return self._claim.folder

    @property
    def told(self) -> queue.SimpleQueue[str | Happened]:
        """Lines for the user, and the job's events, as they come."""
        return self._life.history.told

    @property
    def status(self) -> Status | None:
        """The leader's last word."""
        return self._life.status

    @property
    def result(self) -> Result | None:
        """How the job ended; None until then."""
        return self._life.result

    def start(self) -> None:
        """Serve the port and start the founders."""
        self._hub.start()
        self._hub.post(self._life.begin)

    def interrupt(self, signum: int) -> None:
        """From anywhere, a signal handler too: the first asks, the second kills."""
        self._hub.post(partial(self._life.on_interrupt, signum))

    def wait(self, timeout_s: float | None = None) -> Result | None:
        """How the job ended; None if it has not within that time. Signals are heard meanwhile."""
        over = self._life.over_event
        if timeout_s is not None:
            over.wait(timeout_s)
        else:
            while not over.wait(HEARD_S):
                continue
        return self._life.result

    def close(self) -> None:
        """Close the port and let go of the name. What still runs ends with this process."""
        self._close_parts(self._claim.release)

    def abandon(self) -> None:
        """Instead of `start`: the job will not begin, and leaves nothing behind."""
        self._close_parts(self._claim.withdraw)

    def _close_parts(self, let_go: Callable[[], None]) -> None:
        with contextlib.ExitStack() as parts:
            # In reverse order, each of them also when another one fails.
            parts.callback(let_go)
            parts.callback(self._checkpoints.release)
            parts.callback(self._slots.close)
            parts.callback(self._processes.close)
            parts.callback(self._life.close)
            parts.callback(self._hub.stop)
            parts.callback(self._keys.close)

    # -- making ----------------------------------------------------------------------------

    def _new_slots(self, devices: dict[int, str], names: dict[int, str], *, job: str) -> SlotBook:
        """Locks on files of this machine, which other jobs see too."""
        spec = self._spec
        environment = {**os.environ, **spec.env}
        locks: SlotLocks | None = SlotLocks(directory_of(environment), job=job)
        if locks is not None and locks.problem:
            if devices and not spec.share_gpus:
                raise UsageError(
                    f"GPUs cannot be locked against other jobs: {locks.problem}; have root make "
                    f"it a directory with mode 1777, name another one in {DIRECTORY_VARIABLE}, or "
                    "give --share-gpus to use them without a lock"
                )
            log.warning("slots.unlocked %s", locks.problem)
            locks = None
        return SlotBook(
            devices,
            limit=spec.slots,
            oversubscribe=spec.oversubscribe,
            share_gpus=spec.share_gpus,
            locks=locks,
            names=names,
        )

    def _new_processes(self) -> LocalProcesses:
        command = [self._spec.script, *self._spec.args]
        spec = self._spec
        if preloaded():
            template = fork_template(spec.preload, spares=spec.warm)
        elif spec.warm:
            template = start_template(
                self.folder,
                environment=template_environment(
                    {**os.environ, **spec.env},
                    gpus=bool(self._slots.gpus),
                    together=spec.founders(self._slots.gpus),
                ),
                modules=spec.preload,
                beside=os.path.dirname(os.path.realpath(spec.script)),
                spares=spec.warm,
            )
        else:
            return LocalProcesses(self.folder, command)
        return WarmProcesses(self.folder, command, template=template)

    def _new_hub(self) -> Hub:
        hub = Hub(
            name="edl-launch",
            job=self.folder.name,
            secret=self.folder.secret(),
            codec=port_codec(),
            on_message=self._on_message,
            on_open=lambda peer: self._life.on_open(peer),
            on_closed=self._on_closed,
            on_tick=self._on_tick,
            tick_s=TICK_S,
            tls=self._tls,
        )
        self._store_service = EmbeddedService(hub.send, tick_s=TICK_S)
        try:
            self._address = hub.listen(self._spec.host, self._spec.port)
        except BaseException:
            hub.stop()
            raise
        return hub

    def _new_keys(self) -> Keys:
        """The job's keys in its store; the store is asked once, so that its absence is told now."""
        outside = self._spec.store
        url = self._url = outside or f"edl://{self._address}"
        keys = Keys(
            url=url,
            job=self.folder.name,
            secret=self.folder.secret(),
            launcher=self._address,
            on_key=lambda *seen: self._hub.post(partial(self._life.on_key, *seen)),
            tls=self._tls,
        )
        if not outside:
            return keys
        try:
            keys.check()
        except StoreError as error:
            keys.close()
            raise UsageError(
                f"--store {redact_url(url)} does not answer: {error}; start it, correct the "
                "URL, or leave --store out for the store that `edl run` brings along"
            ) from error
        except BaseException:
            keys.close()
            raise
        self.folder.write_store(url)
        keys.start_probe()
        return keys

    def _store_environment(self) -> dict[str, str]:
        """A password is given to workers in a file, for others may see an environment."""
        environment = {"EDL_STORE": redact_url(self._url), "EDL_HOST": self._spec.host}
        if self._spec.store:
            environment["EDL_STORE_FILE"] = str(self.folder.store_file)
        return environment

    def _new_life(self, script: Path) -> Life:
        spec = self._spec
        life = Life(
            self._hub,
            spec=spec,
            settings=self._settings,
            folder=self.folder,
            slots=self._slots,
            processes=self._processes,
            environment=self._store_environment(),
            begin_run=self._keys.begin,
            revoke=self._keys.revoke if spec.store else self._store_service.revoke,
            fence=self._fence,
        )
        info = JobInfo(
            name=self.folder.name,
            pid=os.getpid(),
            script=str(script.resolve()),
            args=spec.args,
            store=redact_url(self._url),
            created=time.time(),
            backend="local",
            workers=len(life.founders),
            min=spec.min_workers,
            max=spec.max_workers,
            slots=self._slots.total or 0,
            python=sys.executable,
            launcher=str(self._address),
        )
        self.folder.write_info(info)
        return life

    def _fence(self, run: str, revision: int, done: Callable[[], None]) -> None:
        self._keys.fence(run, revision, partial(self._hub.post, done))

    # -- the hub's thread ------------------------------------------------------------------

    def _on_message(self, peer: Peer, message: object) -> None:
        if self._store_service.handles(message):
            self._store_service.on_message(peer, message)
        elif isinstance(message, AskLauncher):
            self._hub.send(peer, self._answer(message))
        else:
            self._life.on_message(peer, message)

    def _answer(self, question: AskLauncher) -> LauncherStatus:
        return LauncherStatus(
            request_id=question.request_id,
            leader=self._life.follower.leader_address,
            store_silent_s=self._keys.silent_s if self._spec.store else 0.0,
        )

    def _on_closed(self, peer: Peer, why: str) -> None:
        self._store_service.on_closed(peer)
        self._life.service.on_closed(peer)
        self._life.on_closed(peer, why)

    def _on_tick(self) -> None:
        self._store_service.on_tick()
        self._life.on_tick()
        self._slots.refresh(time.monotonic())


def _devices(spec: JobSpec) -> dict[int, str]:
    if spec.gpus is None:
        return find_gpus({**os.environ, **spec.env})
    return {} if spec.gpus == "none" else gpus_from_text(spec.gpus)
