"""The courier's calls to the store: in order, and again until there is an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

from edl.errors import StoreError
from edl.protocol.effects import StoreSwap
from edl.protocol.events import Swapped
from edl.runtime.courier import Courier
from edl.store.base import Swap, Versioned, Watch


class Flaky:
    """A store that is away for the first calls."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.asked: list[str] = []

    def get(self, key: str) -> Versioned:
        return Versioned(value=None, revision=0)

    def compare_and_swap(
        self, key: str, *, expected: int, value: bytes | None, lease: str | None = None
    ) -> Swap:
        self.asked.append(key)
        if self.failures:
            self.failures -= 1
            raise StoreError("away")
        return Swap(done=True, current=Versioned(value=value, revision=7))

    def keep_alive(self, lease: str, ttl_s: float) -> None:
        return None

    def watch(self, key: str, notify: Callable[[Versioned], None]) -> Watch:
        raise AssertionError("a courier watches nothing")

    def close(self) -> None:
        return None


def swap(key: str) -> StoreSwap:
    return StoreSwap(purpose=key, key=key, expected=0, value=b"x", leased=False)


def test_a_call_that_failed_is_made_again_before_the_next() -> None:
    store, answers, done = Flaky(2), list[Swapped](), threading.Event()

    def answer(event: Swapped) -> None:
        answers.append(event)
        if len(answers) == 2:
            done.set()

    courier = Courier(store, lease="w0-1", lease_s=60.0, answer=answer)
    courier.swap(swap("generation"))
    courier.swap(swap("state"))
    courier.start()
    assert done.wait(10)
    courier.stop(revoke=False, timeout_s=5.0)
    assert store.asked == ["generation", "generation", "generation", "state"]
    assert [event.purpose for event in answers] == ["generation", "state"]


def test_a_store_that_stays_away_does_not_keep_the_courier() -> None:
    store = Flaky(1_000_000)
    courier = Courier(store, lease="w0-1", lease_s=60.0, answer=lambda event: None)
    courier.swap(swap("generation"))
    courier.start()
    courier.stop(revoke=False, timeout_s=0.0)
    courier._thread.join(10)
    assert not courier._thread.is_alive()
