"""HTTP to etcd's JSON gateway: connections, the next server when one is away, logins, streams.

Spoken with the standard library: etcd3gw, which speaks to the gateway too and is kept up, knows a
single server and no logins, and does not say when a watch has ended. Owns: idle connections, the
token of a login, which server is asked first. Holds: a call ends within its time; a request that
must not be done twice is sent again only if it was surely not carried out.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
import threading
import time
from typing import Any

from edl.errors import StoreError, UsageError
from edl.store.url import StoreUrl
from edl.types import Address

__all__ = ["Broken", "Gateway", "Json", "Refusal", "Stream"]

Json = dict[str, Any]

# Far above anything that a job keeps; what is longer is not held in memory, and so is no JSON.
ANSWER_MAX = 64 << 20
BACK_OFF_S_MIN, BACK_OFF_S_MAX = 0.02, 0.5
CONNECT_S_MIN = 1.0
# A host that vanished is noticed after about 5 + 3 * 2 s, though a stream may be silent for hours.
KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
# gRPC's numbers, in which the gateway tells what went wrong.
FAILED_PRECONDITION, UNAVAILABLE, UNAUTHENTICATED = 9, 14, 16
# Said before the request was looked at, so it was surely not carried out.
NO_LEADER = "etcdserver: no leader"
# What a handshake ends in with a server that does not take part in it, and what a request without
# one ends in with a server that waits for it: whether the end or a reset is read first is chance.
NO_TLS = (ConnectionResetError, BrokenPipeError, ssl.SSLError)
NO_HTTP = (ConnectionResetError, BrokenPipeError, http.client.BadStatusLine)
OLD_TOKENS = ("invalid auth token", "revision in header is old")


class Refusal(Exception):
    """The server answered, with an error; `code` is gRPC's, or -1 where the answer has none."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Broken(Exception):
    """No answer; `sent` says whether the request may have been carried out all the same."""

    def __init__(self, server: Address, why: object, *, sent: bool) -> None:
        super().__init__(f"{server}: {why}")
        self.server = server
        self.sent = sent


class Stream:
    """An answer without end, one JSON value a line.

    One thread reads, and closes it when there is no more to read; others may `end` it.
    """

    def __init__(
        self, server: Address, sock: socket.socket, response: http.client.HTTPResponse
    ) -> None:
        self._server = server
        self._sock = sock
        self._response = response

    def read(self) -> Json:
        try:
            line = self._response.readline(ANSWER_MAX)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Broken(self._server, error, sent=True) from error
        if not line:
            raise Broken(self._server, "the stream ended", sent=True)
        return _result(200, line)

    def patient(self) -> None:
        """From now on silence is no failure."""
        self._sock.settimeout(None)

    def end(self) -> None:
        """Wake the thread that reads; it finds the stream broken."""
        _shut(self._sock)

    def close(self) -> None:
        self._response.close()
        self._sock.close()


class Gateway:
    """Every method may be called from any thread."""

    def __init__(self, url: StoreUrl, *, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._tls = _tls_context(url) if url.scheme == "etcds" else None
        self._closing = threading.Event()
        # Guards what follows.
        self._lock = threading.Lock()
        self._first = 0
        self._idle: list[tuple[Address, http.client.HTTPConnection]] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._token: str | None = None
        # Whoever has answered once was asked in the right way.
        self._answered: set[Address] = set()

    def call(self, path: str, body: Json, *, repeatable: bool = True) -> Json:
        """Ask until there is an answer or the time is over; Refusal if the answer is an error."""
        deadline = time.monotonic() + self._timeout_s
        back_off_s = BACK_OFF_S_MIN
        while True:
            token: str | None = None
            try:
                token = self._login(deadline - time.monotonic())
                return self._ask(path, body, token, deadline - time.monotonic())
            except Refusal as refusal:
                problem: Exception = refusal
                stale = bool(token) and _is_stale(refusal)
                if stale:
                    self._forget(token)
                elif refusal.code != UNAVAILABLE:
                    raise
                unknown = not stale and token is not None and refusal.message != NO_LEADER
            except Broken as broken:
                problem, unknown = broken, broken.sent
            self._check_open()
            if unknown and not repeatable:
                raise StoreError(
                    f"lost store {self._url} during a compare-and-swap ({problem}): it may or may "
                    "not have been done; read the key again"
                ) from problem
            if time.monotonic() + back_off_s >= deadline:
                raise StoreError(f"store {self._url} is unreachable: {problem}") from problem
            self._closing.wait(back_off_s)
            back_off_s = min(back_off_s * 2, BACK_OFF_S_MAX)

    def stream(self, path: str, body: Json) -> Stream:
        """The first line comes within the time of a call, or the stream is broken."""
        token = self._login(self._timeout_s)
        server, connection = self._connect(self._timeout_s)
        sock = connection.sock
        assert isinstance(sock, socket.socket)
        for name, value in KEEP_ALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            connection.request("POST", path, json.dumps(body), _headers(token))
            response = connection.getresponse()
            if response.status != 200:
                _result(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Broken(server, error, sent=True) from error
        except Refusal as refusal:
            connection.close()
            if token and _is_stale(refusal):
                self._forget(token)
            raise
        return Stream(server, sock, response)

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for _, connection in idle:
            connection.close()
        for connection in busy:
            # Its own thread closes it; this wakes that thread.
            if isinstance(connection.sock, socket.socket):
                _shut(connection.sock)

    # --- logins ---

    def _login(self, timeout_s: float) -> str:
        """The token to send along; empty where none is needed."""
        self._check_open()
        if self._url.user is None:
            return ""
        with self._lock:
            if self._token is not None:
                return self._token
        account = {"name": self._url.user, "password": self._url.password}
        try:
            token = self._ask("/v3/auth/authenticate", account, "", timeout_s).get("token")
        except Broken as broken:
            raise Broken(broken.server, broken.__cause__, sent=False) from broken
        except Refusal as refusal:
            if refusal.code == UNAVAILABLE:
                raise
            if refusal.code != FAILED_PRECONDITION:
                raise StoreError(
                    f"store {self._url} refused user {self._url.user!r}: {refusal}; "
                    "check the user and password of its URL"
                ) from refusal
            # Logins are not switched on there, so nobody needs one.
            return ""
        if not isinstance(token, str):
            raise StoreError(f"store {self._url} took the login but gave no token; is it etcd?")
        with self._lock:
            self._token = token
        return token

    def _forget(self, token: str | None) -> None:
        with self._lock:
            if self._token == token:
                self._token = None

    # --- one question, one answer ---

    def _ask(self, path: str, body: Json, token: str, timeout_s: float) -> Json:
        server, connection = self._take(timeout_s)
        try:
            assert isinstance(connection.sock, socket.socket)
            connection.sock.settimeout(max(timeout_s, BACK_OFF_S_MIN))
            connection.request("POST", path, json.dumps(body), _headers(token))
            response = connection.getresponse()
            text = response.read(ANSWER_MAX)
        except (OSError, http.client.HTTPException) as error:
            self._turn_from(server)
            connection.close()
            raise Broken(server, self._with_hint(server, error), sent=True) from error
        finally:
            with self._lock:
                self._busy.discard(connection)
        with self._lock:
            self._answered.add(server)
            keep = connection.sock is not None and not self._closing.is_set()
            if keep:
                self._idle.append((server, connection))
        if not keep:
            connection.close()
        return _result(response.status, text)

    def _with_hint(self, server: Address, error: Exception) -> str:
        with self._lock:
            known = server in self._answered
        if self._tls is None and isinstance(error, NO_HTTP) and not known:
            return f"{error}; does it want TLS (etcds://)?"
        return str(error)

    def _take(self, timeout_s: float) -> tuple[Address, http.client.HTTPConnection]:
        with self._lock:
            idle, self._idle = self._idle, []
            server = self._url.servers[self._first]
            found = None
            for each in idle:
                if each[0] != server or _has_ended(each[1]):
                    each[1].close()
                elif found is None:
                    found = each
                    self._busy.add(each[1])
                else:
                    self._idle.append(each)
        return found or self._connect(timeout_s, busy=True)

    def _connect(
        self, timeout_s: float, *, busy: bool = False
    ) -> tuple[Address, http.client.HTTPConnection]:
        with self._lock:
            server = self._url.servers[self._first]
        # One silent server must not use up the time in which the others could answer.
        share_s = min(timeout_s, max(self._timeout_s / len(self._url.servers), CONNECT_S_MIN))
        wait_s = max(share_s, BACK_OFF_S_MIN)
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(server.host, server.port, timeout=wait_s)
        else:
            connection = http.client.HTTPSConnection(
                server.host, server.port, timeout=wait_s, context=self._tls
            )
        try:
            connection.connect()
        except OSError as error:
            self._turn_from(server)
            connection.close()
            why = error.strerror or error
            known = isinstance(error, ssl.SSLCertVerificationError)
            if self._tls is not None and isinstance(error, NO_TLS) and not known:
                why = f"{why}; does it speak TLS (etcd:// if not)?"
            raise Broken(server, why, sent=False) from error
        with self._lock:
            # Either `close` finds it among the busy, or it is found to be too late here.
            closed = self._closing.is_set()
            if busy and not closed:
                self._busy.add(connection)
        if closed:
            connection.close()
        self._check_open()
        return server, connection

    def _turn_from(self, server: Address) -> None:
        with self._lock:
            if self._url.servers[self._first] == server:
                self._first = (self._first + 1) % len(self._url.servers)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise StoreError(f"this client of store {self._url} is closed")


def _headers(token: str) -> dict[str, str]:
    # A member cut off from the others says so, instead of keeping a watch in silence.
    headers = {"Content-Type": "application/json", "Grpc-Metadata-Hasleader": "true"}
    return headers | {"Authorization": token} if token else headers


def _result(status: int, text: bytes) -> Json:
    """The answer's JSON; Refusal where it is an error, in any of the forms that gateways use."""
    try:
        answer = json.loads(text.split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Refusal(
            -1,
            f"it answered with status {status} and {text[:200]!r}; expected the JSON of etcd 3.4 "
            "or later (etcd:// for a server without TLS, etcds:// for one with)",
        )
    error = answer.get("error")
    if status == 200 and not error:
        return answer
    told: Json = error if isinstance(error, dict) else answer
    codes = [told.get(name) for name in ("code", "grpc_code")]
    code = next((each for each in codes if isinstance(each, int)), -1)
    raise Refusal(code, str(told.get("message") or error or text[:200]))


def _is_stale(refusal: Refusal) -> bool:
    old = any(words in refusal.message for words in OLD_TOKENS)
    return refusal.code == UNAUTHENTICATED or old


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether the server closed it while it lay idle: then there is something to read."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _shut(sock: socket.socket) -> None:
    try:
        # The plain socket's: TLS must not be taken apart under the thread that reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        # It has ended by itself.
        return


def _tls_context(url: StoreUrl) -> ssl.SSLContext:
    """Trusts the given authority alone, or the machine's where none is given."""
    names = {name: url.options.get(name) for name in ("ca", "cert", "key")}
    if names["key"] and not names["cert"]:
        raise UsageError(f"store {url}: key= is given without cert=; give both, or none")
    try:
        context = ssl.create_default_context(cafile=names["ca"])
        if names["cert"]:
            context.load_cert_chain(names["cert"], names["key"])
    except OSError as error:
        given = ", ".join(f"{name}={path}" for name, path in names.items() if path)
        raise UsageError(
            f"store {url}: cannot use {given}: {error}; expected readable PEM files"
        ) from error
    return context
