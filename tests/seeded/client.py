"""Requesters: they find the leader in the store, ask, ask again, and start new workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl.protocol import messages as m
from edl.protocol.election import LEADER_KEY, read_leader
from edl.protocol.leader import STATE_KEY
from edl.types import Gpu, WorkerId
from tests.seeded.history import Request
from tests.seeded.plan import Ask

if TYPE_CHECKING:
    from tests.seeded.world import World

__all__ = ["Client", "Errand"]

_PATIENCE_S = 5.0


class Errand:
    """One request id: what is asked under it, and what was answered."""

    def __init__(self, world: World, number: int, ask: Ask) -> None:
        self.world = world
        self.ask = ask
        self.request_id = f"r{number}"
        self.message: m.ScaleOut | m.ScaleIn | m.Migrate | m.StopJob = self._message(number)
        joiners: tuple[m.Joiner, ...] = ()
        if isinstance(self.message, m.ScaleOut | m.Migrate):
            joiners = self.message.joiners
        self.request = Request(self.request_id, ask.kind, tuple(j.worker for j in joiners))
        self.started = False
        self.clients = 0
        world.history.requests.append(self.request)

    def _message(self, number: int) -> m.ScaleOut | m.ScaleIn | m.Migrate | m.StopJob:
        request_id, ask = self.request_id, self.ask
        workers: tuple[WorkerId, ...] = ()
        gpus: tuple[Gpu, ...] = ()
        if ask.kind == "out":
            return m.ScaleOut(request_id=request_id, joiners=self._joiners(number))
        if ask.kind.startswith("move"):
            return m.Migrate(
                request_id=request_id,
                joiners=self._joiners(number),
                workers=self._movers(),
                gpus=(),
            )
        if ask.kind == "stop":
            return m.StopJob(request_id=request_id, why="the operator said so")
        if ask.kind == "in":
            return m.ScaleIn(request_id=request_id, workers=(), gpus=(), count=ask.count)
        alive = self.world.training()
        if ask.kind == "in-leader":
            leader = self.world.shelf.get(LEADER_KEY)
            if leader.value is not None:
                workers = (read_leader(leader.value, leader.revision).worker,)
        elif ask.kind == "in-named" and alive:
            workers = tuple(process.me for process in alive[-ask.count :])
        elif ask.kind == "in-slot" and alive:
            gpus = (alive[number % len(alive)].member.slot,)
        elif ask.kind == "bad":
            workers = (WorkerId("nobody"),)
        count = 0 if workers or gpus else 1
        return m.ScaleIn(request_id=request_id, workers=workers, gpus=gpus, count=count)

    def _joiners(self, number: int) -> tuple[m.Joiner, ...]:
        names = [WorkerId(f"j{number}.{index}") for index in range(self.ask.count)]
        return tuple(
            m.Joiner(worker=name, slot=Gpu("cluster", self.world.number_of(name))) for name in names
        )

    def _movers(self) -> tuple[WorkerId, ...]:
        """Everybody, the leader, or so many as come."""
        alive = tuple(process.me for process in self.world.training())
        if self.ask.kind == "move-all":
            return alive
        leader = self.world.shelf.get(LEADER_KEY)
        if self.ask.kind == "move-leader" and leader.value is not None:
            return (read_leader(leader.value, leader.revision).worker,)
        return alive[-self.ask.count :]

    def accepted(self) -> None:
        """Start the processes of the joiners, once."""
        self.world.accepted()
        if self.started or not isinstance(self.message, m.ScaleOut | m.Migrate):
            return
        self.started = True
        for joiner, fate in zip(self.message.joiners, self.ask.fates, strict=True):
            delay = self.world.rng.random() * 0.5
            self.world.schedule.after(
                delay, self.world.start_joiner, joiner.worker, self.request_id, fate
            )

    def answered(self, kind: str) -> None:
        self.request.finals.append((self.world.schedule.now, kind))
        if kind != "Adjusted":
            # The launcher takes back what it started in vain.
            self.world.schedule.after(8.0, self.world.reap, self.request.joiners)


class Client:
    """One requester of one errand."""

    def __init__(self, world: World, errand: Errand, *, again: bool) -> None:
        self.world = world
        self.errand = errand
        self.again = again
        self.done = False
        self.me = WorkerId("")
        self.frozen = False
        self.told: list[tuple[WorkerId, str]] = []
        self._peer = 0
        self._attempt = 0
        self._gives_up = False
        errand.clients += 1

    def ask(self) -> None:
        """Look the leader up and connect to it."""
        if self.done:
            return
        self._attempt += 1
        shelf = self.world.shelf
        if self.world.trouble.store_out:
            self._later(0.4)
            return
        leader = shelf.get(LEADER_KEY)
        if leader.value is None:
            if shelf.get(STATE_KEY).value is not None:
                self._final("Finished")
                return
            if self.world.is_deserted():
                # The launcher says so: nobody is left who could answer.
                self._final("Gone")
                return
            self._later(0.4)
            return
        self._peer += 1
        known = read_leader(leader.value, leader.revision)
        self.world.network.dial(self, self._peer, known.address)
        self.world.schedule.after(_PATIENCE_S, self._impatient, self._attempt)

    def opened(self, peer: int) -> None:
        if peer == self._peer and not self.done:
            self._say()

    def _say(self) -> None:
        self.world.network.send(self, self._peer, self.errand.message)
        for worker, why in self.told:
            ended = m.ProcessEnded(request_id=self.errand.request_id, worker=worker, why=why)
            self.world.network.send(self, self._peer, ended)

    def _withdraw(self) -> None:
        if not self.done:
            gone = m.Withdraw(request_id=self.errand.request_id, why="its requester gave up")
            self.world.network.send(self, self._peer, gone)

    def saw_end(self, worker: WorkerId, why: str) -> None:
        """The launcher saw one of this requester's processes end."""
        self.told.append((worker, why))
        if not self.done:
            ended = m.ProcessEnded(request_id=self.errand.request_id, worker=worker, why=why)
            self.world.network.send(self, self._peer, ended)

    def heard(self, peer: int, message: m.Message) -> None:
        if peer != self._peer or self.done:
            return
        match message:
            case m.Accepted():
                self.errand.accepted()
                if self.errand.ask.withdrawn_s and not self._gives_up:
                    self._gives_up = True
                    self.world.schedule.after(self.errand.ask.withdrawn_s, self._withdraw)
            case m.Retry(after_s=after_s):
                self.world.schedule.after(
                    after_s * (1 + self.world.rng.random()), self._say_again, self._attempt
                )
            case m.NotLeader():
                self._hang_up()
                self._later(0.3)
            case m.Adjusted() | m.Undone() | m.Refusal() | m.Finished():
                self._final(type(message).__name__)

    def closed(self, peer: int, why: str) -> None:
        if peer == self._peer and not self.done:
            if why == "refused" and self.world.shelf.get(STATE_KEY).value is not None:
                self._final("Finished")
                return
            self._later(0.3)

    def _final(self, kind: str) -> None:
        self.errand.answered(kind)
        if self.again:
            self.again = False
            self._later(0.5)
            return
        self.done = True
        self.errand.clients -= 1
        self._hang_up()
        self.world.perhaps_over()

    def _impatient(self, attempt: int) -> None:
        """No final answer for long: the connection may be dead without our knowing."""
        if attempt == self._attempt and not self.done:
            self._hang_up()
            self.ask()

    def _say_again(self, attempt: int) -> None:
        if attempt == self._attempt and not self.done:
            self._say()

    def _later(self, delay: float) -> None:
        self._attempt += 1
        self._peer += 1
        self.world.schedule.after(delay * (1 + self.world.rng.random()), self.ask)

    def _hang_up(self) -> None:
        self.world.network.close(self, self._peer)
