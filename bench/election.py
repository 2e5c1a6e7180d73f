"""How long until every one of 256 candidates knows who leads, beside a bare etcd transaction?

    python bench/election.py [--candidates 256] [--processes 4] [--rounds 20]

A real etcd on the loopback. Each candidate is what a worker has for its election: a store client of
its own (connection, watch, lease), the courier's thread and the election's machine; they are spread
over a few processes. A round begins when the leader's key is deleted, as when a leader is gone: all
are told by their watch, all contest the key, and a candidate's time ends when its machine knows the
new leader. The bare transaction is the same compare-and-swap, sent by as many threads of the same
processes at one moment over connections that stand open, with nothing around it but HTTP and JSON;
its time runs from the moment they are let go. Rounds of both are interleaved.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import multiprocessing
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from edl.protocol.effects import StoreSwap
from edl.protocol.election import LEADER_KEY, Election
from edl.protocol.events import Swapped
from edl.runtime.courier import Courier
from edl.store.base import Store, Versioned, open_store
from edl.types import Address, WorkerId

JOB = "election-bench"
PATIENCE_S = 60.0
LEASE_S = 300.0


class Candidate:
    """One worker's election, with its machine driven as the agent drives it."""

    def __init__(self, url: str, number: int) -> None:
        name = WorkerId(f"w{number}")
        self.election = Election(me=name, address=Address("127.0.0.1", 1 + number), may_lead=True)
        self.store: Store = open_store(url, job=JOB, secret=b"")
        self._courier = Courier(
            self.store, lease=f"{name}-lease", lease_s=LEASE_S, answer=self._on_swapped
        )
        self._lock = threading.Lock()
        self._knows = threading.Condition(self._lock)
        self.known_at: dict[int, float] = {}
        self.token = 0

    def start(self) -> None:
        self.store.keep_alive(f"{self.election.me}-lease", LEASE_S)
        self._courier.start()
        self.store.watch(LEADER_KEY, self._on_seen)

    def stop(self) -> None:
        self._courier.stop(revoke=True, timeout_s=5.0)
        self.store.close()

    def wait_known(self, above: int) -> tuple[int, float]:
        """The first leader whose token is above that one, and when it became known here."""
        with self._knows:
            if not self._knows.wait_for(lambda: self.token > above, PATIENCE_S):
                raise SystemExit(f"{self.election.me} knows no leader after {PATIENCE_S} s")
            found = self.token, self.known_at[self.token]
            # Losers often learn it from their watch before their own contest is answered; what is
            # still on its way must not slow the next round down.
            if not self._knows.wait_for(lambda: not self.election.contesting, PATIENCE_S):
                raise SystemExit(f"the contest of {self.election.me} was not answered")
            return found

    def _on_seen(self, seen: Versioned) -> None:
        with self._knows:
            at = self.election.saw(seen.value, seen.revision, leader_answers=False)
            self._note()
        if at is not None:
            self._courier.swap(
                StoreSwap(
                    purpose="leader",
                    key=LEADER_KEY,
                    expected=at,
                    value=self.election.value(),
                    leased=True,
                )
            )

    def _on_swapped(self, event: Swapped) -> None:
        with self._knows:
            self.election.swapped(done=event.done, value=event.value, revision=event.revision)
            self._note()
            self._knows.notify_all()

    def _note(self) -> None:
        known = self.election.known
        if known is not None and known.token > self.token:
            self.token = known.token
            self.known_at[known.token] = time.monotonic()
            self._knows.notify_all()


class Bare:
    """One connection and one prepared transaction a round."""

    def __init__(self, address: Address, number: int) -> None:
        self._number = number
        self._connection = http.client.HTTPConnection(
            address.host, address.port, timeout=PATIENCE_S
        )
        self._connection.connect()
        self._go = threading.Event()
        self._done = threading.Event()
        self._body = ""
        self.answered_at = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def prepare(self, round_number: int) -> None:
        key = base64.b64encode(f"/bare/{round_number}".encode()).decode()
        value = base64.b64encode(f"w{self._number}".encode()).decode()
        compare = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": "0"}
        self._body = json.dumps(
            {
                "compare": [compare],
                "success": [{"request_put": {"key": key, "value": value}}],
                "failure": [{"request_range": {"key": key}}],
            }
        )
        self._done.clear()

    def go(self) -> None:
        self._go.set()

    def wait(self) -> float:
        if not self._done.wait(PATIENCE_S):
            raise SystemExit("a bare transaction was not answered")
        return self.answered_at

    def _run(self) -> None:
        while True:
            self._go.wait()
            self._go.clear()
            self._connection.request(
                "POST", "/v3/kv/txn", self._body, {"Content-Type": "application/json"}
            )
            json.loads(self._connection.getresponse().read())
            self.answered_at = time.monotonic()
            self._done.set()


def crowd(pipe: Connection, url: str, numbers: list[int]) -> None:
    """One process with its share of the candidates; does what it is told over the pipe."""
    address = Address.parse(url.partition("://")[2])
    candidates = [Candidate(url, number) for number in numbers]
    bares = [Bare(address, number) for number in numbers]
    for each in candidates:
        each.start()
    token = max(each.wait_known(0)[0] for each in candidates)
    pipe.send(token)
    while True:
        what, argument = pipe.recv()
        if what == "prepare":
            for bare in bares:
                bare.prepare(argument)
            pipe.send(None)
        elif what == "bare":
            for bare in bares:
                bare.go()
            pipe.send([bare.wait() for bare in bares])
        elif what == "elected":
            pipe.send([each.wait_known(argument) for each in candidates])
        else:
            for each in candidates:
                each.stop()
            return


@contextmanager
def etcd() -> Iterator[str]:
    """A server with its data in a folder that goes with it."""
    binary = shutil.which("etcd")
    if binary is None:
        raise SystemExit("there is no etcd here; install it: apt-get install -y etcd-server")
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as sock:
            ports.append(sock.getsockname()[1])
    here, peers = (f"http://127.0.0.1:{port}" for port in ports)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [
                binary,
                f"--data-dir={folder}/data",
                f"--listen-client-urls={here}",
                f"--advertise-client-urls={here}",
                f"--listen-peer-urls={peers}",
                f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=default={peers}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield f"etcd://127.0.0.1:{ports[0]}"
        finally:
            process.terminate()
            process.wait(10)


class Figures:
    """Mean and maximum of each round, and over all."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.times: list[list[float]] = []

    @property
    def mean(self) -> float:
        return statistics.mean(time for each in self.times for time in each)

    def line(self) -> str:
        worst = [max(each) for each in self.times]
        return (
            f"{self.name:34} mean {self.mean * 1e3:6.1f} ms, last candidate "
            f"{statistics.mean(worst) * 1e3:6.1f} ms on average and "
            f"{max(worst) * 1e3:6.1f} ms at most"
        )


def ask(pipes: list[Connection], what: str, argument: int = 0) -> list[object]:
    for pipe in pipes:
        pipe.send((what, argument))
    return [pipe.recv() for pipe in pipes]


def bare_round(pipes: list[Connection], number: int) -> list[float]:
    ask(pipes, "prepare", number)
    began = time.monotonic()
    answers = ask(pipes, "bare")
    return [at - began for answer in answers for at in answer]  # type: ignore[attr-defined]


def elected_round(pipes: list[Connection], store: Store, token: int) -> tuple[int, list[float]]:
    began = time.monotonic()
    gone = store.compare_and_swap(LEADER_KEY, expected=token, value=None)
    if not gone.done:
        raise SystemExit(f"the leader's key changed by itself: {gone.current}")
    answers = ask(pipes, "elected", token)
    known = [each for answer in answers for each in answer]  # type: ignore[attr-defined]
    tokens = {each[0] for each in known}
    if len(tokens) != 1:
        raise SystemExit(f"candidates know different leaders: {sorted(tokens)}")
    return tokens.pop(), [at - began for _, at in known]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=256)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--etcd", default="", help="etcd://HOST:PORT of one that runs already")
    options = parser.parse_args()
    with etcd() as own:
        url = options.etcd or own
        store = open_store(url, job=JOB, secret=b"")
        store.get(LEADER_KEY)
        context = multiprocessing.get_context("spawn")
        pipes, processes = [], []
        began = time.monotonic()
        for first in range(options.processes):
            mine, theirs = context.Pipe()
            numbers = list(range(first, options.candidates, options.processes))
            process = context.Process(target=crowd, args=(theirs, url, numbers), daemon=True)
            process.start()
            pipes.append(mine)
            processes.append(process)
        token = max(pipe.recv() for pipe in pipes)
        print(f"{options.candidates} candidates in {options.processes} processes know their first "
              f"leader {time.monotonic() - began:.1f} s after the start")  # fmt: skip
        bare, elected = Figures("bare transaction"), Figures("election, from the key's deletion")
        order = random.Random(1)
        # One round of each before it counts.
        for number in range(options.rounds + 1):
            pair = ["bare", "elected"]
            order.shuffle(pair)
            for kind in pair:
                if kind == "bare":
                    times = bare_round(pipes, number)
                else:
                    token, times = elected_round(pipes, store, token)
                if number:
                    (bare if kind == "bare" else elected).times.append(times)
        for pipe in pipes:
            pipe.send(("stop", 0))
        for process in processes:
            process.join(30)
        store.close()
    print(bare.line())
    print(elected.line())
    ratio = elected.mean / bare.mean
    print(f"election / bare transaction, means: {ratio:.2f} (wanted: at most 3)")
    return 0 if ratio <= 3 else 1


if __name__ == "__main__":
    sys.exit(main())
