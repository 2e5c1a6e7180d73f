"""etcd and ZooKeeper when they are contended, go, come back, freeze, or were never there."""

from __future__ import annotations

import itertools
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edl.errors import StoreError, UsageError
from edl.store.base import Lasting, Store, Swap, Versioned, open_store
from edl.store.etcd import EtcdStore
from edl.store.url import StoreUrl, with_run
from edl.store.zookeeper import ZooKeeperStore
from tests.contract.servers import Etcd, Server, ZooKeeper, free_port

PATIENCE_S = 30.0
# A call's own time in tests of outages, and by when it must have ended.
SHORT_S, BOUND_S = 0.8, 10.0
ABSENT = Versioned(None, 0)
JOBS = itertools.count(1)
SERVERS: dict[str, type[Etcd] | type[ZooKeeper]] = {"etcd": Etcd, "zookeeper": ZooKeeper}

HOLDER = """
import sys, time
from edl.store.base import open_store
store = open_store(sys.argv[1], job=sys.argv[2], secret=b"")
store.keep_alive("holder", 3.0)
assert store.compare_and_swap("leader", expected=0, value=b"holder", lease="holder").done
print("holds", flush=True)
while True:
    time.sleep(0.5)
    store.keep_alive("holder", 3.0)
"""


@dataclass
class Outside:
    """A server of one kind, and clients of a job that is this test's alone."""

    server: Server
    job: str
    clients: list[Store] = field(default_factory=list)

    def connect(self, timeout_s: float = 5.0, url: str | None = None) -> Store:
        parsed = StoreUrl.parse(url or self.server.url)
        kind = ZooKeeperStore if parsed.scheme == "zookeeper" else EtcdStore
        self.clients.append(kind(parsed, job=self.job, timeout_s=timeout_s))
        return self.clients[-1]


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as made:
        yield made


@pytest.fixture
def outside(server: Server) -> Iterator[Outside]:
    made = Outside(server, f"outside-{next(JOBS)}")
    yield made
    for client in made.clients:
        client.close()


class Seen:
    """A notification that remembers, and lets a test wait for what it expects."""

    def __init__(self) -> None:
        self.all: list[Versioned] = []
        self._changed = threading.Condition()

    def __call__(self, news: Versioned) -> None:
        with self._changed:
            self.all.append(news)
            self._changed.notify_all()

    def wait_until(self, holds: Callable[[list[Versioned]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.all) and holds(self.all), PATIENCE_S), (
                self.all
            )


def eventually(ask: Callable[[], object]) -> None:
    """Until the store answers again; each try has a time of its own."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            ask()
            return
        except StoreError:
            if time.monotonic() > deadline:
                raise


def fails_in_time(ask: Callable[[], object]) -> str:
    began = time.monotonic()
    with pytest.raises(StoreError) as caught:
        ask()
    assert time.monotonic() - began < BOUND_S
    return str(caught.value)


def test_of_many_who_take_a_key_over_exactly_one_wins(outside: Outside) -> None:
    clients = [outside.connect() for _ in range(4)]
    for number, client in enumerate(clients):
        client.keep_alive(f"lease-{number}", 60.0)
    now = ABSENT
    for _ in range(12):
        start = threading.Barrier(16)

        def race(number: int, now: Versioned = now, start: threading.Barrier = start) -> Swap:
            start.wait(PATIENCE_S)
            # Some under a lease and some for ever, so that the node itself must be replaced.
            lease = None if number < 4 else f"lease-{number % 4}"
            return clients[number % 4].compare_and_swap(
                "leader", expected=now.revision, value=b"%d" % number, lease=lease
            )

        with ThreadPoolExecutor(16) as pool:
            swaps = list(pool.map(race, range(16)))
        [winner] = [number for number, swap in enumerate(swaps) if swap.done]
        assert {swap.current for swap in swaps} == {swaps[winner].current}
        assert swaps[winner].current.value == b"%d" % winner
        assert swaps[winner].current.revision > now.revision
        now = swaps[winner].current


def test_no_revision_is_ever_swapped_away_twice(outside: Outside) -> None:
    """Keys made, rewritten, deleted and lapsed under everybody's hands."""
    watcher, seen = outside.connect(), Seen()
    watcher.watch("a", seen)

    def churn(seed: int) -> list[tuple[int, Swap]]:
        rng, store, done = random.Random(seed), outside.connect(), []
        lease = f"lease-{seed}"
        store.keep_alive(lease, 60.0)
        for _ in range(60):
            value = None if rng.random() < 0.3 else b"%d" % rng.randrange(10**9)
            now = store.get("a")
            if rng.random() < 0.15:
                store.keep_alive(lease, 0)
                store.keep_alive(lease, 60.0)
            swap = store.compare_and_swap(
                "a", expected=now.revision, value=value, lease=rng.choice([None, lease])
            )
            if swap.done and (value is not None or now.revision):
                done.append((now.revision, swap))
        return done

    with ThreadPoolExecutor(4) as pool:
        swaps = [each for done in pool.map(churn, range(4)) for each in done]
    taken = [expected for expected, _ in swaps if expected]
    made = [swap.current.revision for _, swap in swaps if swap.current.value is not None]
    assert len(taken) == len(set(taken))
    assert len(made) == len(set(made))
    assert set(taken) <= set(made)
    last = watcher.get("a")
    seen.wait_until(lambda all: all[-1] == last)
    told = [news.revision for news in seen.all if news.value is not None]
    assert told == sorted(told)


def test_a_lease_given_another_time_keeps_the_new_one(outside: Outside) -> None:
    store, seen, shorter = outside.connect(), Seen(), Seen()
    store.keep_alive("longer", 1.0)
    kept = store.compare_and_swap("longer", expected=0, value=b"x", lease="longer").current
    store.keep_alive("longer", 600.0)
    store.keep_alive("shorter", 600.0)
    assert store.compare_and_swap("shorter", expected=0, value=b"x", lease="shorter").done
    store.watch("shorter", shorter)
    store.keep_alive("shorter", 0.5)
    # Its end shows that the longer one has outlived whatever was granted to it first.
    store.keep_alive("clock", 4.0)
    assert store.compare_and_swap("clock", expected=0, value=b"x", lease="clock").done
    store.watch("clock", seen)
    shorter.wait_until(lambda all: all[-1] == ABSENT)
    seen.wait_until(lambda all: all[-1] == ABSENT)
    assert store.get("longer") == kept


def test_what_a_killed_process_held_lapses(outside: Outside) -> None:
    store, seen = outside.connect(), Seen()
    command = [sys.executable, "-c", HOLDER, outside.server.url, outside.job]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"holds\n"
            store.watch("leader", seen)
            seen.wait_until(lambda all: all[-1].value == b"holder")
        finally:
            holder.kill()
    seen.wait_until(lambda all: all[-1] == ABSENT)
    assert store.compare_and_swap("leader", expected=0, value=b"next").done


def test_clients_leases_and_watches_outlive_a_restart_of_the_server(outside: Outside) -> None:
    store, other, seen = outside.connect(), outside.connect(), Seen()
    store.keep_alive("me", 40.0)
    leader = store.compare_and_swap("leader", expected=0, value=b"me", lease="me").current
    other.watch("leader", seen)
    seen.wait_until(lambda all: all == [leader])
    outside.server.kill()
    outside.server.start()
    # Told again without being asked, and unchanged.
    seen.wait_until(lambda all: len(all) > 1)
    assert set(seen.all) == {leader}
    eventually(lambda: store.keep_alive("me", 40.0))
    assert store.get("leader") == leader
    swap = store.compare_and_swap("leader", expected=leader.revision, value=b"2", lease="me")
    assert swap.done
    assert swap.current.revision > leader.revision
    seen.wait_until(lambda all: all[-1] == swap.current)
    store.keep_alive("me", 0)
    seen.wait_until(lambda all: all[-1] == ABSENT)


def test_a_server_that_goes_is_told_in_time_and_found_again(outside: Outside) -> None:
    store = outside.connect(SHORT_S)
    # The first connection may take longer than a short call.
    eventually(lambda: store.keep_alive("me", 60.0))
    outside.server.kill()
    try:
        swap = fails_in_time(lambda: store.compare_and_swap("a", expected=0, value=b"x"))
        assert "unreachable" in swap or "may or may not" in swap
        assert "unreachable" in fails_in_time(lambda: store.get("a"))
        fails_in_time(lambda: store.keep_alive("me", 60.0))
        fails_in_time(lambda: store.keep_alive("new", 60.0))
        fails_in_time(lambda: store.watch("a", lambda news: None))
    finally:
        outside.server.start()
    eventually(lambda: store.keep_alive("me", 60.0))
    # A lease may have a connection of its own, which is back before the other.
    eventually(lambda: store.get("a"))
    assert store.compare_and_swap("a", expected=0, value=b"x", lease="me").done


def test_a_frozen_server_is_told_in_time_and_found_again(outside: Outside) -> None:
    store = outside.connect(SHORT_S)
    eventually(lambda: store.get("a"))
    outside.server.freeze()
    try:
        fails_in_time(lambda: store.get("a"))
        fails_in_time(lambda: store.compare_and_swap("a", expected=0, value=b"x"))
    finally:
        outside.server.thaw()
    eventually(lambda: store.get("a"))


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_comes_late_is_found(kind: str, tmp_path: Path) -> None:
    late = SERVERS[kind](tmp_path)
    early = Outside(late, "late")
    store = early.connect(SHORT_S)
    assert "unreachable" in fails_in_time(lambda: store.get("a"))
    with pytest.raises(StoreError, match="unreachable"):
        store.watch("a", lambda news: None)
    with late:
        seen = Seen()
        eventually(lambda: store.watch("a", seen))
        swap = store.compare_and_swap("a", expected=0, value=b"x")
        seen.wait_until(lambda all: all[-1] == swap.current)
        store.close()


@pytest.mark.parametrize("kind", SERVERS)
def test_a_call_waiting_when_the_client_is_closed_ends(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"{kind}://127.0.0.1:{mute.getsockname()[1]}"
        parsed = StoreUrl.parse(url)
        store: Store = (
            EtcdStore(parsed, job="mute", timeout_s=600.0)
            if kind == "etcd"
            else ZooKeeperStore(parsed, job="mute", timeout_s=600.0)
        )
        errors: list[str] = []
        caller = threading.Thread(
            target=lambda: errors.append(fails_in_time(lambda: store.get("a")))
        )
        caller.start()
        with mute.accept()[0]:
            store.close()
            caller.join(PATIENCE_S)
        assert "closed" in errors[0]


def test_one_of_several_servers_is_enough(outside: Outside) -> None:
    scheme, _, address = outside.server.url.partition("://")
    for servers in (f"127.0.0.1:{free_port()},{address}", f"{address},127.0.0.1:{free_port()}"):
        store, seen = outside.connect(url=f"{scheme}://{servers}"), Seen()
        store.watch(servers, seen)
        swap = store.compare_and_swap(servers, expected=0, value=b"x")
        assert swap.done
        seen.wait_until(lambda all, swap=swap: all[-1] == swap.current)  # type: ignore[misc]


def test_jobs_and_prefixes_are_apart(outside: Outside) -> None:
    url = outside.server.url
    stores = [
        open_store(f"{url}{prefix}", job=outside.job + job, secret=b"")
        for prefix in ("", "/edl/more")
        for job in ("", "/leader", "-2")
    ]
    try:
        for number, store in enumerate(stores):
            for key in ("leader", "leader/x", "..", "", "%leases"):
                assert store.compare_and_swap(key, expected=0, value=b"%d" % number).done
            store.keep_alive("me", 60.0)
        stores[0].keep_alive("me", 0)
        for number, store in enumerate(stores):
            assert store.get("leader/x").value == b"%d" % number
            lease = store.compare_and_swap
            if number:
                assert lease("leased", expected=0, value=b"", lease="me").done
    finally:
        for store in stores:
            store.close()


def test_a_missing_client_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    for name in ("edl.store.zookeeper", "edl.store.znodes"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=r"pip install 'edl-elastic\[zookeeper\]'"):
        open_store("zookeeper://127.0.0.1:2181", job="a", secret=b"")


def test_runs_of_a_job_lie_apart_and_one_is_cleared_alone(outside: Outside) -> None:
    home = outside.connect()
    one, two = (outside.connect(url=with_run(outside.server.url, run)) for run in ("1", "2"))
    for number, store in enumerate((home, one, two)):
        assert store.compare_and_swap("leader", expected=0, value=b"%d" % number).done
    one.keep_alive("lease", 60.0)
    assert one.compare_and_swap("under", expected=0, value=b"x", lease="lease").done
    assert isinstance(one, Lasting)
    one.clear()
    assert one.get("leader") == one.get("under") == ABSENT
    assert [store.get("leader").value for store in (home, two)] == [b"0", b"2"]
    # Once more is harmless, and the keys can be made again.
    one.clear()
    assert one.compare_and_swap("leader", expected=0, value=b"new").done
