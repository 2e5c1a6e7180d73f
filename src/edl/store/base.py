"""The coordination store: four verbs, and how to open one by its URL.

A job keeps two kinds of things here: who leads (a key under a lease) and which generation exists
(a key changed by compare-and-swap alone). That is little enough that etcd, ZooKeeper or our own
server can keep it, and one contract suite holds for all of them.

Revisions are one strictly increasing counter of the whole store, so a key that was deleted and made
again never shows an old revision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from edl.errors import UsageError
from edl.types import Address
from edl.wire.tls import Tls

__all__ = ["Lasting", "Store", "Swap", "Versioned", "Watch", "open_store"]

EMBEDDED_SCHEME = "edl"


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value and the revision that wrote it; `None, 0` where there is no value."""

    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class Swap:
    """Whether it was done, and what stands there now: the new value if done, else the rival's."""

    done: bool
    current: Versioned


class Watch(Protocol):
    def cancel(self) -> None:
        """No new notification begins after this; one may still be running in another thread."""


class Store(Protocol):
    """Every method may be called from any thread, also from within a notification."""

    def get(self, key: str) -> Versioned: ...

    def compare_and_swap(
        self, key: str, *, expected: int, value: bytes | None, lease: str | None = None
    ) -> Swap:
        """Write if the key's revision is `expected` (0: must be absent); a value None deletes.

        The key lives as long as `lease`, or for ever without one. StoreError if there is no such
        lease, for its owner must not act on what it believes to hold.
        """

    def keep_alive(self, lease: str, ttl_s: float) -> None:
        """Create or renew a lease; 0 revokes it at once. Its end deletes its keys."""

    def watch(self, key: str, notify: Callable[[Versioned], None]) -> Watch:
        """Call `notify`, from any thread, with the present value at once and after each change.

        After a reconnect it is called with the present value again. The order of revisions is
        kept; intermediate ones may be skipped.
        """

    def close(self) -> None: ...


@runtime_checkable
class Lasting(Protocol):
    """A store that outlives its jobs, so that what they leave must be cleared away."""

    def clear(self) -> None:
        """Remove all keys of this job, or of this run of it, when nobody uses them any more."""


def open_store(url: str, *, job: str, secret: bytes, tls: Tls | None = None) -> Store:
    """Secret and TLS are for the embedded store alone; the others have their own, by URL."""
    # Imported here, because each kind of store imports the values above.
    scheme, separator, rest = url.partition("://")
    if separator and scheme == EMBEDDED_SCHEME:
        from edl.store.embedded import EmbeddedStore

        place, _, query = rest.partition("?")
        run = query.removeprefix("run=") if query else ""
        address = Address.parse(place.rstrip("/"))
        return EmbeddedStore(address, job=job, secret=secret, run=run, tls=tls)
    from edl.redaction import redact_url
    from edl.store.url import StoreUrl

    if separator and scheme in {"etcd", "etcds"}:
        from edl.store.etcd import EtcdStore

        options = frozenset({"ca", "cert", "key"} if scheme == "etcds" else ())
        return EtcdStore(StoreUrl.parse(url, login=True, options=options), job=job)
    if separator and scheme == "zookeeper":
        parsed = StoreUrl.parse(url)
        try:
            from edl.store.zookeeper import ZooKeeperStore
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "kazoo":
                raise
            raise UsageError(
                f"store {parsed} needs a client that is not installed; install it with: "
                "pip install 'edl-elastic[zookeeper]'"
            ) from error

        return ZooKeeperStore(parsed, job=job)
    raise UsageError(
        f"store {redact_url(url)!r} is of no known kind; known: "
        f"{EMBEDDED_SCHEME}://HOST:PORT (the store that `edl run` serves), "
        "etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...][/PREFIX], etcds://... (the same by TLS, "
        "with ?ca=FILE&cert=FILE&key=FILE) and zookeeper://HOST:PORT[,HOST:PORT...][/PREFIX]"
    )
