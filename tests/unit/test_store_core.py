"""The store's rules, and the embedded service above them, with time as an argument."""

from __future__ import annotations

import pytest

from edl.errors import StoreError
from edl.store.base import Swap, Versioned
from edl.store.memory import MemoryStore, StoreCore
from edl.store.service import (
    EmbeddedService,
    StoreAnswer,
    StoreChanged,
    StoreGet,
    StoreKeepAlive,
    StoreSwap,
    StoreUnwatch,
    StoreWatch,
)
from edl.wire.hello import Hello
from edl.wire.hub import Peer

ABSENT = Versioned(None, 0)


def test_revisions_count_through_all_keys() -> None:
    core = StoreCore()
    assert core.compare_and_swap("a", expected=0, value=b"1") == Swap(True, Versioned(b"1", 1))
    assert core.compare_and_swap("b", expected=0, value=b"2") == Swap(True, Versioned(b"2", 2))
    assert core.compare_and_swap("a", expected=1, value=None) == Swap(True, ABSENT)
    assert core.compare_and_swap("a", expected=0, value=b"3") == Swap(True, Versioned(b"3", 4))


def test_a_lease_ends_at_its_deadline_and_takes_its_keys() -> None:
    core = StoreCore()
    assert core.keep_alive("me", 10.0, now=0.0) == []
    for key in ("b", "a"):
        core.compare_and_swap(key, expected=0, value=b"x", lease="me")
    core.compare_and_swap("c", expected=0, value=b"x")
    assert core.expire(9.9) == []
    assert core.expire(10.0) == ["a", "b"]
    assert core.get("a") == ABSENT
    assert core.get("c").value == b"x"
    with pytest.raises(StoreError, match="me"):
        core.compare_and_swap("a", expected=0, value=b"x", lease="me")


def test_a_renewed_lease_lives_on() -> None:
    core = StoreCore()
    core.keep_alive("me", 10.0, now=0.0)
    core.compare_and_swap("a", expected=0, value=b"x", lease="me")
    core.keep_alive("me", 10.0, now=9.0)
    assert core.expire(18.9) == []
    assert core.expire(19.0) == ["a"]


def test_the_last_write_decides_which_lease_holds_a_key() -> None:
    core = StoreCore()
    core.keep_alive("old", 1.0, now=0.0)
    core.keep_alive("new", 5.0, now=0.0)
    first = core.compare_and_swap("a", expected=0, value=b"1", lease="old")
    second = core.compare_and_swap("a", expected=first.current.revision, value=b"2", lease="new")
    assert core.expire(1.0) == []
    third = core.compare_and_swap("a", expected=second.current.revision, value=b"3")
    assert third.done
    assert core.expire(5.0) == []
    assert core.get("a").value == b"3"


def test_a_server_that_slept_renews_all() -> None:
    core = StoreCore()
    core.keep_alive("me", 1.0, now=0.0)
    core.renew_all(100.0)
    assert core.expire(100.9) == []
    core.compare_and_swap("a", expected=0, value=b"x", lease="me")
    assert core.expire(101.0) == ["a"]


@pytest.mark.parametrize("ttl_s", [-1.0, float("nan"), float("inf")])
def test_a_senseless_time_to_live_is_refused(ttl_s: float) -> None:
    with pytest.raises(StoreError, match="ttl_s"):
        StoreCore().keep_alive("me", ttl_s, now=0.0)


def test_the_memory_store_takes_a_clock() -> None:
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    store.keep_alive("me", 1.0)
    store.compare_and_swap("a", expected=0, value=b"x", lease="me")
    now[0] = 1.0
    assert store.get("a") == ABSENT


class World:
    """A service with a clock that is set by hand and a hub that only takes notes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[tuple[Peer, object]] = []
        self.service = EmbeddedService(
            lambda peer, message: self.sent.append((peer, message)),
            tick_s=0.05,
            clock=lambda: self.now,
            first_revision=1,
        )

    def tick(self, now: float) -> None:
        self.now = now
        self.service.on_tick()

    def said(self, peer: Peer, message: object) -> list[tuple[Peer, object]]:
        self.sent.clear()
        assert self.service.handles(message)
        self.service.on_message(peer, message)
        return list(self.sent)


def a_peer(name: str) -> Peer:
    hello = Hello("listen", job="j", secret=b"s", nonce=bytes(32))
    return Peer(None, name=name, tag=None, inbound=True, hello=hello, max_frame=100)


def answer(number: int, *, value: bytes | None = None, revision: int = 0) -> StoreAnswer:
    return StoreAnswer(request_id=number, done=True, value=value, revision=revision, error=None)


def test_the_service_answers_and_tells_those_who_watch() -> None:
    world, one, two = World(), a_peer("one"), a_peer("two")
    assert world.said(two, StoreWatch(request_id=7, key="a")) == [(two, answer(7))]
    swap = StoreSwap(request_id=1, key="a", expected=0, value=b"x", lease=None)
    assert world.said(one, swap) == [
        (one, answer(1, value=b"x", revision=1)),
        (two, StoreChanged(request_id=7, value=b"x", revision=1)),
    ]
    assert world.said(two, StoreUnwatch(request_id=7)) == []
    again = StoreSwap(request_id=2, key="a", expected=1, value=b"y", lease=None)
    assert world.said(one, again) == [(one, answer(2, value=b"y", revision=2))]


def test_one_who_left_is_told_nothing() -> None:
    world, one, two = World(), a_peer("one"), a_peer("two")
    world.said(two, StoreWatch(request_id=7, key="a"))
    world.service.on_closed(two)
    swap = StoreSwap(request_id=1, key="a", expected=0, value=b"x", lease=None)
    assert world.said(one, swap) == [(one, answer(1, value=b"x", revision=1))]


def test_a_request_that_cannot_be_done_is_answered_with_the_reason() -> None:
    world, one = World(), a_peer("one")
    swap = StoreSwap(request_id=1, key="a", expected=0, value=b"x", lease="gone")
    [(_, refusal)] = world.said(one, swap)
    assert isinstance(refusal, StoreAnswer)
    assert not refusal.done
    assert "gone" in (refusal.error or "")


def hold(world: World, peer: Peer) -> None:
    world.said(peer, StoreKeepAlive(request_id=1, lease="me", ttl_s=3.0))
    world.said(peer, StoreSwap(request_id=2, key="a", expected=0, value=b"x", lease="me"))
    world.said(peer, StoreWatch(request_id=3, key="a"))
    world.sent.clear()


def test_a_lease_ends_by_ticks() -> None:
    world, one = World(), a_peer("one")
    hold(world, one)
    for now in (1.0, 2.0, 2.9):
        world.tick(now)
    assert world.sent == []
    world.tick(3.0)
    assert world.sent == [(one, StoreChanged(request_id=3, value=None, revision=0))]


def test_a_service_whose_tick_came_late_renews_all_leases() -> None:
    world, one = World(), a_peer("one")
    hold(world, one)
    world.tick(3600.0)
    assert world.sent == []
    assert world.said(one, StoreGet(request_id=4, key="a")) == [
        (one, answer(4, value=b"x", revision=1))
    ]
    world.sent.clear()
    for now in (3601.0, 3602.0, 3603.0):
        world.tick(now)
    assert world.sent == [(one, StoreChanged(request_id=3, value=None, revision=0))]


def test_a_restarted_service_never_gives_an_old_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    swap = StoreSwap(request_id=1, key="a", expected=0, value=b"x", lease=None)
    revisions: list[int] = []

    def note(peer: Peer, message: object) -> None:
        assert isinstance(message, StoreAnswer)
        revisions.append(message.revision)

    for seconds in (1_700_000_000, 1_700_000_001):
        monkeypatch.setattr("time.time_ns", lambda now=seconds: now * 10**9)
        EmbeddedService(note).on_message(a_peer("one"), swap)
    assert revisions[0] + 100_000 < revisions[1]
