"""What every store must do, fakes included. A new kind is added by a function in KINDS."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

from edl.errors import StoreError
from edl.store.base import Store, Swap, Versioned, open_store
from edl.store.embedded import EmbeddedServer
from edl.store.memory import MemoryStore
from tests.contract.servers import Server
from tests.integration.lossy import TXN, LossyProxy

ABSENT = Versioned(None, 0)
PATIENCE_S = 10.0
# Long enough that a busy machine does not lose the lease between two calls.
SHORT_TTL_S = 0.4
ATTEMPTS = 5
JOBS = itertools.count(1)


@dataclass
class Kind:
    """Clients of one store, and how time is made to pass for it (nothing, where it is real)."""

    connect: Callable[[], Store]
    pass_time: Callable[[float], None]


@contextmanager
def memory(request: pytest.FixtureRequest) -> Iterator[Kind]:
    store = MemoryStore()
    yield Kind(connect=lambda: store, pass_time=store.advance)
    store.close()


@contextmanager
def by_url(url: str, job: str) -> Iterator[Kind]:
    clients: list[Store] = []

    def connect() -> Store:
        clients.append(open_store(url, job=job, secret=b"s3cret"))
        return clients[-1]

    yield Kind(connect=connect, pass_time=lambda seconds: None)
    for client in clients:
        client.close()


@contextmanager
def embedded(request: pytest.FixtureRequest) -> Iterator[Kind]:
    with (
        EmbeddedServer(job="contract", secret=b"s3cret") as server,
        by_url(server.url, "contract") as kind,
    ):
        yield kind


def etcd(request: pytest.FixtureRequest) -> AbstractContextManager[Kind]:
    server: Server = request.getfixturevalue("etcd_server")
    return by_url(server.url, f"contract-{next(JOBS)}")


@contextmanager
def etcd_that_loses_answers(request: pytest.FixtureRequest) -> Iterator[Kind]:
    """All but those to swaps, which no client may ask again by itself."""
    server: Server = request.getfixturevalue("etcd_server")
    number = next(JOBS)
    with (
        LossyProxy(server.port, seed=number, delay_s=0.01, spared=(TXN,)) as proxy,
        by_url(proxy.url, f"contract-{number}") as kind,
    ):
        yield kind


def zookeeper(request: pytest.FixtureRequest) -> AbstractContextManager[Kind]:
    server: Server = request.getfixturevalue("zookeeper_server")
    return by_url(f"{server.url}/a/prefix", f"contract-{next(JOBS)}")


KINDS: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Kind]]] = {
    "memory": memory,
    "embedded": embedded,
    "etcd": etcd,
    "etcd_that_loses_answers": etcd_that_loses_answers,
    "zookeeper": zookeeper,
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    with KINDS[request.param](request) as made:
        yield made


@pytest.fixture
def store(kind: Kind) -> Store:
    return kind.connect()


class Seen:
    """A notification that remembers, and lets a test wait for what it expects."""

    def __init__(self) -> None:
        self.all: list[Versioned] = []
        self._changed = threading.Condition()

    def __call__(self, news: Versioned) -> None:
        with self._changed:
            self.all.append(news)
            self._changed.notify_all()

    def wait_last(self, value: bytes | None) -> Versioned:
        with self._changed:
            arrived = self._changed.wait_for(
                lambda: bool(self.all) and self.all[-1].value == value, PATIENCE_S
            )
            assert arrived, f"waited for {value!r}, saw {self.all}"
            return self.all[-1]


def put(store: Store, key: str, value: bytes | None, lease: str | None = None) -> Versioned:
    """Write whatever stands there."""
    while True:
        expected = store.get(key).revision
        swap = store.compare_and_swap(key, expected=expected, value=value, lease=lease)
        if swap.done:
            return swap.current


def put_for_a_moment(store: Store, key: str, value: bytes, lease: str) -> None:
    """Under a short lease, which a machine that stands still may lose between the two calls."""
    for attempt in range(ATTEMPTS):
        store.keep_alive(lease, SHORT_TTL_S)
        try:
            put(store, key, value, lease=lease)
            return
        except StoreError as error:
            if "expired" not in str(error) or attempt == ATTEMPTS - 1:
                raise


def test_an_absent_key_has_no_value_and_revision_zero(store: Store) -> None:
    assert store.get("leader") == ABSENT


def test_what_was_swapped_in_is_there_for_every_client(kind: Kind) -> None:
    one, two = kind.connect(), kind.connect()
    swap = one.compare_and_swap("leader", expected=0, value=b"\x00binary\xff")
    assert swap.done
    assert swap.current.revision > 0
    assert one.get("leader") == two.get("leader") == swap.current
    assert swap.current.value == b"\x00binary\xff"


def test_an_empty_value_is_not_an_absent_one(store: Store) -> None:
    swap = store.compare_and_swap("empty", expected=0, value=b"")
    assert store.get("empty") == swap.current
    assert swap.current.value == b""


def test_a_swap_on_the_wrong_revision_changes_nothing_and_shows_what_stands(store: Store) -> None:
    first = put(store, "a", b"1")
    refused = Swap(False, first)
    assert store.compare_and_swap("a", expected=0, value=b"2") == refused
    assert store.compare_and_swap("a", expected=first.revision + 1, value=b"2") == refused
    assert store.compare_and_swap("a", expected=first.revision + 1, value=None) == refused
    assert store.get("a") == first
    assert store.compare_and_swap("b", expected=first.revision, value=b"2") == Swap(False, ABSENT)


def test_revisions_grow_through_all_keys(store: Store) -> None:
    revisions = [put(store, key, b"x").revision for key in ("a", "b", "a", "c", "b")]
    assert revisions == sorted(set(revisions))


def test_a_key_made_again_never_has_an_old_revision(store: Store) -> None:
    first = put(store, "a", b"same")
    assert store.compare_and_swap("a", expected=first.revision, value=None) == Swap(True, ABSENT)
    assert store.get("a") == ABSENT
    second = store.compare_and_swap("a", expected=0, value=b"same")
    assert second.done
    assert second.current.revision > first.revision
    assert not store.compare_and_swap("a", expected=first.revision, value=b"late").done


def test_of_many_who_swap_at_once_exactly_one_wins(kind: Kind) -> None:
    clients = [kind.connect() for _ in range(4)]
    for round_number in range(5):
        start = threading.Barrier(8)

        def race(
            number: int, key: str = f"leader-{round_number}", start: threading.Barrier = start
        ) -> Swap:
            start.wait(PATIENCE_S)
            return clients[number % 4].compare_and_swap(key, expected=0, value=b"%d" % number)

        with ThreadPoolExecutor(8) as pool:
            swaps = list(pool.map(race, range(8)))
        [winner] = [number for number, swap in enumerate(swaps) if swap.done]
        # The losers were all shown the winner.
        assert {swap.current for swap in swaps} == {swaps[winner].current}
        assert swaps[winner].current.value == b"%d" % winner


def test_a_counter_raised_by_many_loses_nothing(kind: Kind) -> None:
    def raise_by(store: Store, times: int) -> None:
        while times:
            now = store.get("counter")
            value = b"%d" % (int(now.value or b"0") + 1)
            times -= store.compare_and_swap("counter", expected=now.revision, value=value).done

    clients = [kind.connect() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda store: raise_by(store, 25), clients))
    assert clients[0].get("counter").value == b"100"


def test_a_lease_that_is_not_renewed_takes_its_keys_along(kind: Kind) -> None:
    store, seen, other = kind.connect(), Seen(), Seen()
    put_for_a_moment(store, "leader", b"me", lease="me")
    put(store, "generation", b"7")
    kind.connect().watch("leader", seen)
    store.watch("generation", other)
    kind.pass_time(SHORT_TTL_S)
    assert seen.wait_last(None) == ABSENT
    assert store.get("leader") == ABSENT
    assert other.wait_last(b"7") == store.get("generation")


def test_a_lease_that_is_gone_cannot_be_used(kind: Kind) -> None:
    store, seen = kind.connect(), Seen()
    with pytest.raises(StoreError, match="never"):
        store.compare_and_swap("a", expected=0, value=b"x", lease="never")
    put_for_a_moment(store, "leader", b"me", lease="me")
    store.watch("leader", seen)
    kind.pass_time(SHORT_TTL_S)
    seen.wait_last(None)
    with pytest.raises(StoreError, match="me"):
        store.compare_and_swap("leader", expected=0, value=b"me", lease="me")
    assert store.get("leader") == ABSENT
    store.keep_alive("me", 30.0)
    assert store.compare_and_swap("leader", expected=0, value=b"me", lease="me").done


def test_a_renewed_lease_outlives_its_first_term(kind: Kind) -> None:
    store, seen = kind.connect(), Seen()
    for _ in range(ATTEMPTS):
        put_for_a_moment(store, "mine", b"x", lease="mine")
        store.keep_alive("mine", 600.0)
        if store.get("mine") != ABSENT:  # as it is if the first term was over by then
            break
    # Its twin of the first term shows when that term is over.
    put_for_a_moment(store, "twin", b"x", lease="twin")
    store.watch("twin", seen)
    kind.pass_time(SHORT_TTL_S)
    seen.wait_last(None)
    assert store.get("mine").value == b"x"


def test_a_revoked_lease_takes_its_keys_at_once(kind: Kind) -> None:
    store, seen = kind.connect(), Seen()
    store.keep_alive("worker-1", 600.0)
    put(store, "leader", b"worker-1", lease="worker-1")
    store.watch("leader", seen)
    seen.wait_last(b"worker-1")
    # The launcher that reaped a worker is another client.
    kind.connect().keep_alive("worker-1", 0)
    assert store.get("leader") == ABSENT
    seen.wait_last(None)
    with pytest.raises(StoreError):
        store.compare_and_swap("leader", expected=0, value=b"x", lease="worker-1")


def test_to_revoke_an_unknown_lease_is_harmless(store: Store) -> None:
    put(store, "a", b"1")
    store.keep_alive("nobody", 0)
    assert store.get("a").value == b"1"


def test_a_key_written_without_the_lease_outlives_it(store: Store) -> None:
    store.keep_alive("me", 600.0)
    put(store, "a", b"1", lease="me")
    kept = put(store, "a", b"2")
    store.keep_alive("me", 0)
    assert store.get("a") == kept


def test_a_watch_tells_the_present_value_at_once(store: Store) -> None:
    absent, present = Seen(), Seen()
    store.watch("a", absent)
    assert absent.wait_last(None) == ABSENT
    now = put(store, "a", b"x")
    store.watch("a", present)
    assert present.wait_last(b"x") == now
    assert absent.wait_last(b"x") == now


def test_a_watch_tells_of_other_clients_changes_in_order(kind: Kind) -> None:
    store, seen = kind.connect(), Seen()
    store.watch("a", seen)
    seen.wait_last(None)
    clients = [kind.connect() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda client: [put(client, "a", b"x") for _ in range(20)], clients))
    put(store, "a", b"last")
    last = seen.wait_last(b"last")
    revisions = [news.revision for news in seen.all]
    assert revisions == sorted(set(revisions))
    assert revisions[-1] == last.revision


def test_a_watch_tells_of_delete_and_of_the_key_made_again(store: Store) -> None:
    seen = Seen()
    store.watch("a", seen)
    first = put(store, "a", b"1")
    seen.wait_last(b"1")
    put(store, "a", None)
    seen.wait_last(None)
    put(store, "a", b"2")
    assert seen.wait_last(b"2").revision > first.revision


def test_a_watch_is_for_one_key_only(store: Store) -> None:
    seen = Seen()
    store.watch("a", seen)
    put(store, "ab", b"x")
    put(store, "a", b"y")
    seen.wait_last(b"y")
    assert b"x" not in [news.value for news in seen.all]


def test_a_cancelled_watch_tells_nothing_more(store: Store) -> None:
    cancelled, other = Seen(), Seen()
    watch = store.watch("a", cancelled)
    cancelled.wait_last(None)
    watch.cancel()
    watch.cancel()
    store.watch("a", other)
    put(store, "a", b"x")
    other.wait_last(b"x")
    assert cancelled.all == [ABSENT]


def test_a_notification_may_call_the_store(store: Store) -> None:
    done = Seen()

    def follow(news: Versioned) -> None:
        if news.value is not None:
            store.compare_and_swap("follower", expected=0, value=news.value)

    store.watch("follower", done)
    store.watch("leader", follow)
    put(store, "leader", b"x")
    done.wait_last(b"x")


def test_a_notification_that_fails_does_not_harm_the_next(store: Store) -> None:
    seen = Seen()

    def fail(news: Versioned) -> None:
        seen(news)
        raise RuntimeError("a fault of the one who watches")

    store.watch("a", fail)
    put(store, "a", b"x")
    seen.wait_last(b"x")
    put(store, "a", b"y")
    seen.wait_last(b"y")
    assert store.get("a").value == b"y"


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.get("a")
