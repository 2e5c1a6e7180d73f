"""The control side of one worker: joining -> ready -> training -> leaving.

Owns: the link to the leader and what is waiting to be said over it. Knows nothing of steps; the
training thread's `Progress` does. Holds: nothing that matters is lost with a connection, for it is
said again over the next one; whoever hears it twice takes it once.
"""

from __future__ import annotations

from enum import Enum

from edl.protocol.effects import (
    Begin,
    BreakGroup,
    BuildGroup,
    Dismiss,
    DropGroup,
    Effect,
    OfferKey,
    OfferTable,
)
from edl.protocol.events import Entered, EntryMade, GroupFell
from edl.protocol.messages import (
    Fell,
    Founded,
    GroupBuilt,
    GroupFailed,
    Hail,
    Leaving,
    Message,
    Out,
    Ping,
    Pong,
    Prepare,
    Ready,
    Register,
    Rejected,
    RendezvousEntry,
    RendezvousKey,
    RendezvousTable,
    Stuck,
    Switched,
    Undo,
)
from edl.protocol.rendezvous import rows_of
from edl.protocol.topology import Generation
from edl.types import Member

__all__ = ["State", "Worker"]


class State(Enum):
    """Where a worker stands in its life."""

    JOINING = "joining"
    READY = "ready"
    TRAINING = "training"
    LEAVING = "leaving"
    DISMISSED = "dismissed"


class Worker:
    """Says to the leader what happens here, and does what the leader says."""

    def __init__(self, *, me: Member, request_id: str, process_start_s: float) -> None:
        self.me = me
        self.request_id = request_id
        self.process_start_s = process_start_s
        self.state = State.JOINING
        self.generation: Generation | None = None
        self.prepared: dict[int, Generation] = {}
        self.outbox: list[Message] = []
        self.linked = False
        self._context_s: float | None = None
        self._keys: dict[int, list[RendezvousKey | RendezvousEntry]] = {}
        self._built: dict[int, GroupBuilt] = {}
        self._switched: Switched | None = None
        self.last = 0  # the highest generation that this worker has heard of
        self.dead_upto = 0  # generations up to this number have fallen
        self.through = 0  # the last one whose first step everybody has committed, if some then left
        self.out_why = ""  # why the next generation is made without this worker, if it is
        self._left_out: set[int] = set()  # fallen ones that were to go on without this worker
        self._stuck: Stuck | None = None

    @property
    def stuck(self) -> bool:
        """Whether the training thread waits for the next generation."""
        return self._stuck is not None

    # -- the link --------------------------------------------------------------------------

    def on_linked(self) -> None:
        """A leader listens: introduce ourselves, say again what stands, then what has waited."""
        self.linked = True
        self.outbox[:0] = [*self._introduction(), *self._standing()]

    def on_unlinked(self) -> None:
        self.linked = False

    def take(self) -> list[Message]:
        """What can be said now."""
        if not self.linked:
            return []
        said, self.outbox = self.outbox, []
        return said

    def _introduction(self) -> list[Message]:
        if self.generation is not None:
            number = self.generation.number
            return [Hail(worker=self.me.worker, generation=number, last=self.last)]
        hello: list[Message] = [
            Register(
                member=self.me,
                request_id=self.request_id,
                process_start_s=self.process_start_s,
                last=self.last,
            )
        ]
        if self._context_s is not None:
            hello.append(self._ready(self._context_s))
        return hello

    def _standing(self) -> list[Message]:
        """What the last connection may have swallowed."""
        standing: list[Message] = []
        for number in sorted(self.prepared):
            standing += self._keys.get(number, [])
            if number in self._built:
                standing.append(self._built[number])
        if self._switched is not None:
            standing.append(self._switched)
        if self._stuck is not None:
            standing.append(self._stuck)
        return standing

    def _say(self, message: Message) -> None:
        """What stands is said now, or with the next introduction."""
        if self.linked:
            self.outbox.append(message)

    # -- from the training thread and the group builder ------------------------------------

    def on_context_ready(self, context_s: float) -> None:
        self._context_s = context_s
        self.state = State.READY
        self._say(self._ready(context_s))

    def on_key_made(self, generation: int, key: str, value: bytes) -> None:
        made = RendezvousKey(generation=generation, worker=self.me.worker, key=key, value=value)
        self._keys.setdefault(generation, []).append(made)
        self._say(made)

    def on_entry_made(self, event: EntryMade) -> None:
        made = RendezvousEntry(
            generation=event.generation,
            worker=self.me.worker,
            group=event.group,
            rank=event.rank,
            size=event.size,
            key=event.key,
            common=event.common,
            parts=event.parts,
        )
        self._keys.setdefault(event.generation, []).append(made)
        self._say(made)

    def on_group_stands(self, number: int, build_s: float) -> list[Effect]:
        generation = self.prepared.get(number)
        if generation is None:
            return [DropGroup(number=number, why="it was undone while it was built")]
        built = GroupBuilt(generation=number, worker=self.me.worker, build_s=build_s)
        self._built[number] = built
        self._say(built)
        is_newcomer = self.generation is None and self.me.worker in generation.newcomers
        if is_newcomer and not generation.founding and not generation.mended:
            # A newcomer waits in-band from here on: the first round of the new group is its step.
            return [Begin(generation=generation)]
        return []

    def on_group_fell(self, event: GroupFell) -> None:
        if self._forget(event.number) is not None:
            failed = GroupFailed(
                generation=event.number,
                worker=self.me.worker,
                why=event.why,
                unreached=event.unreached,
                unproven=event.unproven,
            )
            self.outbox.append(failed)

    def on_switch_decided(self, number: int) -> Generation | None:
        """The next step belongs to this generation. None: not for this worker."""
        target = self.prepared.get(number)
        if target is None and 0 < number <= self.dead_upto and number not in self._left_out:
            # It fell before this worker moved; the training thread is about to notice.
            return self.generation
        if target is None or self.me.worker not in target:
            self.state = State.LEAVING
            here = self.generation.number if self.generation else 0
            self.outbox.append(Leaving(generation=here, worker=self.me.worker))
            return None
        self._enter(target)
        return target

    def on_broke(self, generation: int, why: str) -> None:
        """The training thread cannot go on in this generation."""
        here = self.generation.number if self.generation else 0
        if generation < here:
            return
        self._stuck = Stuck(generation=generation, worker=self.me.worker, why=why)
        self._say(self._stuck)

    def on_job_over(self) -> None:
        """The closing record is complete: going now is no loss to anybody."""
        here = self.generation.number if self.generation else 0
        self.outbox.append(Leaving(generation=here, worker=self.me.worker))

    def on_entered(self, event: Entered) -> None:
        target = self.prepared.get(event.generation)
        if target is not None:
            self._enter(target)
        self._switched = Switched(
            generation=event.generation,
            worker=self.me.worker,
            step=event.step,
            transfer_s=event.transfer_s,
            transfer_bytes=event.transfer_bytes,
            stop_s=event.stop_s,
        )
        self._say(self._switched)

    def on_settled(self, number: int) -> bool:
        """The first step of a generation is committed here; a leaver waits for the others'.

        True: with those who go its leader goes, too, and this worker is to lead.
        """
        target = self.prepared.get(number)
        if target is not None:
            self._enter(target)
        here = self.generation
        if here is None or here.number != number or self.me.worker in here.leaving:
            return False
        self.generation = here.settled()
        return self.generation.leader == self.me.worker != here.leader

    def on_through(self, number: int) -> bool:
        """Everybody has committed the first step. True: this worker had only stayed for it."""
        here = self.generation
        if number <= self.dead_upto or here is None or here.number != number:
            # The generation fell, and others may count on it; its training thread will notice.
            return False
        self.through = number
        if self.me.worker not in here.leaving:
            return False
        self.state = State.LEAVING
        return True

    def on_parted(self, number: int) -> None:
        self.outbox.append(Leaving(generation=number, worker=self.me.worker))

    def _enter(self, target: Generation) -> None:
        self.generation = target
        self.state = State.TRAINING
        self._stuck = None
        self.out_why = ""
        for number in [n for n in self.prepared if n <= target.number]:
            self._forget(number)

    def _forget(self, number: int) -> Generation | None:
        self._keys.pop(number, None)
        self._built.pop(number, None)
        return self.prepared.pop(number, None)

    # -- from the leader -------------------------------------------------------------------

    def on_message(self, message: Message) -> list[Effect]:
        """What the leader says. Stale words are dropped."""
        here = self.generation.number if self.generation else 0
        if isinstance(message, Prepare):
            return self._on_prepare(message.generation, here)
        if isinstance(message, RendezvousKey) and message.generation in self.prepared:
            return [OfferKey(generation=message.generation, key=message.key, value=message.value)]
        if isinstance(message, RendezvousTable) and message.generation in self.prepared:
            entries = rows_of(message)
            number, rank, size = message.generation, message.rank, message.size
            return [OfferTable(generation=number, rank=rank, size=size, entries=entries)]
        if isinstance(message, Undo):
            return self._on_undo(message)
        if isinstance(message, Ping):
            self._say(Pong(generation=here, worker=self.me.worker))
        if isinstance(message, Fell):
            self.out_why = message.why if message.out else ""
            return self._on_fell(message.generation, message.why)
        if isinstance(message, Out):
            return self.out(message.why)
        if isinstance(message, Founded) and message.generation in self.prepared:
            target = self.prepared[message.generation]
            self._enter(target)
            return [Begin(generation=target)]
        if isinstance(message, Rejected) and self.generation is None:
            return self._dismiss(message.reason, failed=not message.finished)
        return []

    def _on_prepare(self, generation: Generation, here: int) -> list[Effect]:
        if generation.number <= here or generation.number in self.prepared:
            return []
        if self._stuck is not None and self.generation is None and not generation.mended:
            # It was let in once, and its training thread waits for what is left of that.
            return self.out("what it was let into broke before it had trained")
        # One adjustment at a time: an older one that was never entered was undone unheard.
        stale = sorted(n for n in self.prepared if n < generation.number)
        why = f"generation {generation.number} is prepared instead"
        effects: list[Effect] = [DropGroup(number=n, why=why) for n in stale if self._forget(n)]
        self.last = max(self.last, generation.number)
        # A leaver builds nothing, but must know whom the announced number leaves out.
        self.prepared[generation.number] = generation
        return [*effects, BuildGroup(generation=generation)]

    def _on_fell(self, upto: int, why: str) -> list[Effect]:
        """Everything up to this number is dead, prepared or entered."""
        effects: list[Effect] = []
        for number in sorted(n for n in self.prepared if n <= upto):
            target = self._forget(number)
            if target is not None and self.me.worker not in target:
                self._left_out.add(number)
            effects.append(BreakGroup(number=number, why=why))
        if self.generation is not None and self.dead_upto < self.generation.number <= upto:
            effects.append(BreakGroup(number=self.generation.number, why=why))
        self.dead_upto = max(self.dead_upto, upto)
        self.last = max(self.last, upto)
        return effects

    def _on_undo(self, message: Undo) -> list[Effect]:
        effects: list[Effect] = []
        if self._forget(message.generation) is not None:
            effects.append(DropGroup(number=message.generation, why=message.why))
        if self.generation is None and message.request_id == self.request_id:
            effects += self._dismiss(message.why, failed=False)
        return effects

    def _dismiss(self, why: str, *, failed: bool, over: bool = False) -> list[Effect]:
        if self.state is State.DISMISSED:
            return []
        self.state = State.DISMISSED
        return [Dismiss(why=why, failed=failed, over=over)]

    def dismiss(self, why: str, *, failed: bool, over: bool = False) -> list[Effect]:
        """Somebody else found out that this worker is not needed; a member is, while it trains."""
        wanted = self.generation is not None and self._stuck is None
        return [] if wanted else self._dismiss(why, failed=failed, over=over)

    def out(self, why: str) -> list[Effect]:
        """The job goes on without this worker: nothing that it still does may count."""
        everything = max([self.last, self.generation.number if self.generation else 0])
        return [*self._on_fell(everything, why), *self._dismiss(why, failed=False)]

    def left_out_of(self, number: int) -> bool:
        """Whether this worker has heard of a generation that is to go on without it."""
        target = self.prepared.get(number)
        return number in self._left_out or (target is not None and self.me.worker not in target)

    def _ready(self, context_s: float) -> Ready:
        return Ready(worker=self.me.worker, request_id=self.request_id, context_s=context_s)
