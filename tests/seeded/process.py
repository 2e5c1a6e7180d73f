"""One fake worker process: the shell around the real machines, with a lagging agent thread."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from edl.protocol import effects as fx
from edl.protocol import events as ev
from edl.protocol.election import LEADER_KEY
from edl.protocol.leader import GENERATION_KEY, STATE_KEY
from edl.protocol.messages import (
    Adjusted,
    Finished,
    Handover,
    Message,
    Refusal,
    Register,
    Undone,
)
from edl.protocol.node import Node
from edl.protocol.progress import Progress
from edl.protocol.topology import Generation
from edl.types import Address, Gpu, Member, WorkerId
from tests.seeded.collective import Collective, Gate
from tests.seeded.courier import Courier
from tests.seeded.history import Answered, Exit
from tests.seeded.host import Wait
from tests.seeded.trainer import Trainer
from tests.seeded.workshop import Workshop

if TYPE_CHECKING:
    from tests.seeded.world import World

__all__ = ["KILLED", "Process"]

KILLED = -9
LISTENER = 10**9  # a connection that no other has
QUIET = fx.Announce(generation=0, switch_step=0, token=0)


class Process:
    """Feeds one Node and one training script, and does what the Node asks."""

    def __init__(
        self, world: World, worker: WorkerId, number: int, *, request_id: str, fate: str
    ) -> None:
        self.world = world
        self.plan = world.plan
        self.history = world.history
        self.me = worker
        self.fate = fate
        self.rng = random.Random(f"{world.plan.seed}/{worker}")
        self.member = Member(
            worker=worker,
            address=Address(f"10.0.{number // 250}.{number % 250}", 7000 + number),
            host=f"host{number % 7}",
            slot=Gpu("cluster", number),
            pid=1000 + number,
        )
        self.node = Node(
            me=self.member,
            request_id=request_id,
            founders=0 if request_id else world.plan.founders,
            settings=world.plan.settings,
        )
        self.alive = True
        self.frozen = False
        self.store_cut = False
        self.deaf = False  # what the store tells by itself does not come through
        self.word = QUIET
        self.begun = Gate("Begin")
        self.may_go = Gate("MayGo")
        self.generation: Generation | None = None
        self.progress: Progress | None = None
        self.waits_for: object = "its start"
        self._thread: Generator[Wait, None, None] | None = None
        self._busy_until = 0.0
        self._next_peer = 0
        self._lapsed = False
        self._offices = 0
        self.workshop = Workshop(self)
        self.courier = Courier(self)
        self._next: list[tuple[int, Gate]] = []
        self.let_go: set[int] = set()
        self._parting: list[tuple[int, Gate]] = []
        self._news: list[ev.Event] = []
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def start(self) -> None:
        """The process runs: its agent looks for the leader, its script prepares."""
        world, schedule = self.world, self.world.schedule
        self.history.started[self.me] = schedule.now
        if self.fate == "dies before it registers":
            schedule.after(self.jitter(0.3), self.kill)
            return
        if self.fate == "never registers":
            return
        world.network.listen(self.member.address, self, self._number)
        world.shelf.watch(
            LEADER_KEY, lambda s: self._told(ev.LeaderSeen(value=s.value, revision=s.revision))
        )
        world.shelf.watch(
            GENERATION_KEY,
            lambda s: self._told(ev.GenerationSeen(value=s.value, revision=s.revision)),
        )
        world.shelf.watch(STATE_KEY, lambda s: self._told(ev.StateSeen(value=s.value)))
        context_s = self.jitter(self.plan.context_s)
        if self.fate == "never becomes ready":
            context_s = 1e9
        trainer = Trainer(self, context_s=context_s, first_model=self.rng.randrange(10**6))
        self._thread = trainer.run()
        schedule.after(0.0, self._advance)
        schedule.after(self.jitter(0.3), self._tick)

    # -- the agent thread ------------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Events are handled in order, each a little after it came."""
        if isinstance(event, ev.StepCommitted):
            self.node.committed = event.step
        if isinstance(event, ev.RoundJoined):
            target = self.node.worker.prepared.get(event.generation)
            if target is None or target.leader == self.node.following:
                return  # nothing comes of it, and old seeds tell the stories that they told
        if isinstance(event, ev.Settled):
            entered = self.progress.generation if self.progress is not None else None
            late = self.plan.entered_late
            if not late and (entered is None or not entered.leaving):
                return  # Entered tells the same, and comes at the same time here
        lag = self.jitter(self.plan.lag_s)
        if self.plan.lag_spikes and self.rng.random() < self.plan.lag_spikes:
            lag *= 100
        self._busy_until = max(self._busy_until, self.world.schedule.now + lag)
        self.world.schedule.at(self._busy_until, self._step, event)

    def _listen(self, event: ev.Event) -> None:
        """A launcher hears a leader's events, but for one that never tells anything either.

        Only from the end on, where it matters, for it is no machine of these worlds.
        """
        ended = isinstance(event, ev.Swapped) and event.purpose == "state"
        if ended and self.node.leader is not None and self.plan.launcher != "never":
            self.node.leader.voice.chronicle.subscribe(LISTENER, "launcher")

    def _told(self, event: ev.Event) -> None:
        """A notification by the store, which may be out of reach for a while."""
        self._news.append(event)
        self._read()

    def _read(self) -> None:
        if self.store_cut or self.deaf:
            self.world.schedule.after(0.2, self._read)
        elif self.alive:
            news, self._news = self._news, []
            for event in news:
                self.post(event)

    def freeze(self) -> None:
        """SIGSTOP: nothing happens here any more, but nobody can tell."""
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for what, arguments in held:
            self.world.schedule.after(0.0, what, *arguments)

    def is_held(self, what: Callable[..., None], *arguments: Any) -> bool:
        if self.frozen and self.alive:
            self._held.append((what, arguments))
        return self.frozen or not self.alive

    def _step(self, event: ev.Event) -> None:
        if self.is_held(self._step, event):
            return
        before = self.node.leader
        led = before.token if before else None
        try:
            self._listen(event)
            effects = self.node.step(event, self.world.schedule.now)
        except Exception as error:
            self.world.crashed(self, event, error)
            return
        leads = self.node.leader.token if self.node.leader else None
        self._offices += self.node.leader not in (None, before)
        if leads is not None and leads != led:
            self.history.leaders.append((self.me, leads))
        self.world.tell(self.me, event, effects)
        for effect in effects:
            self._perform(effect)

    def _tick(self) -> None:
        if not self.is_held(self._tick):
            self.post(ev.Tick())
            self.world.schedule.after(0.3, self._tick)

    def opened(self, peer: int) -> None:
        self.post(ev.PeerOpened(peer=peer))

    def heard(self, peer: int, message: Message) -> None:
        self.post(ev.Heard(peer=peer, message=message))

    def closed(self, peer: int, why: str) -> None:
        self.post(ev.PeerClosed(peer=peer, why=why))

    def _number(self) -> int:
        self._next_peer += 1
        return self._next_peer

    # -- effects ---------------------------------------------------------------------------

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Send(peer=peer, message=message):
                self._send(peer, message)
            case fx.Dial(peer=peer, address=address):
                self.world.network.dial(self, peer, address)
            case fx.Close(peer=peer):
                self.world.network.close(self, peer)
            case fx.StoreSwap():
                self.courier.swap(effect)
            case fx.BuildGroup(generation=generation):
                self.workshop.build(generation)
            case fx.DropGroup(number=number):
                self.workshop.drop(number)
            case fx.BreakGroup(number=number, why=why):
                self.workshop.break_up(number, why)
            case fx.OfferKey(generation=number, key=key):
                self.workshop.offer(number, key)
            case fx.OfferTable():
                self.workshop.offer_table(effect)
            case fx.Announce():
                self.word = effect
                self.history.announcements.append((self.me, effect))
                self.world.compare_with_store(self.me, effect.generation)
                if effect.generation:
                    self.world.notice("announce", self)
            case fx.Begin(generation=generation):
                self.generation = generation
                self.begun.let_through()
                self.world.notice("begin", self)
                for number, gate in self._next:
                    if generation.number > number:
                        gate.let_through()
            case fx.Publish(happened=happened):
                self.world.hear(self.me, happened)
            case fx.Dismiss(why=why, failed=failed):
                self.history.dismissals[self.me] = failed
                self.exit(1 if failed else 0, f"dismissed: {why}")
            case fx.LetGo(generation=number):
                self.let_go.add(number)
                self.history.let_go.add((self.me, number))
                self.let_part(number)
            case fx.MayGo():
                self.may_go.let_through()

    def _send(self, peer: int, message: Message) -> None:
        if isinstance(message, Adjusted | Undone | Refusal | Finished):
            said = Answered(self.world.schedule.now, self.me, message, self._offices)
            self.history.answers.setdefault(message.request_id, []).append(said)
        self.world.network.send(self, peer, message)
        self.world.notice(f"send {type(message).__name__}", self)
        if self.world.snaps and self.rng.random() < 0.04:
            self.world.snaps -= 1
            self.world.network.snap(self, peer)
        if isinstance(message, Handover) and self.plan.lapse_at_handover and not self._lapsed:
            self._lapsed = True
            soon = self.jitter(self.plan.store_s)
            self.world.schedule.after(soon, self.world.shelf.revoke, self.me)
        if isinstance(message, Register) and self.fate == "dies registered":
            self.world.schedule.after(self.jitter(0.5), self.kill)

    # -- the training thread ---------------------------------------------------------------

    def adopt_progress(self, progress: Progress) -> None:
        self.progress = progress
        for generation in self.workshop.stands.values():
            if generation.number > progress.generation.number:
                progress.prepare(generation)

    def group(self, generation: Generation) -> Collective:
        assert generation.number in self.workshop.stands, (
            f"{self.me} has no group {generation.number}"
        )
        return self.world.group(generation)

    def begun_after(self, number: int) -> Gate:
        """Opens when a later generation may be entered."""
        gate = Gate(f"a generation after {number}")
        self._next = [(number, gate)]
        if self.generation is not None and self.generation.number > number:
            gate.let_through()
        return gate

    def parting(self, number: int) -> Gate:
        """Opens when this worker may go, or must stay since the generation has fallen."""
        gate = Gate(f"to be let go from {number}")
        self._parting = [(number, gate)]
        if number in self.workshop.broken:
            gate.let_through()
        return gate

    def let_part(self, number: int) -> None:
        for waits, gate in self._parting:
            if waits == number:
                gate.let_through()

    def when_open(self, gate: Gate, then: Callable[[], None]) -> None:
        """Do this in the background, once that is there."""
        if gate.open:
            self._beside(then)
        else:
            gate.when_open(lambda: self._beside(then))

    def _beside(self, then: Callable[[], None]) -> None:
        if not self.is_held(self._beside, then):
            then()

    def now(self) -> float:
        return self.world.schedule.now

    def jitter(self, mean: float) -> float:
        return mean * (0.5 + self.rng.random())

    def _advance(self) -> None:
        thread = self._thread
        if self.is_held(self._advance):
            return
        while self.alive and thread is not None:
            try:
                wait = next(thread)
            except StopIteration:
                return
            except Exception as error:
                self.world.crashed(self, None, error)
                return
            self.waits_for = wait
            if isinstance(wait, float):
                self.world.schedule.after(wait, self._advance)
                return
            if not wait.open:
                wait.when_open(self._resume)
                return

    def _resume(self) -> None:
        self.world.schedule.after(self.jitter(self.plan.lag_s), self._advance)

    # -- the end ---------------------------------------------------------------------------

    def exit(self, status: int, why: str) -> None:
        if self.alive:
            self._gone(status, why, flush=True)

    def kill(self) -> None:
        if self.alive:
            self._gone(KILLED, "killed", flush=self.rng.random() < 0.5)

    def _gone(self, status: int, why: str, *, flush: bool) -> None:
        self.alive = False
        world = self.world
        self.history.exits[self.me] = Exit(world.schedule.now, status, why)
        for number in self.workshop.stands:
            self.workshop.leave(number, "its process has ended", in_order=status == 0)
        world.network.vanish(self, self.member.address, flush=flush)
        revoke: Callable[[str], None] = world.shelf.end_lease
        # A launcher that reaped it revokes its lease; otherwise it lapses.
        late = 0.05 if self.rng.random() < 0.7 else self.plan.settings.lease_s
        world.schedule.after(late, revoke, self.me)
        world.gone(self)
