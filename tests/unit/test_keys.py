"""The fence of a run: its generation is deleted before another run may begin."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from edl.launch.keys import Keys
from edl.protocol.conductor import GENERATION_KEY
from edl.protocol.leader import STATE_KEY
from edl.store.base import Store, Versioned, open_store
from edl.store.embedded import EmbeddedServer
from edl.store.url import with_run
from edl.types import Address

JOB, SECRET, RUN = "fenced", b"s" * 32, "r1"
PATIENCE_S = 30.0


class Keyring:
    """The launcher's keys and a member's view of the same run, in a real embedded store."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.news: list[tuple[str, Versioned]] = []
        self._changed = threading.Condition()
        url = f"edl://{server.address}"
        self.keys = Keys(
            url=url,
            job=JOB,
            secret=SECRET,
            launcher=Address("127.0.0.1", 1),
            on_key=self._on_key,
        )
        self.store: Store = open_store(with_run(url, RUN), job=JOB, secret=SECRET)
        self.keys.begin(RUN)

    def _on_key(self, run: str, key: str, news: Versioned) -> None:
        assert run == RUN
        with self._changed:
            self.news.append((key, news))
            self._changed.notify_all()

    def hears(self, key: str, value: bytes, *, times: int = 1) -> None:
        def enough() -> bool:
            return sum(k == key and news.value == value for k, news in self.news) >= times

        with self._changed:
            assert self._changed.wait_for(enough, PATIENCE_S), self.news

    def write(self, key: str, value: bytes) -> int:
        current = self.store.get(key)
        swap = self.store.compare_and_swap(key, expected=current.revision, value=value)
        assert swap.done
        self.hears(key, value)
        return swap.current.revision


@pytest.fixture
def keyring() -> Iterator[Keyring]:
    with EmbeddedServer(job=JOB, secret=SECRET) as server:
        made = Keyring(server)
        yield made
        made.keys.close()
        made.store.close()


def test_fence_deletes_the_generation_so_its_members_cannot_record_another(
    keyring: Keyring,
) -> None:
    revision = keyring.write(GENERATION_KEY, b"g1")
    fenced = threading.Event()
    keyring.keys.fence(RUN, revision, fenced.set)
    assert fenced.wait(PATIENCE_S)
    assert keyring.store.get(GENERATION_KEY).value is None
    late = keyring.store.compare_and_swap(GENERATION_KEY, expected=revision, value=b"g2")
    assert not late.done


def test_fence_reports_a_newer_generation_instead_of_deleting_it(keyring: Keyring) -> None:
    known = keyring.write(GENERATION_KEY, b"g1")
    keyring.write(GENERATION_KEY, b"g2")
    fenced = threading.Event()
    keyring.keys.fence(RUN, known, fenced.set)
    keyring.hears(GENERATION_KEY, b"g2", times=2)
    assert not fenced.is_set()
    assert keyring.store.get(GENERATION_KEY).value == b"g2"


def test_fence_reports_the_end_that_the_job_recorded(keyring: Keyring) -> None:
    revision = keyring.write(GENERATION_KEY, b"g1")
    keyring.write(STATE_KEY, b"finished")
    fenced = threading.Event()
    keyring.keys.fence(RUN, revision, fenced.set)
    keyring.hears(STATE_KEY, b"finished", times=2)
    assert not fenced.is_set()
    assert keyring.store.get(GENERATION_KEY).value == b"g1"


def test_run_that_did_not_end_is_fenced_when_its_keys_are_cleared(keyring: Keyring) -> None:
    keyring.write(GENERATION_KEY, b"g1")
    keyring.keys.close()
    assert keyring.store.get(GENERATION_KEY).value is None


def test_run_whose_keys_were_never_opened_needs_no_fence(keyring: Keyring) -> None:
    fenced = threading.Event()
    keyring.keys.fence("another", 0, fenced.set)
    assert fenced.wait(PATIENCE_S)
