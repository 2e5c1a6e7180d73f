"""What does it cost the leader to bring the members of a new generation together?

    python bench/rendezvous.py [--sizes 16 64 256 1000] [--relay] [--out FILE]

One process holds the leader: a real agent (hub, codec, machines) with the embedded store. A second
process holds all other members: one hub with a connection of its own for each member, and a real
`Node` behind each connection. They found a job together and go through the rendezvous of two
groups, one after the other, as `control` and `data` are built; only Gloo's own sockets are left
out: values have its layout, and a member's group stands as soon as it has everybody's.

Measured from the moment at which the last founder is ready until the job has begun everywhere: the
CPU time of the leader's control thread, the time that passed, and the bytes of all messages in both
directions. `--relay` sends each value to each other member in a message of its own instead, which
is how keys that no table collects travel. The result is written to bench/results/rendezvous.json
(rendezvous_relay.json); the exit status is 1 if a bar is missed at 1,000 members.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from edl.config import Settings
from edl.protocol import effects as fx
from edl.protocol import events as ev
from edl.protocol.election import LEADER_KEY
from edl.protocol.messages import MESSAGES
from edl.protocol.node import Node
from edl.protocol.topology import Generation
from edl.runtime.agent import Agent
from edl.runtime.board import Board
from edl.runtime.descriptors import raise_descriptor_limit
from edl.runtime.framework import BuildOptions
from edl.runtime.identity import Identity
from edl.store.base import open_store
from edl.store.embedded import EmbeddedServer
from edl.types import Address, Gpu, JobHandle, Member, WorkerId
from edl.wire.codec import Codec
from edl.wire.hub import Hub, Peer

JOB = JobHandle("rendezvous-bench")
SECRET = b"r" * 32
GROUPS = ("control", "data")
HOST = "127.0.0.1"
PATIENCE_S = 600.0
RESULTS = Path(__file__).parent / "results"
# At 1,000 members, for both groups together.
BARS = {"leader_cpu_s": 3.0, "megabytes": 400.0}
SETTINGS = Settings(
    build_timeout_s=PATIENCE_S, silence_s=PATIENCE_S, lease_s=60.0, register_timeout_s=PATIENCE_S
)


def rank_value(rank: int, size: int) -> bytes:
    """What torch 2.13's Gloo publishes for one rank: host name, address, and a number per pair."""
    name = socket.gethostname().encode()
    port = 32768 + rank * 7 % 28000
    # Gloo copies a sockaddr_storage of 128 bytes, whose unused end has leftovers of its stack.
    used = struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(HOST)
    leftovers = struct.pack("<QqQQ", 0x42844A72D14 * (rank + 1), -128, 11, 0x7FE97E17DB62)
    address = used + bytes(128 - len(used) - len(leftovers)) + leftovers + struct.pack("<q", -1)
    pairs = struct.pack(f"<{size}Q", *range(size))
    return b"".join(
        (struct.pack("<Q", len(name)), name, struct.pack("<Q", len(address)), address, pairs)
    )


class CountingCodec(Codec):
    """Counts the payload bytes of both directions, by message class."""

    def __init__(self) -> None:
        super().__init__(MESSAGES)
        self.bytes: dict[str, int] = {}
        self.count: dict[str, int] = {}

    def encode(self, message: object) -> bytes:
        payload = super().encode(message)
        self._note(type(message).__name__, len(payload))
        return payload

    def decode(self, payload: bytes | memoryview) -> object:
        message = super().decode(payload)
        self._note(type(message).__name__, len(payload))
        return message

    def _note(self, name: str, size: int) -> None:
        self.bytes[name] = self.bytes.get(name, 0) + size
        self.count[name] = self.count.get(name, 0) + 1


class Follower:
    """One member of the second process: a real node behind a connection of its own."""

    def __init__(self, hub: Hub, number: int, founders: int, *, relay: bool) -> None:
        self._hub = hub
        self._relay = relay
        self._peer: Peer | None = None
        self._links: dict[int, Peer] = {}
        self._generation: Generation | None = None
        self._group = 0
        self._keys: set[str] = set()
        self.begun = False
        self.me = WorkerId(f"w{number}")
        self.node = Node(
            me=Member(
                worker=self.me,
                address=Address(HOST, 1 + number),
                host="localhost",
                slot=Gpu("localhost", number),
                pid=number,
            ),
            request_id="",
            founders=founders,
            settings=SETTINGS,
        )

    def step(self, event: ev.Event) -> None:
        for effect in self.node.step(event, time.monotonic()):
            self._perform(effect)

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Dial(peer=number, address=address):
                self._links[number] = self._hub.connect(address, tag=(self, number))
            case fx.Send(peer=number, message=message):
                self._hub.send(self._links[number], message)
            case fx.BuildGroup(generation=generation):
                self._generation = generation
                self._publish()
            case fx.OfferKey(key=key):
                self._keys.add(key)
                self._advance()
            case fx.Begin():
                self.begun = True
            case fx.Dismiss(why=why):
                raise SystemExit(f"{self.me} was dismissed: {why}")
            case _ if type(effect).__name__ == "OfferTable":
                self._keys.update(key for key, _, _ in effect.entries)  # type: ignore[union-attr]
                self._advance()

    def _publish(self) -> None:
        assert self._generation is not None
        rank, size = self._generation.rank(self.me), self._generation.size
        group = GROUPS[self._group]
        key = f"{group}/0/{rank}"
        value = rank_value(rank, size)
        self._keys.add(key)
        if self._relay:
            self.step(ev.KeyMade(generation=self._generation.number, key=key, value=value))
        else:
            self.step(entry_made(self._generation.number, group, rank, size, key, value))

    def _advance(self) -> None:
        assert self._generation is not None
        if len(self._keys) < self._generation.size * (self._group + 1):
            return
        self._group += 1
        if self._group < len(GROUPS):
            self._publish()
        else:
            self.step(ev.GroupStands(number=self._generation.number, build_s=0.0))


def entry_made(number: int, group: str, rank: int, size: int, key: str, value: bytes) -> ev.Event:
    from edl.collective.rank_value import split

    common, parts = split(value, size)
    return ev.EntryMade(
        generation=number, group=group, rank=rank, size=size, key=key, common=common, parts=parts
    )


def follow(line: Connection, founders: int, leader: bytes, relay: bool) -> None:
    """The second process: all members but the leader."""
    raise_descriptor_limit()
    codec = CountingCodec()

    def on_open(peer: Peer) -> None:
        follower, number = peer.tag
        follower.step(ev.PeerOpened(peer=number))

    def on_message(peer: Peer, message: object) -> None:
        follower, number = peer.tag
        follower.step(ev.Heard(peer=number, message=message))

    def on_closed(peer: Peer, why: str) -> None:
        if not ended.is_set():
            failures.append(f"a member lost its leader: {why}")

    ended = threading.Event()
    failures: list[str] = []
    hub = Hub(
        name="members",
        job=JOB,
        secret=SECRET,
        codec=codec,
        on_message=on_message,
        on_open=on_open,
        on_closed=on_closed,
        on_error=lambda error: failures.append(repr(error)),
        hello_timeout_s=60.0,
    )
    followers = [Follower(hub, number, founders, relay=relay) for number in range(1, founders)]
    hub.start()
    for one in followers:
        seen = ev.LeaderSeen(value=leader, revision=1)
        hub.post(lambda one=one, seen=seen: one.step(seen))  # type: ignore[misc]
        hub.post(lambda one=one: one.step(ev.ContextReady(context_s=0.0)))  # type: ignore[misc]
    line.recv()
    codec.bytes, codec.count = {}, {}
    line.send("counting")
    until = time.monotonic() + PATIENCE_S
    while not all(one.begun for one in followers):
        if failures or time.monotonic() > until:
            line.send(failures[:3] or ["not begun in time"])
            return
        time.sleep(0.02)
    line.send({"bytes": codec.bytes, "count": codec.count})
    line.recv()
    ended.set()
    hub.stop(0.0)


def build_with(relay: bool) -> Callable[..., Any]:
    """The leader's own end of the two groups: torch's store, asked as Gloo asks it."""
    from edl.collective.gloo import _BoardStore

    def build(generation: Generation, me: WorkerId, board: Board, options: BuildOptions) -> Any:
        rank, size, timeout_s = generation.rank(me), generation.size, options.timeout_s
        for group in GROUPS:
            if relay:
                board.pin(f"{group}/0/{rank}", rank_value(rank, size))
                board.wait([f"{group}/0/{other}" for other in range(size)], timeout_s)
                continue
            store = _BoardStore(board, timeout_s)
            store.enter(group, rank, size)
            store.set(f"{group}/0/{rank}", rank_value(rank, size))
            for other in range(size):
                store.wait([f"{group}/0/{other}"])
                value = store.get(f"{group}/0/{other}")
                mine = slice(len(value) - 8 * (size - rank), len(value) - 8 * (size - rank - 1))
                assert value[mine] == rank_value(other, size)[mine]
        return object()

    return build


def leader_identity(url: str, founders: int) -> Identity:
    return Identity(
        job=JOB,
        worker=WorkerId("w0"),
        slot=Gpu("localhost", 0),
        bind=HOST,
        store=url,
        secret=SECRET,
        request_id="",
        founders=founders,
        spawned_at=0.0,
        settings=SETTINGS,
    )


def measure(founders: int, *, relay: bool) -> dict[str, Any]:
    server = EmbeddedServer(job=JOB, secret=SECRET)
    server.start()
    url = f"edl://{server.address}"
    agent = Agent(leader_identity(url, founders), build_with(relay))
    agent.start()
    wait_for(lambda: agent.leads)
    store = open_store(url, job=JOB, secret=SECRET)
    leader = store.get(LEADER_KEY).value
    store.close()
    here, there = multiprocessing.get_context("spawn").Pipe()
    members = multiprocessing.get_context("spawn").Process(
        target=follow, args=(there, founders, leader, relay)
    )
    members.start()

    def ready() -> int:
        assert agent.node.leader is not None
        return len(agent.node.leader.founding._ready)

    wait_for(lambda: ready() == founders - 1)
    here.send("count")
    here.recv()
    began, cpu = time.monotonic(), thread_time(agent)
    agent.post(ev.ContextReady(context_s=0.0))
    wait_for(lambda: agent.begun is not None, step_s=0.005)
    found = here.recv()
    cpu, passed = thread_time(agent) - cpu, time.monotonic() - began
    if not isinstance(found, dict):
        raise SystemExit(f"the members failed: {found}")
    here.send("end")
    members.join()
    agent._courier.stop(revoke=True, timeout_s=5.0)
    agent._hub.stop(0.0)
    agent._store.close()
    server.stop()
    keys = {name: size for name, size in found["bytes"].items() if name.startswith("Rendezvous")}
    return {
        "members": founders,
        "way": "relay" if relay else "tables",
        "leader_cpu_s": round(cpu, 3),
        "passed_s": round(passed, 3),
        "megabytes": round(sum(found["bytes"].values()) / 1e6, 2),
        "rendezvous_megabytes": round(sum(keys.values()) / 1e6, 2),
        "messages": sum(found["count"].values()),
        "by_message": {
            name: {"count": found["count"][name], "bytes": size}
            for name, size in sorted(found["bytes"].items())
        },
    }


def thread_time(agent: Agent) -> float:
    """The CPU seconds that the agent's thread has used."""
    answer: list[float] = []
    told = threading.Event()

    def look() -> None:
        answer.append(time.thread_time())
        told.set()

    agent._hub.post(look)
    if not told.wait(PATIENCE_S):
        raise SystemExit("the leader's thread does not answer")
    return answer[0]


def wait_for(what: Callable[[], bool], step_s: float = 0.02) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > until:
            raise SystemExit(f"not in {PATIENCE_S:g} s")
        time.sleep(step_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256, 1000])
    parser.add_argument("--relay", action="store_true", help="a message for each pair of members")
    parser.add_argument("--out", type=Path, help="write the result to this file instead")
    options = parser.parse_args()
    raise_descriptor_limit()
    rows = []
    for size in options.sizes:
        rows.append(measure(size, relay=options.relay))
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "by_message"}), flush=True)
    by = {row["members"]: row for row in rows}
    growth = {}
    if {256, 1000} <= by.keys():
        for what in ("leader_cpu_s", "megabytes"):
            growth[f"{what}_256_to_1000"] = round(by[1000][what] / by[256][what], 2)
        print(json.dumps(growth))
    missed = [what for what, bar in BARS.items() if 1000 in by and by[1000][what] > bar]
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "commit": commit(),
        "command": shlex.join(["python", "bench/rendezvous.py", *sys.argv[1:]]),
        "bars_at_1000": BARS,
        "missed": missed,
        "rows": rows,
        "growth": growth,
    }
    out = options.out or RESULTS / f"rendezvous{'_relay' if options.relay else ''}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if missed and not options.relay else 0


def commit() -> str:
    """The commit at hand, marked if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
