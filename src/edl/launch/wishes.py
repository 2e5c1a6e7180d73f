"""What the launcher itself asks of the leader: workers instead of lost ones, and lent ones back.

Both speak through whatever follows the leader at the moment, so that what they ask outlives any
leader. Owns: nothing but the two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from edl.launch.base import JobSpec
from edl.launch.census import Census
from edl.launch.history import History
from edl.launch.jobs import JobFolder
from edl.launch.keeping import Keeping, Replacer
from edl.launch.service import LaunchService
from edl.launch.transient import Transients, lead_s, save_in
from edl.protocol.messages import Happened, Joiner, Message, Status
from edl.types import WorkerId

__all__ = ["Wishes", "workers_in"]


class Ear(Protocol):
    """Whoever speaks to the leader."""

    def tell(self, key: str, message: Message) -> None: ...

    def withdraw(self, key: str) -> None: ...


class Wishes:
    """One for all runs of a job; `restart` begins each of them."""

    def __init__(
        self,
        *,
        spec: JobSpec,
        allowance_s: float,
        folder: JobFolder,
        service: LaunchService,
        history: History,
        give_up: Callable[[str], None],
    ) -> None:
        self._service = service
        self._ear: Ear | None = None
        self._step = self._size = 0
        self._allowance_s = allowance_s
        service.lead_s = self._lead_s = lead_s(allowance_s=allowance_s, step_s=0.0)

        def note(what: str, request_id: str, /, **told: str | int | float) -> None:
            history.note(what, request_id, step=self._step, **told)

        self._replacer = Replacer(
            Keeping(spec.keep),
            service,
            tell=self._tell,
            withdraw=self._withdraw,
            say=history.say,
            note=note,
        )
        self._transients = Transients(
            least=spec.min_workers,
            tell=self._tell,
            withdraw=self._withdraw,
            give_up=give_up,
            note=note,
            save=save_in(folder),
        )

    @property
    def lost(self) -> int:
        return self._replacer.lost

    def restart(self, ear: Ear, founders: Iterable[Joiner]) -> None:
        self._ear = ear
        self._replacer.restart()
        self._transients.restart([joiner.worker for joiner in founders], size=self._size)

    def over(self, now: float) -> int:
        """How many members were lent for a time that is over."""
        return self._transients.over(lead_s=self._lead_s, now=now)

    def in_order(self, members: Iterable[WorkerId]) -> list[WorkerId]:
        """Those that are there for good first, then those with the most time left."""
        return self._transients.in_order(members)

    def on_status(self, status: Status) -> None:
        """What leaving takes depends on how long a step does, and how far loaders read ahead."""
        if status.step_s > 0:
            self._lead_s = lead_s(
                allowance_s=self._allowance_s,
                step_s=status.step_s,
                switch_steps=status.switch_steps,
            )
            self._service.lead_s = self._lead_s

    def on_started(self, workers: Iterable[WorkerId], request_id: str) -> None:
        until = self._service.lent_until(request_id)
        if until is not None:
            self._transients.on_started(workers, request_id=request_id, until=until)

    def on_lost(self, worker: WorkerId, now: float) -> None:
        """One that was lent is not missed: its place was not the job's."""
        if not self._transients.lends(worker):
            self._replacer.on_lost(worker, now)

    def on_tick(self, census: Census, alive: Collection[WorkerId], now: float) -> None:
        self._step, self._size = census.step, census.size
        self._replacer.on_tick(census.working(), now)
        # When all die at once the job begins again with all of them: nobody is forgotten yet.
        self._transients.on_tick(
            alive={*alive, *census.members()},
            members=census.present(),
            lead_s=self._lead_s,
            now=now,
        )

    def on_event(self, event: Happened) -> None:
        self._replacer.on_event(event)

    def on_complete(self, event: Happened, now: float) -> None:
        """An adjustment is."""
        self._step = event.step
        joined, left = workers_in(event, "joined"), workers_in(event, "left")
        self._transients.on_joined(joined, request_id=event.request_id, now=now)
        self._transients.on_moved(left, joined, request_id=event.request_id, now=now)

    def on_answer(self, answer: object, now: float) -> None:
        self._replacer.on_answer(answer, now)
        self._transients.on_answer(answer, now)

    def _tell(self, key: str, message: Message) -> None:
        if self._ear is not None:
            self._ear.tell(key, message)

    def _withdraw(self, key: str) -> None:
        if self._ear is not None:
            self._ear.withdraw(key)


def workers_in(event: Happened, name: str) -> list[WorkerId]:
    """Those that a field of the event lists."""
    return [WorkerId(worker) for worker in str(event.fields.get(name, "")).split(",") if worker]
