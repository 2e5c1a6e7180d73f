"""What the launcher concludes about members on other machines, by dialling real listeners."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from edl.launch.elsewhere import Elsewhere, Presence
from edl.launch.messages import port_codec
from edl.types import Address, WorkerId
from edl.wire.hub import Hub, Peer

FAR = WorkerId("far")
SECRET = b"s" * 32
PATIENCE_S = 30.0


class Launcher:
    """An `Elsewhere` on a real hub; its clock runs `ahead` of the real one."""

    def __init__(self, members: dict[WorkerId, Address | None], *, patience_s: float) -> None:
        self.members = members
        self.led = False
        self.ahead = 0.0
        self.noted: list[tuple[str, dict[str, str | int | float]]] = []
        self.presence: Presence | None = None
        self.looked = threading.Condition()
        self.hub = Hub(
            name="launcher",
            job="job",
            secret=SECRET,
            codec=port_codec(),
            on_message=lambda peer, message: None,
            on_open=lambda peer: self._take(self.elsewhere.on_open(peer)),
            on_closed=lambda peer, why: self._take(self.elsewhere.on_closed(peer, why)),
            on_tick=self._tick,
        )
        self.elsewhere = Elsewhere(self.hub, patience_s=patience_s, note=self._note)

    def _take(self, known: bool) -> None:
        assert known

    def _note(self, what: str, **fields: str | int | float) -> None:
        self.noted.append((what, fields))

    def _tick(self) -> None:
        now = time.monotonic() + self.ahead
        presence = self.elsewhere.look(self.members, led=self.led, now=now)
        with self.looked:
            self.presence = presence
            self.looked.notify_all()

    def becomes(self, presence: Presence) -> bool:
        with self.looked:
            return self.looked.wait_for(lambda: self.presence is presence, PATIENCE_S)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def launcher(stack: ExitStack, address: Address | None, *, patience_s: float = 300.0) -> Launcher:
    made = Launcher({FAR: address}, patience_s=patience_s)
    made.hub.start()
    stack.callback(made.hub.stop)
    return made


def member(stack: ExitStack, answered: threading.Event) -> tuple[Hub, Address]:
    def opened(peer: Peer) -> None:
        answered.set()

    hub = Hub(
        name="far",
        job="job",
        secret=SECRET,
        codec=port_codec(),
        on_message=lambda peer, message: None,
        on_open=opened,
    )
    address = hub.listen("127.0.0.1")
    hub.start()
    stack.callback(hub.stop)
    return hub, address


def test_member_that_answers_is_alive_and_one_whose_host_refuses_is_gone(
    stack: ExitStack,
) -> None:
    answered = threading.Event()
    hub, address = member(stack, answered)
    made = launcher(stack, address)
    assert answered.wait(PATIENCE_S)
    assert made.becomes(Presence.ALIVE)
    hub.stop()
    assert made.becomes(Presence.GONE)


def test_member_that_does_not_answer_is_waited_for_and_named(stack: ExitStack) -> None:
    # It accepts connections, by the kernel, and says nothing.
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    address = Address(*silent.getsockname())
    made = launcher(stack, address)
    assert made.becomes(Presence.ALIVE), "it is given time to answer"
    made.ahead = 42.0
    assert made.becomes(Presence.UNKNOWN)
    what, fields = made.noted[0]
    assert what == "job.waiting"
    assert str(fields["members"]).startswith(f"far at {address}, which has not answered for 4")
    made.led = True
    assert made.becomes(Presence.ALIVE)
    assert made.noted[-1][0] == "job.answered"


def test_member_that_never_answers_is_given_up_after_the_limit(stack: ExitStack) -> None:
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    made = launcher(stack, Address(*silent.getsockname()), patience_s=300.0)
    assert made.becomes(Presence.ALIVE)
    made.ahead = 290.0
    assert made.becomes(Presence.UNKNOWN)
    made.ahead = 301.0
    assert made.becomes(Presence.EXPIRED)


def test_member_without_a_known_address_is_never_taken_for_gone(stack: ExitStack) -> None:
    made = launcher(stack, None)
    assert made.becomes(Presence.ALIVE)
    made.ahead = 100.0
    assert made.becomes(Presence.UNKNOWN)
