"""Where one fake process builds its groups, in the background and with what can go wrong there."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from edl.protocol import events as ev
from edl.protocol.effects import OfferTable
from edl.protocol.topology import Generation
from edl.types import WorkerId

if TYPE_CHECKING:
    from tests.seeded.process import Process

__all__ = ["Workshop"]

_KEY_TIMEOUTS = 8


def _parts(common: bytes, ranks: Iterable[int]) -> bytes:
    """What one member publishes for the readers of these ranks."""
    own = zlib.crc32(common)
    fields = [field for rank in ranks for field in (own, rank)]
    return struct.pack(f">{len(fields)}I", *fields)


class Workshop:
    """Groups that are being built, that stand, and that were broken."""

    def __init__(self, host: Process) -> None:
        self.host = host
        self.keys: dict[int, set[str]] = {}
        self.building: dict[int, Generation] = {}
        self.stands: dict[int, Generation] = {}
        self.broken: dict[int, str] = {}

    def offer(self, number: int, key: str) -> None:
        """Another member's key."""
        self.keys.setdefault(number, set()).add(key)
        self.look(number)

    def offer_table(self, table: OfferTable) -> None:
        """Everybody's entries, with the parts that are for this member."""
        # All of a small table, and some of a large one: there are as many of these as members.
        for key, common, part in table.entries[:: 1 + table.size // 64]:
            expected = _parts(key.encode(), [table.rank])
            assert (common, part) == (key.encode(), expected), f"{self.host.me}: {table}"
        self.keys.setdefault(table.generation, set()).update(row[0] for row in table.entries)
        self.look(table.generation)

    def build(self, generation: Generation) -> None:
        number = generation.number
        self.host.history.generations.setdefault(number, generation)
        if self.host.me not in generation:
            self._stand(generation)
            return
        if self.host.fate == "dies building":
            self.host.world.schedule.after(self.host.jitter(0.05), self.host.kill)
        self.building[number] = generation
        self.host.world.schedule.after(self.host.jitter(0.02), self._pin, generation)
        # Here, unlike in real jobs, a message can take longer than a build may.
        limit_s = _KEY_TIMEOUTS * self.host.plan.settings.build_timeout_s
        self.host.world.schedule.after(limit_s, self._give_up, generation)

    def _pin(self, generation: Generation) -> None:
        """This worker's own key is made; or the build falls."""
        number = generation.number
        if self.host.is_held(self._pin, generation) or number not in self.building:
            return
        if not generation.founding and self.host.rng.random() < self.host.plan.group_falls:
            self._fail(number, "a port was taken")
            return
        key = f"{number}/{self.host.me}"
        if key in self._needed(generation):
            self.keys.setdefault(number, set()).add(key)
            self._publish(generation, key)
        self.look(number)

    def _publish(self, generation: Generation, key: str) -> None:
        """A key that few members make is relayed by itself; one from each member is collected."""
        number, size = generation.number, generation.size
        if self.host.plan.key_makers:
            self.host.post(ev.KeyMade(generation=number, key=key, value=key.encode()))
            return
        self.host.post(
            ev.EntryMade(
                generation=number,
                group="data",
                rank=generation.rank(self.host.me),
                size=size,
                key=key,
                common=key.encode(),
                parts=_parts(key.encode(), range(size)),
            )
        )

    def _needed(self, generation: Generation) -> list[str]:
        makers = self.host.plan.key_makers or generation.size
        return [f"{generation.number}/{member.worker}" for member in generation.members[:makers]]

    def look(self, number: int) -> None:
        """The group stands as soon as every key is there."""
        generation = self.building.get(number)
        if generation is None or not self.keys.get(number, set()).issuperset(
            self._needed(generation)
        ):
            return
        del self.building[number]
        until = self.host.world.schedule.now + self.host.plan.settings.build_timeout_s
        self.host.world.schedule.after(self.host.jitter(0.02), self._connect, generation, until)

    def _connect(self, generation: Generation, until: float) -> None:
        """Everybody must be reached by everybody, or the build falls when its time is up."""
        if self.host.is_held(self._connect, generation, until):
            return
        if generation.number in self.broken:
            self._fail(generation.number, "it was broken")
            return
        unreached = self.host.world.unreached(self.host.me, generation)
        if not unreached:
            self._stand(generation)
        elif self.host.world.schedule.now < until:
            self.host.world.schedule.after(0.1, self._connect, generation, until)
        else:
            self._fail(generation.number, "a peer is out of reach", unreached)

    def _fail(self, number: int, why: str, unreached: tuple[WorkerId, ...] = ()) -> None:
        self.building.pop(number, None)
        self.host.post(ev.GroupFell(number=number, why=why, unreached=unreached))

    def _give_up(self, generation: Generation) -> None:
        """Some member's key has not come in time."""
        number = generation.number
        if self.host.is_held(self._give_up, generation) or number not in self.building:
            return
        # No peer is unreached: keys come by way of the leader, and the messages may only be slow.
        self._fail(number, "a key did not come")

    def _stand(self, generation: Generation) -> None:
        self.stands[generation.number] = generation
        if self.host.progress is not None:
            self.host.progress.prepare(generation)
        self.host.post(ev.GroupStands(number=generation.number, build_s=0.0))
        if self.host.fate == "dies announced":
            self.host.world.schedule.after(self.host.jitter(0.2), self.host.kill)

    def drop(self, number: int) -> None:
        self.building.pop(number, None)
        self.stands.pop(number, None)
        if self.host.progress is not None:
            self.host.progress.withdraw(number)

    def break_up(self, number: int, why: str) -> None:
        """Whatever is under way in this group fails now; a later call fails at once."""
        self.broken[number] = why
        self.building.pop(number, None)
        self.leave(number, why)
        self.host.let_part(number)
        self.host.world.notice("break", self.host)

    def leave(self, number: int, why: str, *, in_order: bool = False) -> None:
        """Go from this generation's groups: the one of all, and the one of those who stay."""
        generation = self.stands.get(number)
        if generation is None:
            return
        self.host.world.group(generation).leave(self.host.me, why, in_order=in_order)
        if generation.leaving:
            after = self.host.world.group(generation.settled())
            after.leave(self.host.me, why, in_order=in_order)
