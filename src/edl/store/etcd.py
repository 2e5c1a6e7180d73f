"""The store in etcd (3.4 or later), for jobs that are to outlive any one machine.

Keys lie at `PREFIX/JOB/KEY`, as they are; revisions are etcd's own. A lease's number is made from
its name, so that any client can renew or revoke it. One stream watches the whole folder of the
job. Holds: a watch is told by the store's revision, so what was read and what was streamed never
come in the wrong order.

etcd's leases last whole seconds, at least about two, and as long as was said when they were made.
A time is rounded up to seconds. One below etcd's least, or changed by a later `keep_alive`, is
kept by this client: it renews or revokes at the right moment, and if it dies, etcd's own time
decides.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import ParamSpec, TypeVar

from edl.errors import StoreError
from edl.store.base import Swap, Versioned
from edl.store.gateway import FAILED_PRECONDITION, Broken, Gateway, Json, Refusal, Stream
from edl.store.teller import Teller, ToldWatch
from edl.store.terms import Terms, check_ttl
from edl.store.url import StoreUrl, segment

__all__ = ["EtcdStore"]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("edl.store")

ABSENT = Versioned(None, 0)
TIMEOUT_S = 5.0
JOIN_S = 1.0
BACK_OFF_S_MIN, BACK_OFF_S_MAX = 0.05, 1.0
RETRY_S = 1.0
NOT_FOUND = 5


class EtcdStore:
    """The client. Made at once, also while the server is away; a call then waits its time."""

    def __init__(self, url: StoreUrl, *, job: str, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._folder = url.folder(job) + "/"
        self._timeout_s = timeout_s
        self._gateway = Gateway(url, timeout_s=timeout_s)
        self._teller = Teller()
        self._terms = Terms(self._on_alarm)
        # Until when this client answers for a lease, and what etcd granted; within Terms.alone.
        self._kept: dict[str, tuple[float, int]] = {}
        # Guards what follows, and the order in which watches are told.
        self._changed = threading.Condition()
        self._stream: Stream | None = None
        self._listener: threading.Thread | None = None
        self._problem = "not connected yet"
        self._closed = False

    # --- the four verbs ---

    def get(self, key: str) -> Versioned:
        return self._read(key)[0]

    def compare_and_swap(
        self, key: str, *, expected: int, value: bytes | None, lease: str | None = None
    ) -> Swap:
        name = _encoded(self._name(key))
        if value is None:
            change: Json = {"request_delete_range": {"key": name}}
            if lease is not None:
                self._require(lease)
        else:
            put = {"key": name, "value": base64.b64encode(value).decode()}
            if lease is not None:
                put["lease"] = str(self._number(lease))
            change = {"request_put": put}
        compare = {"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": str(expected)}
        answer = self._call(
            "/v3/kv/txn",
            {
                "compare": [compare],
                "success": [change],
                "failure": [{"request_range": {"key": name}}],
            },
            lease=lease,
            repeatable=False,
        )
        if not answer.get("succeeded"):
            if lease is not None:
                self._require(lease)
            return Swap(False, _rival(answer))
        if value is None:
            return Swap(True, ABSENT)
        return Swap(True, Versioned(value, _revision(answer)))

    def keep_alive(self, lease: str, ttl_s: float) -> None:
        check_ttl(lease, ttl_s)
        with self._terms.alone(lease):
            self._terms.drop(lease)
            self._kept.pop(lease, None)
            if ttl_s == 0:
                self._revoke(lease)
                return
            now, wanted_s = time.monotonic(), math.ceil(ttl_s)
            granted_s = self._renew(lease) or self._grant(lease, wanted_s)
            if granted_s != wanted_s:
                self._kept[lease] = (now + ttl_s, granted_s)
                self._terms.set(lease, min(now + ttl_s, now + granted_s / 3))

    def watch(self, key: str, notify: Callable[[Versioned], None]) -> ToldWatch:
        # Not added before there is a stream, which would tell it the present value once more.
        self._await_stream()
        watch = self._teller.add(key, notify)
        try:
            found, revision = self._read(key)
        except BaseException:
            watch.cancel()
            raise
        self._tell(watch, found, revision)
        return watch

    def clear(self) -> None:
        # Up to the name that follows all that begin so: "0" comes after "/".
        end = self._folder.removesuffix("/") + "0"
        body = {"key": _encoded(self._folder), "range_end": _encoded(end)}
        self._call("/v3/kv/deleterange", body)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            stream, listener = self._stream, self._listener
            self._changed.notify_all()
        if stream is not None:
            stream.end()
        self._gateway.close()
        self._terms.close()
        self._teller.close()
        if listener is not None and listener is not threading.current_thread():
            # Bounded: it may be connecting.
            listener.join(JOIN_S)

    # --- calls ---

    def _name(self, key: str) -> str:
        return self._folder + segment(key)

    def _call(
        self, path: str, body: Json, *, lease: str | None = None, repeatable: bool = True
    ) -> Json:
        try:
            return self._gateway.call(path, body, repeatable=repeatable)
        except Refusal as refusal:
            if lease is not None and refusal.code == NOT_FOUND:
                raise _no_lease(lease) from refusal
            raise StoreError(f"store {self._url} refused {path}: {refusal}") from refusal

    def _read(self, key: str) -> tuple[Versioned, int]:
        """What stands there, and the store's revision at which that was so."""
        answer = self._call("/v3/kv/range", {"key": _encoded(self._name(key))})
        return _found(answer), _revision(answer)

    # --- leases ---

    def _number(self, lease: str) -> int:
        digest = hashlib.sha256(f"{self._folder}{segment(lease)}".encode()).digest()
        # Positive and not zero, which would stand for no lease.
        return int.from_bytes(digest[:8]) >> 1 or 1

    def _renew(self, lease: str) -> int:
        """The seconds that etcd granted it; 0 if there is no such lease."""
        answer = self._call("/v3/lease/keepalive", {"ID": str(self._number(lease))})
        return _seconds(answer, "result")

    def _grant(self, lease: str, wanted_s: int) -> int:
        body = {"ID": str(self._number(lease)), "TTL": str(wanted_s)}
        try:
            return _seconds(self._gateway.call("/v3/lease/grant", body))
        except Refusal as refusal:
            # Another client was faster, or our first try was carried out and its answer lost.
            if refusal.code == FAILED_PRECONDITION and (granted_s := self._renew(lease)):
                return granted_s
            raise StoreError(f"store {self._url} refused lease {lease!r}: {refusal}") from refusal

    def _revoke(self, lease: str) -> None:
        try:
            self._gateway.call("/v3/lease/revoke", {"ID": str(self._number(lease))})
        except Refusal as refusal:
            if refusal.code != NOT_FOUND:
                raise StoreError(
                    f"store {self._url} did not revoke lease {lease!r}: {refusal}"
                ) from refusal

    def _require(self, lease: str) -> None:
        """Only a put is refused by etcd itself when its lease is gone."""
        body = {"ID": str(self._number(lease))}
        # A lease that is gone has -1 seconds left.
        if _seconds(self._call("/v3/lease/timetolive", body, lease=lease)) < 0:
            raise _no_lease(lease)

    def _on_alarm(self, lease: str) -> None:
        with self._terms.alone(lease):
            if lease not in self._kept:
                return
            deadline, granted_s = self._kept[lease]
            left_s = deadline - time.monotonic()
            try:
                if left_s <= 0:
                    self._revoke(lease)
                    del self._kept[lease]
                elif self._renew(lease):
                    self._terms.set(lease, time.monotonic() + min(left_s, granted_s / 3))
                else:
                    # Somebody revoked it.
                    del self._kept[lease]
            except StoreError as error:
                log.warning("store.lease lease=%s asking again: %s", lease, error)
                self._terms.set(lease, time.monotonic() + min(RETRY_S, granted_s / 3))

    # --- watches ---

    def _await_stream(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            if self._listener is None and not self._closed:
                self._listener = threading.Thread(
                    target=self._listen, name="edl-store-read", daemon=True
                )
                self._listener.start()
            while self._stream is None or self._closed:
                if self._closed:
                    raise StoreError(f"this client of store {self._url} is closed")
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise StoreError(f"store {self._url} is unreachable: {self._problem}")
                self._changed.wait(left_s)

    def _listen(self) -> None:
        back_off_s = BACK_OFF_S_MIN
        while not self._closed:
            try:
                stream = self._open_stream()
                back_off_s = BACK_OFF_S_MIN
                while True:
                    self._on_answer(stream.read())
            except (Broken, Refusal, StoreError) as error:
                self._on_lost(error)
            with self._changed:
                if not self._closed:
                    # Not all at the same moment: many clients lose a server together.
                    self._changed.wait(back_off_s * random.uniform(0.5, 1.0))
            back_off_s = min(back_off_s * 2, BACK_OFF_S_MAX)

    def _open_stream(self) -> Stream:
        """Tell what stands there now, and hear of everything after it."""
        # "0" follows "/", so this range is all that begins with the folder's name.
        folder = {"key": _encoded(self._folder), "range_end": _encoded(self._folder[:-1] + "0")}
        answer = self._call("/v3/kv/range", folder)
        revision = _revision(answer)
        present = _present(answer)
        request = {**folder, "start_revision": str(revision + 1)}
        stream = self._gateway.stream("/v3/watch", {"create_request": request})
        try:
            self._check(stream.read())
            stream.patient()
        except BaseException:
            stream.close()
            raise
        with self._changed:
            # Whoever comes once there is a stream reads for itself.
            watches = self._teller.watches()
            self._stream = stream
            if self._closed:
                stream.end()
            self._changed.notify_all()
        for watch in watches:
            found = present.get(_encoded(self._name(watch.key)), ABSENT)
            self._tell(watch, found, revision, again=True)
        return stream

    def _on_answer(self, answer: Json) -> None:
        self._check(answer)
        for name, found, revision in _events(answer):
            for watch in self._teller.watches():
                if _encoded(self._name(watch.key)) == name:
                    self._tell(watch, found, revision)

    def _check(self, answer: Json) -> None:
        result = answer.get("result")
        if not isinstance(result, dict) or result.get("canceled"):
            # Such as a revision that was compacted away: then all is read anew.
            raise StoreError(f"the watch was ended: {answer!r:.200}")

    def _tell(self, watch: ToldWatch, found: Versioned, at: int, *, again: bool = False) -> None:
        """Post it, unless something newer was posted; `at` is the store's revision."""
        with self._changed:
            if at < watch.heard_at or (at == watch.heard_at and not again):
                return
            watch.heard_at = at
            if again or found != watch.last:
                watch.last = found
                self._teller.post(partial(watch.tell, found))

    def _on_lost(self, error: Exception) -> None:
        with self._changed:
            lost, self._stream = self._stream, None
            self._problem = str(error)
            closed = self._closed
        if lost is not None:
            lost.close()
            if not closed:
                log.warning("store.lost address=%s why=%r", self._url, str(error))


def _no_lease(lease: str) -> StoreError:
    return StoreError(f"lease {lease!r} does not exist or has expired; call keep_alive first")


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _reading(fn: Callable[P, T]) -> Callable[P, T]:
    """What is no answer of etcd is the store's fault, told as any other fault of it."""

    @wraps(fn)
    def read(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return fn(*args, **kwargs)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StoreError(
                f"the store's answer cannot be read ({error!r}), so it may or may not have been "
                "carried out; is it etcd 3.4 or later?"
            ) from error

    return read


@_reading
def _revision(answer: Json) -> int:
    return int(answer["header"]["revision"])


@_reading
def _seconds(answer: Json, inside: str | None = None) -> int:
    # etcd leaves a zero out.
    return int((answer[inside] if inside else answer).get("TTL", 0))


@_reading
def _versioned(pair: Json) -> Versioned:
    # etcd leaves an empty value out.
    return Versioned(base64.b64decode(pair.get("value", "")), int(pair["mod_revision"]))


@_reading
def _found(answer: Json) -> Versioned:
    pairs = answer.get("kvs", ())
    return _versioned(pairs[0]) if pairs else ABSENT


@_reading
def _rival(answer: Json) -> Versioned:
    """What stood in the way of a swap."""
    return _found(answer["responses"][0]["response_range"])


@_reading
def _present(answer: Json) -> dict[str, Versioned]:
    return {pair["key"]: _versioned(pair) for pair in answer.get("kvs", ())}


@_reading
def _events(answer: Json) -> list[tuple[str, Versioned, int]]:
    """Name, what stands there now, and the store's revision."""
    found = []
    for event in answer["result"].get("events", ()):
        pair = event["kv"]
        # etcd leaves the type out where it is a put.
        now = ABSENT if event.get("type") == "DELETE" else _versioned(pair)
        found.append((pair["key"], now, int(pair["mod_revision"])))
    return found
