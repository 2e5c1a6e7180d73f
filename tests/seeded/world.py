"""A whole job in virtual time, decided by its seed: `run(draw_plan(seed))` -> its history."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from edl.protocol import effects as fx
from edl.protocol import events as ev
from edl.protocol.leader import STATE_KEY
from edl.protocol.tale import Happened
from edl.protocol.topology import Generation
from edl.types import WorkerId
from tests.seeded.client import Client, Errand
from tests.seeded.collective import Collective
from tests.seeded.history import Blamed, History
from tests.seeded.launcher import Launcher
from tests.seeded.network import End, Network
from tests.seeded.plan import Ask, Plan
from tests.seeded.process import KILLED, Process
from tests.seeded.schedule import Schedule
from tests.seeded.shelf import Shelf
from tests.seeded.trouble import Trouble

__all__ = ["LIMIT_S", "Story", "World", "run"]

# Far beyond every timeout and pause in a plan: a job that is not over by then never will be.
LIMIT_S = 900.0

Story = Callable[[float, str, object, list[fx.Effect]], None]


class World:
    """Processes, network, store and requesters of one job."""

    def __init__(self, plan: Plan, story: Story | None = None) -> None:
        self.plan = plan
        self.story = story
        self.rng = random.Random(f"world/{plan.seed}")
        self.schedule = Schedule()
        self.history = History(
            samples=plan.samples, batch=plan.batch, epochs=plan.epochs, drop_last=plan.drop_last
        )
        self.faulty = bool(plan.faults)
        self.history.faulty = self.faulty or bool(plan.lapses) or plan.lapse_at_handover
        self.trouble = Trouble(self)
        self.network = Network(self.schedule, self.rng, self._network_delay, self._are_cut)
        self.network.touched = self.history.touched
        self.shelf = Shelf(self.schedule, self._store_delay, plan)
        self.processes: dict[WorkerId, Process] = {}
        self.errands: list[Errand] = []
        self.clients: list[Client] = []
        self.over = False
        self.snaps = plan.snaps
        self.notice = self.trouble.notice
        self._launcher = Launcher(self) if self.faulty else None
        self._groups: dict[tuple[int, int, int], Collective] = {}
        self._numbers: dict[WorkerId, int] = {}
        self._pending = 0
        self._stopping = False

    def run(self) -> History:
        plan = self.plan
        for index in range(plan.founders):
            worker = WorkerId(f"w{index}")
            self.schedule.after(
                self.rng.random() * 0.5, self._start, worker, self.number_of(worker), "", "lives"
            )
        self._pending = plan.founders + len(plan.asks)
        for number, ask in enumerate(plan.asks):
            self.schedule.at(ask.time, self._open, number, ask)
        for _ in range(plan.losses):
            self.schedule.at(plan.losses_until * self.rng.random(), self._lose)
        for when in plan.lapses:
            self.schedule.at(when, self._lapse)
        self.trouble.begin()
        self.schedule.run(LIMIT_S, lambda: self.over)
        return self._ended()

    # -- what processes and requesters use -------------------------------------------------

    def number_of(self, worker: WorkerId) -> int:
        return self._numbers.setdefault(worker, len(self._numbers))

    def group(self, generation: Generation) -> Collective:
        # Before its first step a generation may have members that are gone after it.
        name = (generation.number, generation.token, generation.size)
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = Collective(generation, self)
        return found

    def training(self) -> list[Process]:
        return [p for p in self.processes.values() if p.alive and p.progress is not None]

    def start_joiner(self, worker: WorkerId, request_id: str, fate: str) -> None:
        if worker not in self.processes:
            self._start(worker, self.number_of(worker), request_id, fate)

    def accepted(self) -> None:
        """An adjustment has begun; some operators stop the job just then."""
        delay = self.plan.stop_after_accept_s
        if delay and not self._stopping:
            self._stopping = True
            self._pending += 1
            stop = Ask(time=0.0, kind="stop", count=1, twice=False, again=False, fates=())
            self.schedule.after(delay, self._open, len(self.plan.asks), stop)

    def compare_with_store(self, worker: WorkerId, announced: int) -> None:
        """A generation exists once it is in the store; it must be, before it is announced."""
        stored = [generation.number for generation in self.shelf.recorded]
        if announced > 0 and announced not in stored:
            self.history.unrecorded.append(
                f"{worker} announced generation {announced}, the store has had {stored}"
            )

    def reap(self, workers: tuple[WorkerId, ...]) -> None:
        """Only a process that never ran an agent has to be killed: it cannot be dismissed."""
        for worker in workers:
            process = self.processes.get(worker)
            if process is not None and process.fate == "never registers":
                process.kill()

    def gone(self, process: Process) -> None:
        """A process has ended; its launcher may tell the leader."""
        killed = self.history.exits[process.me].status == KILLED
        if killed and self.rng.random() < 0.6:
            for client in self.clients:
                if process.me in client.errand.request.joiners:
                    self.schedule.after(0.2, client.saw_end, process.me, "killed")
        late = {"prompt": 0.05, "late": 3.0, "never": None}[self.plan.launcher]
        if killed and self._launcher is not None and late is not None:
            self.schedule.after(late, self._launcher.saw_end, process.me, "signal 9")
        self.perhaps_over()

    def crashed(self, process: Process, event: ev.Event | None, error: Exception) -> None:
        """A machine must not raise; the process ends, as a real one would."""
        self.history.crashes.append(
            f"{process.me} at {self.schedule.now:.3f}: {type(error).__name__}: {error} ({event})"
        )
        if self.story is not None:
            self.story(self.schedule.now, process.me, f"CRASH {error!r} on {event}", [])
        process.kill()

    def tell(self, worker: WorkerId, event: ev.Event, effects: list[fx.Effect]) -> None:
        if self.story is not None:
            self.story(self.schedule.now, worker, event, effects)

    def is_deserted(self) -> bool:
        founders = self.plan.founders
        return len(self.processes) >= founders and not any(
            process.alive and process.fate != "never registers"
            for process in self.processes.values()
        )

    def perhaps_over(self) -> None:
        self.over = (
            not self._pending
            and not any(process.alive for process in self.processes.values())
            and all(client.done for client in self.clients)
        )

    # -- what groups stand on ----------------------------------------------------------------

    def chance(self, odds: float) -> bool:
        return self.rng.random() < odds

    def after(self, delay: float, what: Callable[..., None], *arguments: Any) -> None:
        self.schedule.after(delay, what, *arguments)

    def spread_s(self) -> float:
        return self.plan.spread_s * self.rng.random()

    def is_frozen(self, worker: WorkerId) -> bool:
        return self.processes[worker].frozen

    def cut_for(self, one: WorkerId, other: WorkerId) -> float:
        return self.trouble.cut_for(one, other)

    def completed(self, kind: str, worker: WorkerId) -> None:
        self.notice(f"done {kind}", self.processes[worker])

    def unreached(self, me: WorkerId, generation: Generation) -> tuple[WorkerId, ...]:
        """The members of a group that `me` cannot connect to."""
        if not self.faulty:
            return ()
        return tuple(worker for worker in generation.workers() if not self._reaches(me, worker))

    def _reaches(self, me: WorkerId, worker: WorkerId) -> bool:
        other = self.processes.get(worker)
        if other is None or not other.alive or other.frozen:
            return False
        return not self.cut_for(me, worker)

    def _are_cut(self, one: End, other: End) -> bool:
        return self.trouble.is_cut(one.me, other.me)

    def hear(self, leader: WorkerId, happened: Happened) -> None:
        """What an operator would be told."""
        if happened.what == "worker.lost":
            worker = WorkerId(str(happened.fields["worker"]))
            why = str(happened.fields["why"])
            self.history.blamed.append(Blamed(self.schedule.now, leader, worker, why))
        self.history.recovered += happened.what == "job.recovered"
        if happened.what == "leader.changed":
            known = self.processes[leader].node.committed
            self.history.told_steps.append((leader, known, happened.step))

    # -- what happens ----------------------------------------------------------------------

    def _start(self, worker: WorkerId, number: int, request_id: str, fate: str) -> None:
        if not request_id:
            self._pending -= 1
        process = Process(self, worker, number, request_id=request_id, fate=fate)
        self.processes[worker] = process
        process.store_cut = bool(self.trouble.store_out)
        process.start()

    def _open(self, number: int, ask: Ask) -> None:
        self._pending -= 1
        errand = Errand(self, number, ask)
        self.errands.append(errand)
        for index in range(2 if ask.twice else 1):
            client = Client(self, errand, again=ask.again)
            self.clients.append(client)
            self.schedule.after(index * 0.3 * self.rng.random(), client.ask)

    def _lose(self) -> None:
        connections = self.network.open_connections()
        if connections:
            self.network.lose(self.rng.choice(connections), "lost")

    def _lapse(self) -> None:
        """The leader's lease was not renewed in time, while everybody is well connected.

        With a broken connection at the same time another worker takes the key without a
        hand-over, which is recovery's business.
        """
        for process in self.processes.values():
            leader = process.node.leader
            if leader is None or not process.alive:
                continue
            if leader.conductor.generation is not None and not leader.over:
                self.history.touched.add(process.me)
                self.shelf.revoke(process.me)

    def _network_delay(self) -> float:
        rng = self.rng
        delay = self.plan.delay_s * (0.2 + rng.random())
        if self.plan.slow_messages and rng.random() < self.plan.slow_messages:
            delay *= 40
        return delay

    def _store_delay(self) -> float:
        delay = self.plan.store_s * (0.2 + self.rng.random())
        if self.plan.slow_store and self.rng.random() < self.plan.slow_store:
            delay += 4.0
        return delay

    def _ended(self) -> History:
        history = self.history
        history.state = (self.shelf.get(STATE_KEY).value or b"").decode()
        history.ended_at = self.schedule.now
        # A leader that is cut off may have drawn others under the same numbers, for itself alone.
        history.generations |= {g.number: g for g in reversed(self.shelf.recorded)}
        entered = {c.generation for c in history.commits} | {mv.target for mv in history.moves}
        for worker, end in history.exits.items():
            generations = [history.generations[n] for n in entered if n in history.generations]
            if end.status == KILLED and any(worker in g for g in generations):
                history.lost = True
        history.recorded = self.shelf.recorded
        if not self.over:
            waiting = [
                f"{p.me} ({p.fate}) waits for {_name(p.waits_for)}"
                for p in self.processes.values()
                if p.alive
            ]
            groups = [line for group in self._groups.values() for line in group.waited_for()]
            asking = [c.errand.request_id for c in self.clients if not c.done]
            history.stuck = "; ".join([*waiting[:12], *groups[:6], f"asking: {asking}"])
        return history


def _name(wait: object) -> str:
    return str(getattr(wait, "kind", wait))


def run(plan: Plan, story: Story | None = None) -> History:
    """One job from its first process to its last answer."""
    return World(plan, story).run()
