"""A proxy between EDL and a real etcd that carries requests out and then loses answers.

It speaks HTTP/1.1 as etcd's JSON gateway does. A request reaches etcd and is carried out there;
then, with a given probability, the proxy closes the client's connection instead of passing the
answer on. A smaller share of requests is lost before etcd sees them, so that a client cannot tell
which of both happened. Requests and answers are also delayed. A watch is passed on line by line,
and is cut from time to time. Every decision comes from one seeded generator.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["TXN", "LossyProxy"]

WATCH = "/v3/watch"
TXN = "/v3/kv/txn"


class LossyProxy:
    """`lose`: the share of answers that are lost; `drop`: the share of requests that are lost;
    `delay_s`: the longest delay of one message; `spared`: paths of which nothing is lost."""

    def __init__(
        self,
        target_port: int,
        *,
        seed: int,
        lose: float = 0.3,
        drop: float = 0.1,
        delay_s: float = 0.03,
        spared: tuple[str, ...] = (),
    ) -> None:
        self.target_port = target_port
        self.lose = lose
        self.drop = drop
        self.spared = spared
        self.delay_s = delay_s
        self.calls: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        # Transactions that etcd carried out, by key, whose answer was lost.
        self.lost_swaps: Counter[bytes] = Counter()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def __enter__(self) -> LossyProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def draw(self, path: str) -> tuple[float, float, bool, bool]:
        """Delays of a request and of its answer, and whether either of both is lost."""
        with self._lock:
            before_s, after_s, chance = (self._random.random() for _ in range(3))
        spared = path in self.spared
        dropped = not spared and chance > 1 - self.drop
        lost = not spared and chance < self.lose
        return before_s * self.delay_s, after_s * self.delay_s, dropped, lost

    def note(self, path: str, *, lost: bool, swapped: bytes | None) -> None:
        with self._lock:
            self.calls[path] += 1
            self.lost[path] += lost
            if lost and swapped is not None:
                self.lost_swaps[swapped] += 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: LossyProxy

    def handle(self) -> None:
        # A client that goes away in the middle of a request is none of the proxy's business.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        before_s, after_s, dropped, lost = self.owner.draw(self.path)
        time.sleep(before_s)
        if dropped:
            self._hang_up()
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.owner.target_port, timeout=30)
        try:
            upstream.request("POST", self.path, body, dict(self.headers.items()))
            sock = upstream.sock
            answer = upstream.getresponse()
            if self.path == WATCH:
                self._pass_stream(answer, sock, lost=lost)
                return
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self._hang_up()
            return
        finally:
            upstream.close()
        time.sleep(after_s)
        self.owner.note(self.path, lost=lost, swapped=_swapped(self.path, body, text))
        if lost:
            self._hang_up()
            return
        with contextlib.suppress(OSError):
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def _pass_stream(
        self, answer: http.client.HTTPResponse, sock: socket.socket | None, *, lost: bool
    ) -> None:
        """One line at a time; a stream that is to be lost ends after its third line."""
        self.owner.note(WATCH, lost=lost, swapped=None)
        self.close_connection = True
        if sock is not None:
            sock.settimeout(None)
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.send_response(answer.status)
            self.send_header("Connection", "close")
            self.end_headers()
            for sent, line in enumerate(iter(answer.readline, b"")):
                if lost and sent == 3:
                    break
                self.wfile.write(line)
                self.wfile.flush()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: the counters tell what happened."""


def _swapped(path: str, body: bytes, text: bytes) -> bytes | None:
    """The name of the key that this transaction changed; None if it changed nothing."""
    if path != TXN or not json.loads(text).get("succeeded"):
        return None
    return str(json.loads(body)["compare"][0]["key"]).encode()
