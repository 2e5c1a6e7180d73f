"""How long is a control message's round trip, beside a bare blocking socket's?

    python bench/control_round_trip.py [--blocks 40] [--trips 500]

Two processes on the loopback, about 200 bytes each way, blocks of both kinds interleaved. The bare
echo is `recv` and `sendall` on blocking sockets and nothing else. A control message takes what it
takes in a job: encoded, framed and sent by one hub's thread, decoded and answered by another's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import socket
import statistics
import sys
import threading
import time
from multiprocessing.connection import Connection

from edl.protocol.messages import MESSAGES, RendezvousKey
from edl.types import Address, WorkerId
from edl.wire.codec import Codec
from edl.wire.hub import Hub, Peer

SECRET = b"a secret of this benchmark only."
BODY = RendezvousKey(generation=1, worker=WorkerId("w1"), key="control/0/1", value=b"x" * 140)


def answering(ports: Connection) -> None:
    """The other process: one hub and one blocking socket, both sending back what arrives."""
    keep_to(CORES[-1])
    hub = Hub(name="echo", job="bench", secret=SECRET, codec=Codec(MESSAGES), on_message=on_echo)
    HUBS.append(hub)
    where = hub.listen("127.0.0.1")
    hub.start()
    bare = socket.create_server(("127.0.0.1", 0))
    ports.send((where.port, bare.getsockname()[1]))
    sock, _ = bare.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := sock.recv(4096):
        sock.sendall(data)
    hub.stop()


def keep_to(core: int) -> None:
    os.sched_setaffinity(0, {core})


HUBS: list[Hub] = []
CORES = sorted(os.sched_getaffinity(0))


def on_echo(peer: Peer, message: object) -> None:
    HUBS[0].send(peer, message)


class Asking:
    """Round trips by a hub, as many as asked for, one after another."""

    def __init__(self, port: int) -> None:
        self.hub = Hub(
            name="ask",
            job="bench",
            secret=SECRET,
            codec=Codec(MESSAGES),
            on_message=self._on_answer,
            on_open=lambda peer: self._opened.set(),
        )
        self._opened, self._done = threading.Event(), threading.Event()
        self._times: list[float] = []
        self._left = 0
        self._began = 0.0
        self.hub.start()
        self.hub.post(lambda: self._connect(port))
        if not self._opened.wait(10):
            raise SystemExit("the two hubs did not meet within 10 s")

    def _connect(self, port: int) -> None:
        self._peer = self.hub.connect(Address("127.0.0.1", port))

    def trips(self, count: int) -> list[float]:
        self._times, self._left = [], count
        self._done.clear()
        self.hub.post(self._ask)
        self._done.wait()
        return self._times

    def _ask(self) -> None:
        self._began = time.perf_counter()
        self.hub.send(self._peer, BODY)

    def _on_answer(self, peer: Peer, message: object) -> None:
        self._times.append(time.perf_counter() - self._began)
        self._left -= 1
        if self._left:
            self._ask()
        else:
            self._done.set()


def bare_trips(sock: socket.socket, body: bytes, count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        sock.sendall(body)
        got = 0
        while got < len(body):
            got += len(sock.recv(4096))
        times.append(time.perf_counter() - began)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--trips", type=int, default=500, help="in a block")
    options = parser.parse_args()
    keep_to(CORES[0])
    mine, theirs = multiprocessing.Pipe()
    other = multiprocessing.Process(target=answering, args=(theirs,), daemon=True)
    other.start()
    hub_port, bare_port = mine.recv()
    asking = Asking(hub_port)
    sock = socket.create_connection(("127.0.0.1", bare_port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = b"x" * len(Codec(MESSAGES).encode(BODY))
    order = random.Random(1)
    ratios, hubs, bares = [], [], []
    asking.trips(options.trips)
    bare_trips(sock, body, options.trips)
    for _ in range(options.blocks):
        first = order.random() < 0.5
        a = statistics.median(asking.trips(options.trips)) if first else 0.0
        b = statistics.median(bare_trips(sock, body, options.trips))
        a = a if first else statistics.median(asking.trips(options.trips))
        ratios.append(a / b)
        hubs.append(a)
        bares.append(b)
    sock.close()
    asking.hub.stop()
    other.join(10)
    print(
        f"control message of {len(body)} bytes: {statistics.median(hubs) * 1e6:.0f} us there and "
        f"back, blocking echo {statistics.median(bares) * 1e6:.0f} us; ratio median "
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, "
        f"{options.blocks} paired blocks of {options.trips})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
