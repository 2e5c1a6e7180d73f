"""How a fake worker goes, or goes on, after a first step that some have stayed for.

As in a real session: all say that they have committed it, leavers then let the others go on, and
nobody completes anything more before they know that all leavers have.
"""

from __future__ import annotations

from collections.abc import Generator

from edl.protocol.events import Broke, Entered, Parted, Through
from edl.protocol.progress import Progress
from edl.protocol.topology import Generation
from tests.seeded.collective import Broken, Exchange
from tests.seeded.host import Host, Wait

__all__ = ["Farewell"]


class Farewell:
    """One worker's part in it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.news: Entered | None = None  # told when all leavers have let the others go on
        self._parting: Exchange | None = None

    def say(self, progress: Progress) -> Generator[Wait, None, bool]:
        """True: this worker is gone; a stayer goes on at once."""
        host, generation = self.host, progress.generation
        through = host.group(generation).put("through", host.me, 0)
        if host.me in generation.leaving:
            yield from self._part(generation, through)
            return True
        self._wait_beside(generation, through)
        progress.settle()
        return False

    def _part(self, generation: Generation, through: Exchange) -> Generator[Wait, None, None]:
        host, number = self.host, generation.number
        yield through
        if through.broken:
            raise Broken(through.broken)
        host.post(Through(generation=number))
        yield host.parting(number)
        if number not in host.let_go:
            raise Broken("it fell before this worker could go")
        # Whatever becomes of it, the others may go on without this worker.
        last = host.group(generation).put("farewell", host.me, 0)
        yield last
        if last.broken:
            host.post(Broke(generation=number, why=last.broken))
        host.post(Parted(generation=number))

    def _wait_beside(self, generation: Generation, through: Exchange) -> None:
        host, number = self.host, generation.number
        self._parting = parting = Exchange(f"parting in generation {number}", {})

        def end(exchange: Exchange) -> None:
            parting.broken = exchange.broken
            parting.let_through()

        def let_go() -> None:
            if through.broken:
                end(through)
                return
            host.post(Through(generation=number))
            last = host.group(generation).put("farewell", host.me, 0)
            host.when_open(last, lambda: end(last))

        host.when_open(through, let_go)

    def said(self) -> Generator[Wait, None, None]:
        """Nothing is completed before all that stayed for one step have let the others go on."""
        if self._parting is None:
            return
        parting, self._parting = self._parting, None
        yield parting
        if parting.broken:
            raise Broken(parting.broken)
        if self.news is not None:
            self.host.post(self.news)
        self.news = None

    def forget(self) -> None:
        """Something broke: whoever is left begins anew."""
        self.news = self._parting = None
