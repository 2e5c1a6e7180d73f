"""One worker's control machines as a whole: election, worker, and leader if it leads.

The shell (`runtime/agent.py`) and the seeded world drive this same class. Owns: which connection
leads to the leader, and messages for a leader that is about to be. Holds: a worker that leads
talks to itself by the same messages as the others, over the connection number 0.
"""

from __future__ import annotations

import random
from collections import deque

from edl.config import Settings
from edl.protocol import events as ev
from edl.protocol import messages as m
from edl.protocol.effects import Announce, Close, Dial, Dismiss, Effect, LetGo, MayGo, Send
from edl.protocol.election import Election, Known
from edl.protocol.leader import Leader, tell_end
from edl.protocol.liveness import Liveness
from edl.protocol.standing import Standing
from edl.protocol.topology import Generation
from edl.protocol.worker import State, Worker
from edl.types import Address, Member, WorkerId

__all__ = ["LOCAL", "Node"]

# The connection of a leader to itself.
LOCAL = 0

_FOR_LEADER = (
    m.Register, m.Hail, m.Ready, m.RendezvousKey, m.RendezvousEntry, m.GroupBuilt, m.GroupFailed,
    m.Switched, m.Leaving, m.Stuck, m.Pong,
)  # fmt: skip
_EARLY_LIMIT = 10_000
# On average. Each worker varies its own by up to half, since all lose a leader at the same moment.
_REDIAL_S = 0.2


class Node:
    """Event in, effects out."""

    def __init__(
        self,
        *,
        me: Member,
        request_id: str,
        founders: int,
        settings: Settings,
        process_start_s: float = 0.0,
    ) -> None:
        self.me = me
        self.settings = settings
        self.founders = founders
        self.worker = Worker(me=me, request_id=request_id, process_start_s=process_start_s)
        # Newcomers may not contest the key: they know nothing that could be led.
        self.election = Election(me=me.worker, address=me.address, may_lead=not request_id)
        self.leader: Leader | None = None
        self.committed = 0  # steps committed on this worker; its shell keeps it current
        self.following: WorkerId | None = None
        self._link: int | None = None
        self._address: Address | None = None
        self._redial_at: float | None = None
        self._redial_jitter = random.Random(f"redial/{me.worker}")
        self._next_peer = -1
        self._early: deque[tuple[int, m.Message]] = deque()
        self._past: m.Handover | None = None
        self._predecessor: int | None = None
        self._over = False
        self._may_go = False
        self.standing = Standing(self.worker)
        self._liveness = Liveness(settings.silence_s)

    def step(self, event: ev.Event, now: float) -> list[Effect]:
        """Everything this worker's control side does about one event."""
        effects = self._on(event, now)
        return self._settle(effects, now)

    def watchers(self) -> tuple[Address, ...]:
        """Where this worker's heartbeats are awaited: at its leader, or at all whom it leads.

        Those that have registered with a leader follow it before they are members.
        """
        if self.leader is None:
            return (self._address,) if self._address is not None else ()
        generation = self.leader.conductor.generation
        adjustment = self.leader.conductor.adjustment
        members = generation.members if generation is not None else ()
        newcomers = adjustment.arrived.values() if adjustment is not None else ()
        founders = self.leader.founding.arrived.values() if generation is None else ()
        everyone = (*members, *newcomers, *founders)
        # One of the running adjustment may be a member already.
        others = [each.address for each in everyone if each.worker != self.me.worker]
        return tuple(dict.fromkeys(others))

    # -- routing ---------------------------------------------------------------------------

    def _on(self, event: ev.Event, now: float) -> list[Effect]:
        match event:
            case ev.Tick():
                return self._on_tick(now)
            case ev.Heard(peer=peer, message=message):
                return self._on_heard(peer, message, now)
            case ev.LeaderSeen(value=value, revision=revision):
                return self._on_leader_seen(value, revision, now)
            case ev.StateSeen(value=value) if value:
                self.standing.ended = f"the job is {value.decode()}"
                self.election.may_lead = False
                return [MayGo()] if self._over else self.standing.leave_if_over()
            case ev.Swapped():
                return self._on_swapped(event, now)
            case ev.PeerOpened(peer=peer):
                return self._on_opened(peer)
            case ev.PeerClosed(peer=peer, why=why):
                return self._on_closed(peer, why, now)
            case ev.ContextReady(context_s=context_s):
                self.worker.on_context_ready(context_s)
            case ev.KeyMade(generation=number, key=key, value=value):
                self.worker.on_key_made(number, key, value)
            case ev.EntryMade():
                self.worker.on_entry_made(event)
            case ev.GroupStands(number=number, build_s=build_s):
                return self.worker.on_group_stands(number, build_s)
            case ev.GroupFell():
                self.worker.on_group_fell(event)
            case ev.StepCommitted():
                return self.leader.on_step_committed(event, now) if self.leader else []
            case ev.ReplicasDiffer():
                return self.leader.on_replicas_differ(event) if self.leader else []
            case ev.SwitchDecided():
                return self._on_switch_decided(event, now)
            case ev.Broke(generation=number, why=why):
                return self._on_broke(number, why)
            case ev.GenerationSeen(value=value, revision=revision):
                return self._on_generation_seen(value, revision, now)
            case ev.Entered():
                self.election.may_lead = True
                self.worker.on_entered(event)
            case ev.RoundJoined(generation=number):
                # Whoever led until now may be among those who have just left.
                return self._turn_to(self.worker.prepared.get(number))
            case ev.Settled(generation=number):
                self.election.may_lead = True
                if self.worker.on_settled(number):
                    self.standing.heir_of = number
            case ev.Through(generation=number):
                return self._on_through(number, now)
            case ev.Parted(generation=number):
                self.worker.on_parted(number)
                # A leader goes when its successor has taken over; anyone else goes at once.
                return [MayGo()] if self.leader is None else self.standing.leave_if_over()
            case ev.JobOver():
                return self._on_job_over(now)
        return []

    def _settle(self, effects: list[Effect], now: float) -> list[Effect]:
        """Deliver what a leader and its own worker say to each other, until both are silent."""
        done: list[Effect] = []
        queue = deque(effects)
        while True:
            for message in self.worker.take():
                queue.append(Send(peer=LOCAL if self._leads() else self._linked(), message=message))
            if not queue:
                return done
            effect = queue.popleft()
            if isinstance(effect, Send) and effect.peer == LOCAL:
                queue.extendleft(reversed(self._to_self(effect.message, now)))
            elif isinstance(effect, MayGo):
                # Once only: a shell may be on its way out already.
                done += [] if self._may_go else [effect]
                self._may_go = True
            else:
                done.append(effect)

    def _to_self(self, message: m.Message, now: float) -> list[Effect]:
        # Another member's key is for the worker, our own for the leader.
        relayed = isinstance(message, m.RendezvousKey) and message.worker != self.me.worker
        if self.leader is not None and isinstance(message, _FOR_LEADER) and not relayed:
            return self.leader.on_message(LOCAL, message, now)
        return self.worker.on_message(message)

    def _leads(self) -> bool:
        return self.leader is not None and self.following == self.me.worker

    def _linked(self) -> int:
        assert self._link is not None
        return self._link

    # -- finding and following a leader ----------------------------------------------------

    def _on_leader_seen(self, value: bytes | None, revision: int, now: float) -> list[Effect]:
        # One that is being dialled is not known to be gone: losing a lease is not death.
        answers = self._link is not None or self.leader is not None
        answers = answers or not self.standing.may_lead()
        old = self.election.is_old(value, revision)
        at = self.election.saw(value, revision, leader_answers=answers)
        if at is not None or (value is None and self.leader is not None):
            return [self.election.contest(expected=0)]
        known = self.election.known
        if known is None or known.worker == self.me.worker:
            return []
        if old and self.following is not None:
            # It may have turned to the next leader already, before the store told of it.
            return []
        if self.leader is not None and known.token < self.leader.token:
            return []
        return self._yield_to(known)

    def _yield_to(self, known: Known) -> list[Effect]:
        """Another worker leads, by the store's word."""
        led, was_over = self.leader is not None, self.leader is not None and self.leader.over
        self.leader, self._over = None, self._over or was_over
        if self._past is not None and known.token > self._past.leader_revision:
            # This leader answers requests that the handover still calls open.
            self._past = None
        if led and (self.worker.state is State.LEAVING or (was_over and self.standing.ended)):
            # Its word that it has taken over may be lost; the store's is as good.
            return [MayGo()]
        quiet: list[Effect] = [Announce(generation=0, switch_step=0, token=0)] if led else []
        here = self.worker.generation
        if self.standing.is_heir() and here is not None and known.worker in here:
            # Somebody else of this generation took the office that was meant for us.
            self.standing.heir_of = 0
            if self._over:
                return [*quiet, MayGo()]
        return [*quiet, *self._follow(known.worker, known.address)]

    def _on_swapped(self, event: ev.Swapped, now: float) -> list[Effect]:
        if event.purpose == "generation" and event.value is None:
            return self._stop_if(self.standing.fence_if_deleted(watched=False))
        if event.purpose == "generation" and event.value is not None:
            stopped = self._stop_if(self.standing.fence_if_replaced(event.value))
            if stopped:
                return stopped
            self.standing.take_note(event.value, event.revision)
        if event.purpose != "leader":
            return self.leader.on_swapped(event, now) if self.leader else []
        won = self.election.swapped(done=event.done, value=event.value, revision=event.revision)
        if won:
            return self._lead(event.revision, now)
        had_it = event.done or event.value == self.election.value()
        if had_it or (event.value is None and self._past is not None):
            # The old leader's lease lapsed before we took its key, or ours before we heard
            # that we had it: it is vacant, take it so.
            return [self.election.contest(expected=0)]
        known = self.election.known
        if known is None or known.worker == self.me.worker:
            return []
        outdated = self.leader is not None and known.token < self.leader.token
        return [] if outdated else self._yield_to(known)

    def _lead(self, token: int, now: float) -> list[Effect]:
        if self.leader is not None:
            # The key lapsed and was taken again; a successor needs its new revision.
            self.leader.conductor.token = token
            heir = self.leader.conductor.generation
            return self.leader.hand_over(now, to=heir.leader) if heir else []
        self.leader = Leader(
            me=self.me.worker,
            token=token,
            settings=self.settings,
            founders=self.founders,
            peer=LOCAL,
        )
        self.leader.voice.step = self.committed
        effects: list[Effect] = []
        old_link = self._link
        self.standing.take_office(after=self.following)
        self.following, self._link = self.me.worker, LOCAL
        self._redial_at = None
        if self._past is not None:
            effects += self.leader.take_over(self._past, now)
            taken = m.HandoverTaken(generation=self._past.generation.number, worker=self.me.worker)
            if self._predecessor is not None:
                effects.append(Send(peer=self._predecessor, message=taken))
            self._past = None
        elif self.standing.recorded is not None or self.worker.generation is not None:
            effects += self._inherit(self.leader, now)
        effects += self._end(self.leader, now) if self._over else []
        if old_link is not None:
            effects.append(Close(peer=old_link))
        self.worker.on_linked()
        while self._early:
            peer, message = self._early.popleft()
            effects += self.leader.on_message(peer, message, now)
        return effects

    def _inherit(self, leader: Leader, now: float) -> list[Effect]:
        """The leader went without a word. Only a member of the last recorded generation leads."""
        if self.worker.state is State.LEAVING:
            # It has let the others go on without it since it asked for the key.
            return [Dismiss(why="this worker has left the job", failed=False)]
        found, revision = self.standing.base()
        return leader.inherit(
            found,
            revision=revision,
            last=self.worker.last,
            knows=self.standing.knows(found.generation),
            lost=self.standing.missing,
            now=now,
        )

    def _on_generation_seen(self, value: bytes | None, revision: int, now: float) -> list[Effect]:
        if value is None:
            return self._stop_if(self.standing.fence_if_deleted(watched=True))
        stopped = self._stop_if(self.standing.fence_if_replaced(value))
        if stopped or not self.standing.take_note(value, revision, watched=True):
            return stopped
        leader = self.leader
        if leader is not None and leader.over:
            return []  # it stays until the store has the job's end, whoever was to lead next
        if (
            leader is not None
            and leader.conductor.generation is None
            and self.standing.is_eligible()
        ):
            # The last leader had founded the job, and went before anybody heard of it.
            return self._inherit(leader, now) if leader.conductor.asked is None else []
        return self.standing.leave_if_out()

    def _stop_if(self, effects: list[Effect]) -> list[Effect]:
        """The job was fenced, if there are effects: lead and follow nobody any more."""
        if self.standing.fenced:
            self.election.may_lead = False
            self.leader, self._redial_at = None, None
            self.worker.on_unlinked()
        return effects

    def _on_broke(self, number: int, why: str) -> list[Effect]:
        self.worker.on_broke(number, why)
        return self.standing.leave_if_over() or self.standing.leave_if_out()

    def _follow(self, worker: WorkerId, address: Address) -> list[Effect]:
        if self.following == worker and self._link is not None:
            return []
        effects: list[Effect] = []
        if self._link is not None and self._link != LOCAL:
            effects.append(Close(peer=self._link))
        self.worker.on_unlinked()
        self.following, self._address = worker, address
        return [*effects, self._dial()]

    def _dial(self) -> Dial:
        assert self._address is not None
        self._link, self._redial_at = self._next_peer, None
        self._next_peer -= 1
        return Dial(peer=self._link, address=self._address)

    def _on_opened(self, peer: int) -> list[Effect]:
        if peer == self._link:
            self.worker.on_linked()
            if self.following is not None:
                # The leader has just answered the handshake of this connection.
                self._liveness.heard(self.following)
        return []

    def _on_closed(self, peer: int, why: str, now: float) -> list[Effect]:
        if peer == self._link:
            self.worker.on_unlinked()
            self._link = None
            self._redial_at = now + _REDIAL_S * self._redial_jitter.uniform(0.5, 1.5)
            if self.election.vacant() and self.standing.may_lead():
                return [self.election.contest(expected=0)]
            return []
        self._early = deque(kept for kept in self._early if kept[0] != peer)
        return self.leader.on_peer_closed(peer, why, now) if self.leader else []

    def _on_tick(self, now: float) -> list[Effect]:
        if self.leader is not None:
            return self.leader.on_tick(now)
        effects = self.standing.despair(now, after_s=self.settings.patience_s)
        effects += self.standing.hurry(now, after_s=self.settings.silence_s)
        if self._redial_at is not None and now >= self._redial_at and self._address:
            return [*effects, self._dial()]
        return [*effects, *self._listen_to_leader(now)]

    def _listen_to_leader(self, now: float) -> list[Effect]:
        """A leader that has been silent for too long is frozen or cut off."""
        leader, link = self.following, self._link
        if leader is None or link is None or not self.worker.linked:
            return []
        here = self.worker.generation.number if self.worker.generation else 0
        ping, silent = self._liveness.look([leader], now)
        if silent:
            return [Close(peer=link), *self._on_closed(link, "the leader is silent", now)]
        return [Send(peer=link, message=m.Ping(generation=here, worker=self.me.worker))] * len(ping)

    # -- messages --------------------------------------------------------------------------

    def _on_heard(self, peer: int, message: m.Message, now: float) -> list[Effect]:
        if isinstance(message, m.Handover):
            return self._on_handover(peer, message)
        from_leader = peer == self._link
        if isinstance(message, m.Alive) and self.leader is None:
            if message.worker == self.following:
                self._liveness.vouch(message.worker, now)
            return []
        if isinstance(message, m.HandoverTaken):
            self.leader = None
            return self.worker.out("it was scaled in") if self.worker.stuck else [MayGo()]
        if isinstance(message, m.Succeeded):
            here = self.worker.generation
            same = here is not None and from_leader and here.number == message.generation
            return self._turn_to(here.settled()) if here is not None and same else []
        if from_leader and self.following is not None:
            self._liveness.heard(self.following)
        if from_leader:
            return self.worker.on_message(message)
        if self.leader is not None:
            return self.leader.on_message(peer, message, now)
        if isinstance(message, m.Ping) and self.standing.is_heir():
            # Not in office yet, perhaps for want of a store; but whoever listens is no orphan.
            return [Send(peer=peer, message=m.Pong(generation=0, worker=self.me.worker))]
        if isinstance(message, m.REQUESTS):
            return [Send(peer=peer, message=m.NotLeader(request_id=message.request_id))]
        if isinstance(message, _FOR_LEADER) and len(self._early) < _EARLY_LIMIT:
            self._early.append((peer, message))
        return []

    def _on_handover(self, peer: int, message: m.Handover) -> list[Effect]:
        if self.leader is not None:
            taken = m.HandoverTaken(generation=message.generation.number, worker=self.me.worker)
            return [Send(peer=peer, message=taken)]
        self._past, self._predecessor = message, peer
        return [self.election.contest(expected=message.leader_revision)]

    # -- the training thread ---------------------------------------------------------------

    def _on_switch_decided(self, event: ev.SwitchDecided, now: float) -> list[Effect]:
        led = self.leader is not None
        target = self.worker.on_switch_decided(event.generation)
        if target is not None and target.number != event.generation:
            # It fell before this worker moved; the training thread is about to notice.
            return []
        effects: list[Effect] = []
        if self.leader is not None:
            effects += self.leader.on_switch_decided(event.generation, event.step, now)
        if target is None:
            # A leader goes when its successor has taken over; anyone else goes at once.
            self.election.may_lead = False
            return [*effects, *(self.standing.leave_if_over() if led else [MayGo()])]
        self.election.may_lead = True
        self.standing.heir_of = target.number if target.leader == self.me.worker else 0
        return [*effects, *self._turn_to(target)]

    def _turn_to(self, target: Generation | None) -> list[Effect]:
        """Follow the leader of the generation that has begun, unless the store knows better."""
        if target is None or self.election.outdates(target.token):
            return []
        if target.leader in (self.following, self.me.worker):
            return []
        return self._follow(target.leader, target.member(target.leader).address)

    def _on_through(self, number: int, now: float) -> list[Effect]:
        goes = self.worker.on_through(number)
        effects: list[Effect] = [LetGo(generation=number)] if goes else []
        self.election.may_lead = self.election.may_lead and not goes
        if self.leader is not None and self.worker.through == number:
            effects += self.leader.parting.on_through(number, now, goes=goes)
        return effects

    def _on_job_over(self, now: float) -> list[Effect]:
        if self.standing.fenced:
            # Another run of the job may have begun: this one's end is not the job's.
            return [MayGo()]
        if self.leader is not None:
            return self._end(self.leader, now)
        if self.standing.is_heir() and not self.standing.ended:
            # The old leader still has to hand over: without us nobody would tell the end.
            self._over = True
            return []
        self.election.may_lead = False
        self.worker.on_job_over()
        # The leader may die before it has told the end; whoever is first tells it.
        return [tell_end(b"finished"), MayGo()]

    def _end(self, leader: Leader, now: float) -> list[Effect]:
        here = self.worker.generation
        # The closing round was made by those who stay: the others have gone before it.
        told = leader.parting.on_own(here, now) if here is not None else []
        return [*told, *leader.on_job_over(now)]
