"""A stranger that is dialled cannot pass the handshake on to another port of the same job."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass

import pytest

from edl.errors import PeerError
from edl.types import Address
from edl.wire.channel import Channel
from edl.wire.codec import Codec
from edl.wire.hello import HELLO_BYTES
from edl.wire.hub import Hub, Peer
from edl.wire.stream import MAX_FRAME, frame

JOB, SECRET = "relayed", b"s3cret"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    text: str


CODEC = Codec([Order])


def relay(stranger: socket.socket, target: Address) -> None:
    """Pass both greetings and both proofs on, then speak for oneself."""
    near, _ = stranger.accept()
    with near, socket.create_connection((target.host, target.port), 5.0) as far:
        near.settimeout(5.0)
        for one, other in ((near, far), (far, near)) * 2:
            with contextlib.suppress(OSError):
                other.sendall(one.recv(HELLO_BYTES))
        with contextlib.suppress(OSError):
            far.sendall(frame(CODEC.encode(Order(text="by a stranger")), max_frame=MAX_FRAME))
            while far.recv(HELLO_BYTES):  # until the listener has closed the connection
                continue


def test_a_relayed_handshake_is_refused_and_its_frames_are_not_heard() -> None:
    heard: list[object] = []
    opened: list[Peer] = []
    hub = Hub(
        name="listener",
        job=JOB,
        secret=SECRET,
        codec=CODEC,
        on_message=lambda peer, message: heard.append(message),
        on_open=opened.append,
    )
    target = hub.listen("127.0.0.1")
    hub.start()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        thread = threading.Thread(target=relay, args=(stranger, target), daemon=True)
        thread.start()
        there = Address("127.0.0.1", stranger.getsockname()[1])
        with pytest.raises(PeerError), Channel(there, job=JOB, secret=SECRET, codec=CODEC):
            thread.join(30.0)
        thread.join(30.0)
    # The port itself serves honest callers, and they are heard after the stranger.
    with Channel(target, job=JOB, secret=SECRET, codec=CODEC) as honest:
        honest.send(Order(text="by a member"))
        deadline = threading.Event()
        for _ in range(1000):
            if Order(text="by a member") in heard:
                break
            deadline.wait(0.01)
    hub.stop()
    assert heard == [Order(text="by a member")]
    assert len(opened) == 1
