"""A template: a process that has imported what programs need, and is forked into them on demand.

A fresh worker spends seconds of a core on imports; one that is forked off a template is there in
ten milliseconds. `python -m edl.launch.template --listen SOCKET --preload MODULE` serves whoever
may open that socket; a launcher that was itself forked off one makes another for its workers (see
warm.py). A preloaded module may have a function `before_fork`, which is run once when all of them
are imported, and one `after_fork`, run in each new process when its environment is in place.

Owns: the way of a request, which is a program's name, arguments, environment and folder, and three
open files. Holds: a template has one thread, so that a fork copies no lock in use; what is forked
finds nothing of it but its modules: not its connections, signals or random numbers.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, NoReturn

from edl.errors import PeerError
from edl.launch.boot import exit_status, leave, report

__all__ = ["Request", "Template", "ask", "main", "preload", "preloaded"]

LENGTH = struct.Struct("!I")
STREAMS = 3
# As Python finds them when it starts; it ignores SIGPIPE and SIGXFSZ from then on.
SIGNALS: dict[signal.Signals, Callable[[int, FrameType | None], Any] | signal.Handlers] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGCHLD: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}

_preloaded: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A program to become, as by `python -m MODULE ARGUMENTS`.

    `apart`: as the leader of a session of its own, else of a process group.
    """

    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    apart: bool


def ask(template: socket.socket, request: Request, streams: tuple[int, int, int]) -> int:
    """The pid of the new process; PeerError when the template is gone or could not fork."""
    body = json.dumps(asdict(request)).encode()
    try:
        socket.send_fds(template, [LENGTH.pack(len(body))], streams)
        template.sendall(body)
        answer = json.loads(_receive(template))
    except (OSError, ValueError, EOFError) as error:
        raise PeerError(f"the template of processes does not answer: {error}") from error
    if answer["error"]:
        raise PeerError(f"the template could not make a process: {answer['error']}")
    return int(answer["pid"])


class Template:
    """Serves connections, and whoever comes to `listener`; closes them all in new processes."""

    def __init__(
        self, connections: Sequence[socket.socket] = (), *, listener: socket.socket | None = None
    ) -> None:
        self._listener = listener
        self._waiting = selectors.DefaultSelector()
        for each in [*connections, *([listener] if listener else [])]:
            self._waiting.register(each, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the last connection is closed, or for ever with a listener."""
        # Nobody waits for the processes in between, nor for what becomes of the others.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while self._waiting.get_map():
            for key, _ in self._waiting.select():
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                if peer is self._listener:
                    self._waiting.register(peer.accept()[0], selectors.EVENT_READ)
                    continue
                try:
                    self._serve_one(peer)
                except (EOFError, ConnectionError):
                    self._waiting.unregister(peer)
                    peer.close()

    def _serve_one(self, peer: socket.socket) -> None:
        head, streams, _, _ = socket.recv_fds(peer, LENGTH.size, STREAMS)
        if not head:
            raise EOFError("the connection was closed")
        try:
            request = _understand(_exactly(peer, LENGTH.unpack(head)[0]), len(streams))
            if os.fork():
                return
            between = os.getpid()
            if os.fork():
                os._exit(0)
            # The new process. Its parent is now whoever of our ancestors takes orphans in, and
            # only then may that one hear of it.
            _await_end(between)
            _answer(peer, pid=os.getpid())
            self._close()
            _become(request, streams)
        except ConnectionError:
            raise
        except OSError as error:
            _answer(peer, error=str(error))
        finally:
            for stream in streams:
                os.close(stream)

    def _close(self) -> None:
        for key in list(self._waiting.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._waiting.close()


def _understand(body: bytes, streams: int) -> Request:
    try:
        if streams != STREAMS:
            raise ValueError(f"{streams} open files came along, not {STREAMS}")
        return Request(**json.loads(body))
    except (ValueError, TypeError) as error:
        raise ConnectionError(f"no request: {error}") from error


def _answer(peer: socket.socket, *, pid: int = 0, error: str = "") -> None:
    body = json.dumps({"pid": pid, "error": error}).encode()
    peer.sendall(LENGTH.pack(len(body)) + body)


def _receive(peer: socket.socket) -> bytes:
    return _exactly(peer, LENGTH.unpack(_exactly(peer, LENGTH.size))[0])


def _exactly(peer: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = peer.recv(count - len(found))
        if not part:
            raise EOFError("the connection was closed")
        found += part
    return bytes(found)


def _await_end(pid: int) -> None:
    """Until this process's first parent has ended, so that its lasting one is known."""
    try:
        end = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([end], [], [])
    os.close(end)


def _become(request: Request, streams: Sequence[int]) -> NoReturn:
    status = 1
    try:
        if request.apart:
            os.setsid()
        else:
            os.setpgid(0, 0)
        for number, handler in SIGNALS.items():
            signal.signal(number, handler)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.environment)
        _run_hooks("after_fork")
        sys.argv = [request.module, *request.arguments]
        status = importlib.import_module(request.module).main() or 0
    except SystemExit as end:
        status = exit_status(end)
    except BaseException as error:
        report(error)
    leave(status)


def preload(modules: Sequence[str]) -> None:
    """Import them, rehearse what they would load later, and keep all that out of the collector."""
    for name in modules:
        importlib.import_module(name)
        _preloaded.append(name)
    _run_hooks("before_fork")
    gc.collect()
    gc.freeze()


def preloaded() -> bool:
    """Whether this process is a template, or was forked off one."""
    return bool(_preloaded)


def _run_hooks(name: str) -> None:
    for module in _preloaded:
        hook = getattr(sys.modules[module], name, None)
        if hook is not None:
            hook()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m edl.launch.template", description=__doc__)
    parser.add_argument("--listen", required=True, metavar="SOCKET", help="path of a Unix socket")
    parser.add_argument("--preload", action="append", required=True, metavar="MODULE")
    options = parser.parse_args()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(options.listen)
        os.chmod(options.listen, 0o600)
        preload(options.preload)
        # Whoever comes earlier is refused, so nobody waits for imports without knowing it.
        listener.listen(64)
        print("ready", flush=True)  # noqa: T201
        Template(listener=listener).serve()


if __name__ == "__main__":
    # By its own name, under which what is forked off it looks for what was preloaded.
    importlib.import_module("edl.launch.template").main()
