"""All connections of one process, in one thread.

A leader talks to every worker, and a thread per connection would make every order of events
possible. Here one thread owns all sockets and calls the owner back, so the owner needs no locks.

Owns: listeners, connections, their handshakes and queues. Holds: no call of the owner blocks, and
no callback runs inside one; a connection that sends garbage loses that connection and nothing
else; one that does not read is closed before its queue outgrows `max_queued`; each connection that
was opened or dialled gets exactly one `on_closed`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterable
from functools import partial

from edl.errors import PeerError
from edl.types import Address
from edl.wire.codec import Codec
from edl.wire.door import Door
from edl.wire.hello import Hello, Role, check_secret
from edl.wire.linger import Linger
from edl.wire.loop import READ, WRITE, Loop
from edl.wire.peer import Peer
from edl.wire.strangers import Strangers, default_limit
from edl.wire.stream import MAX_FRAME, dialled_itself, dialling, frame, reason
from edl.wire.tls import SealedHello, Tls, introduce

__all__ = ["Hub", "Peer"]

log = logging.getLogger("edl.wire")

# What may wait to be sent to one peer before it counts as one that does not read. With 1,000
# workers a leader queues less than 1 MB for each when it builds a generation.
MAX_QUEUED = 64 * 1024 * 1024
SCRATCH_BYTES = 256 * 1024
CLOSE_S = 2.0
# After our last byte: long enough for the other side to close too, short enough for a stop.
STOP_LINGER_S = 0.25


class Hub:
    """See the module. Callbacks run in the hub's thread."""

    def __init__(
        self,
        *,
        name: str,
        job: str,
        secret: bytes,
        codec: Codec,
        on_message: Callable[[Peer, object], None],
        on_open: Callable[[Peer], None] | None = None,
        on_closed: Callable[[Peer, str], None] | None = None,
        on_tick: Callable[[], None] | None = None,
        tick_s: float = 0.05,
        max_frame: int = MAX_FRAME,
        max_queued: int = MAX_QUEUED,
        max_unproven: int | None = None,
        hello_timeout_s: float = 5.0,
        on_error: Callable[[BaseException], None] | None = None,
        tls: Tls | None = None,
    ) -> None:
        check_secret(secret)
        self._loop = Loop(name=name, on_error=on_error, on_tick=on_tick, tick_s=tick_s)
        self._strangers = Strangers(
            self._loop,
            timeout_s=hello_timeout_s,
            limit=default_limit() if max_unproven is None else max_unproven,
            drop=self._drop,
        )
        self._door = Door(
            self._loop,
            self._on_accepted,
            is_full=lambda: self._strangers.full,
            make_room=self._strangers.make_room,
        )
        self._job = job
        self._secret = secret
        self._codec = codec
        self._on_message = on_message
        self._on_open = on_open
        self._on_closed = on_closed
        self._max_frame = max_frame
        self._max_queued = max_queued
        self._tls = tls
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._peers: dict[Peer, None] = {}
        self._linger = Linger(self._loop, self._end_if_empty)
        self._stopping = False

    # --- any thread ---

    @property
    def thread_ident(self) -> int | None:
        return self._loop.thread_ident

    def listen(self, host: str, port: int = 0) -> Address:
        """Bind now, so that a taken port is told to the caller; callers are let in once started."""
        return self._door.listen(host, port)

    def post(self, fn: Callable[[], None], *, wake: bool = True) -> None:
        """Run this in the hub's thread, soon, or (without `wake`) at its next turn or tick."""
        self._loop.post(fn, wake=wake)

    def start(self) -> None:
        self._loop.start()

    def stop(self, flush_s: float = 2.0) -> None:
        """Send what is queued, close everything, wait for the thread. Harmless when repeated."""
        if not self._loop.started:
            self._door.close()
            self._loop.dispose()
            return
        self._loop.post(partial(self._begin_stop, flush_s))
        if not self._loop.inside:
            self._loop.join()

    # --- the hub's thread: what the owner calls ---

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> None:
        self._assert_inside()
        self._loop.call_later(delay_s, lambda: None if self._stopping else fn())

    def connect(self, address: Address, tag: object = None) -> Peer:
        self._assert_inside()
        peer = self._new_peer(None, name=str(address), role="dial", tag=tag)
        try:
            if self._stopping:
                raise OSError("this hub is stopping")
            peer.sock = dialling(address)
        except (OSError, OverflowError, UnicodeError) as error:
            why = f"cannot connect to {address}: {reason(error)}"
            self._loop.post(partial(self._drop, peer, why))
            return peer
        self._await_proof(peer, WRITE)
        return peer

    def send(self, peer: Peer, message: object) -> None:
        self._assert_inside()
        self._send_frame(peer, frame(self._codec.encode(message), max_frame=self._max_frame))

    def broadcast(self, peers: Iterable[Peer], message: object) -> None:
        """Send one message to each of these peers; it is encoded once."""
        self._assert_inside()
        data = frame(self._codec.encode(message), max_frame=self._max_frame)
        for peer in peers:
            self._send_frame(peer, data)

    def _send_frame(self, peer: Peer, data: bytes) -> None:
        if peer.closing or peer.gone or peer.broken:
            return
        if peer.queued > self._max_queued:
            self._on_overflow(peer)
            return
        if not peer.open:
            peer.hold(data)
            return
        if peer.cipher is not None:
            try:
                data = peer.cipher.seal(data)
            except PeerError as error:
                self._on_broken(peer, error)
                return
        if peer.raw:
            peer.enqueue(data)
        else:
            self._write_now(peer, data)

    def close(self, peer: Peer) -> None:
        self._assert_inside()
        self._close(peer, "closed by this side", CLOSE_S)

    # --- stopping ---

    def _begin_stop(self, flush_s: float) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._loop.on_tick = None
        self._door.close()
        for peer in list(self._peers):
            if peer.inbound and peer.hello is not None:
                self._drop(peer, "this hub stopped")
            else:
                self._close(peer, "this hub stopped", flush_s)
        self._loop.call_later(flush_s, self._end_now)
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._stopping and not self._peers and not self._linger:
            self._loop.end()

    def _end_now(self) -> None:
        for peer in list(self._peers):
            self._drop(peer, peer.why)
        self._linger.close()
        self._loop.end()

    # --- the handshake ---

    def _on_accepted(self, sock: socket.socket, name: str) -> None:
        peer = self._new_peer(sock, name=name, role="listen", tag=None)
        self._await_proof(peer, READ)
        self._greet(peer)

    def _new_peer(self, sock: socket.socket | None, *, name: str, role: Role, tag: object) -> Peer:
        hello = introduce(role, job=self._job, secret=self._secret, tls=self._tls)
        inbound = role == "listen"
        peer = Peer(
            sock, name=name, tag=tag, inbound=inbound, hello=hello, max_frame=self._max_frame
        )
        self._peers[peer] = None
        return peer

    def _await_proof(self, peer: Peer, events: int) -> None:
        assert peer.sock is not None
        peer.interest = events
        self._loop.register(peer.sock, events, partial(self._on_ready, peer))
        self._strangers.add(peer)

    def _greet(self, peer: Peer) -> None:
        assert peer.hello is not None
        assert peer.sock is not None
        try:
            peer.hello.bind_address(peer.sock)
        except OSError as error:
            self._drop(peer, f"lost {peer.name}: {reason(error)}")
            return
        peer.enqueue(peer.hello.greeting)
        self._write_early(peer)

    def _on_connected(self, peer: Peer) -> None:
        assert peer.sock is not None
        failure = peer.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure or dialled_itself(peer.sock):
            error = OSError(failure or errno.ECONNREFUSED, "")
            self._drop(peer, f"cannot connect to {peer.name}: {reason(error)}")
            return
        peer.connecting = False
        self._greet(peer)

    def _on_hello_bytes(self, peer: Peer, hello: Hello | SealedHello) -> bytes:
        """What came after the handshake; only inside TLS can there be anything."""
        assert peer.sock is not None
        # Without TLS nothing beyond the handshake is even read before the proof.
        data = peer.sock.recv(hello.wanted)
        if not data:
            raise PeerError(f"{peer.name} closed the connection in the handshake")
        self._strangers.heard(peer)
        answer = hello.feed(data)
        if answer:
            peer.enqueue(answer)
            self._write_early(peer)
        if hello.done:
            peer.cipher = hello.cipher
            self._on_proven(peer)
        return b"" if peer.gone else hello.rest

    def _on_proven(self, peer: Peer) -> None:
        peer.hello = None
        self._strangers.remove(peer)
        peer.release(bytes if peer.cipher is None else peer.cipher.seal)
        if peer.closing:
            self._on_writable(peer)
            return
        peer.open = True
        if self._on_open is not None:
            self._loop.guard(partial(self._on_open, peer))
        self._on_writable(peer)

    # --- reading and writing ---

    def _on_ready(self, peer: Peer, mask: int) -> None:
        # Another connection's event of the same turn may have ended this one.
        if peer.gone:
            return
        try:
            if peer.connecting:
                self._on_connected(peer)
                return
            if mask & WRITE:
                self._on_writable(peer)
            if mask & READ and not peer.gone:
                self._on_readable(peer)
        except BlockingIOError:
            return
        except (OSError, PeerError) as error:
            self._fail(peer, error)
        except Exception:
            # A bug of ours: without this the same event would come again and again.
            self._drop(peer, "an internal error, see the log")
            # The owner may well give up then, and that must be in no stranger's power.
            if not self._strangers.stumbled(peer):
                raise

    def _fail(self, peer: Peer, error: OSError | PeerError) -> None:
        if peer.hello is None:
            self._drop(peer, reason(error))
            return
        if peer.hello.last_words and not peer.broken:
            peer.enqueue(peer.hello.last_words)
            # A courtesy: it may be gone already.
            with contextlib.suppress(OSError):
                peer.write()
        self._strangers.refuse(peer, reason(error), error)

    def _on_writable(self, peer: Peer) -> None:
        if peer.gone or peer.broken:
            return
        try:
            peer.write()
        except OSError as error:
            self._on_broken(peer, error)
            return
        self._watch_for(peer, READ | WRITE if peer.raw else READ)
        if peer.closing and not peer.raw and peer.hello is None:
            self._finish(peer)

    def _write_now(self, peer: Peer, data: bytes) -> None:
        """Nothing waits ahead of it, and the kernel nearly always takes a message whole."""
        assert peer.sock is not None
        try:
            sent = peer.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._on_broken(peer, error)
            return
        if sent < len(data):
            peer.enqueue(memoryview(data)[sent:])
            self._watch_for(peer, READ | WRITE)

    def _write_early(self, peer: Peer) -> None:
        """Try to write without waiting for the selector, which costs a whole turn of the loop."""
        try:
            peer.write()
        except OSError as error:
            self._on_broken(peer, error)
            return
        self._watch_for(peer, READ | WRITE if peer.raw else READ)

    def _on_broken(self, peer: Peer, error: OSError | PeerError) -> None:
        peer.broken = True
        peer.discard()
        self._watch_for(peer, READ)
        self._loop.post(partial(self._drain_and_drop, peer, reason(error)))

    def _on_overflow(self, peer: Peer) -> None:
        why = (
            f"{peer.name} does not read: {peer.queued} bytes wait to be sent to it, "
            f"the limit is {self._max_queued}"
        )
        log.warning("wire.overflow peer=%s why=%r", peer.name, why)
        peer.broken = True
        peer.discard()
        self._loop.post(partial(self._drop, peer, why))

    def _drain_and_drop(self, peer: Peer, why: str) -> None:
        """The other side may have said something before it went: that is heard first."""
        try:
            while not peer.gone and not peer.connecting:
                self._on_readable(peer)
        except PeerError as error:
            why = str(error)
        except OSError:
            pass
        self._drop(peer, why)

    def _on_readable(self, peer: Peer) -> None:
        assert peer.sock is not None
        if peer.hello is not None:
            data: bytes | memoryview = self._on_hello_bytes(peer, peer.hello)
        else:
            count = peer.sock.recv_into(self._scratch)
            if not count:
                cut = " in the middle of a message" if peer.reader.inside else ""
                raise PeerError(f"{peer.name} closed the connection{cut}")
            data = self._scratch[:count]
            if peer.cipher is not None:
                data = peer.cipher.open(data)
        if peer.closing or not data:
            return
        for payload in peer.reader.feed(data):
            message = self._codec.decode(payload)
            try:
                self._on_message(peer, message)
            except BaseException as error:
                self._loop.report(error)
            if peer.closing or peer.gone:
                return

    def _watch_for(self, peer: Peer, events: int) -> None:
        if peer.interest != events and peer.sock is not None and not peer.gone:
            peer.interest = events
            self._loop.modify(peer.sock, events, partial(self._on_ready, peer))

    # --- the end of a connection ---

    def _close(self, peer: Peer, why: str, bound_s: float) -> None:
        if peer.closing or peer.gone:
            return
        peer.closing, peer.open, peer.why = True, False, why
        if peer.hello is not None and not peer.early:
            self._loop.post(partial(self._drop, peer, why))
            return
        if peer.hello is None:
            self._loop.post(partial(self._on_writable, peer))
        self._loop.call_later(bound_s, partial(self._drop, peer, why))

    def _finish(self, peer: Peer) -> None:
        """All is written: the socket has no owner any more, but lives until it arrived."""
        assert peer.sock is not None
        try:
            self._linger.take(peer.sock, STOP_LINGER_S if self._stopping else CLOSE_S)
            peer.sock = None
        except OSError:
            pass  # gone already, so there is nobody to wait for
        self._drop(peer, peer.why)

    def _drop(self, peer: Peer, why: str) -> None:
        if peer.gone:
            return
        announced = peer.hello is None or not peer.inbound
        peer.gone, peer.open = True, False
        peer.discard()
        self._peers.pop(peer, None)
        self._strangers.remove(peer)
        if peer.sock is not None:
            self._loop.unregister(peer.sock)
            peer.sock.close()
            peer.sock = None
        if announced and self._on_closed is not None:
            self._loop.guard(partial(self._on_closed, peer, peer.why or why))
        self._end_if_empty()

    def _assert_inside(self) -> None:
        assert self._loop.inside, "connect, send, close and call_later: hub thread only, use post"
