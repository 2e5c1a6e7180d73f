"""Where one fake process builds its groups, in the background and with what can go wrong there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl.protocol import events as ev
from edl.protocol.topology import Generation

if TYPE_CHECKING:
    from tests.seeded.process import Process

__all__ = ["Workshop"]


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

    def _pin(self, generation: Generation) -> None:
        """This worker's own key is made; or the build falls."""
        number = generation.number
        if self.host.is_held(self._pin, generation) or number not in self.building:
            return
        if not generation.founding and self.host.rng.random() < self.host.plan.group_falls:
            del self.building[number]
            self.host.post(ev.GroupFell(number=number, why="a port was taken"))
            return
        key = f"{number}/{self.host.me}"
        if key in self._needed(generation):
            self.keys.setdefault(number, set()).add(key)
            self.host.post(ev.KeyMade(generation=number, key=key, value=key.encode()))
        self.look(number)

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
            self.host.post(ev.GroupFell(number=generation.number, why="it was broken"))
        elif not self.host.world.unreachable(self.host.me, generation):
            self._stand(generation)
        elif self.host.world.schedule.now < until:
            self.host.world.schedule.after(0.1, self._connect, generation, until)
        else:
            self.host.post(ev.GroupFell(number=generation.number, why="a peer is out of reach"))

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
