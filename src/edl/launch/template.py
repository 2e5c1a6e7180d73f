"""A template: a process that has imported what programs need, and is forked into them on demand.

A fresh worker spends seconds of a core on imports; one that is forked off a template is there in
ten milliseconds. `python -m edl.launch.template --listen SOCKET --preload MODULE` serves whoever
may open that socket; `--connection FD` serves one launcher, as `edl run --warm` has it, and ends
with it (see warm.py). A preloaded module may have a function `before_fork`, which is run once when
all of them are imported, and one `after_fork`, run in each new process when its environment is in
place.

Owns: the way of a request, which is a program's name, arguments, environment and folder, and three
open files; and the spares, which are forked already and wait for one. Holds: a template has one
thread, so that a fork copies no lock in use; what is forked finds nothing of it but its modules:
not its connections, signals or random numbers; a spare ends with its template.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, NoReturn

from edl.errors import PeerError, UsageError
from edl.launch.boot import exit_status, leave, report
from edl.runtime.lifeline import die_with_parent

__all__ = ["Request", "Template", "ask", "await_ready", "main", "preload", "preloaded"]

LENGTH = struct.Struct("!I")
STREAMS = 3
# Spares are made when nobody has asked for so long: a fork takes as long as it would save.
IDLE_S = 0.2
# How many are forked for one request before it is given up.
ATTEMPTS = 3
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


def await_ready(template: socket.socket) -> None:
    """Until it has imported everything; UsageError says what it could not."""
    try:
        answer = json.loads(_receive(template))
    except (OSError, ValueError, EOFError) as error:
        raise PeerError(f"the template of processes ended while it loaded: {error}") from error
    if answer["error"]:
        raise UsageError(answer["error"])


class Template:
    """Serves connections, and whoever comes to `listener`; closes them all in new processes."""

    def __init__(
        self,
        connections: Sequence[socket.socket] = (),
        *,
        listener: socket.socket | None = None,
        spares: int = 0,
    ) -> None:
        self._listener = listener
        self._wanted = spares
        self._spares: dict[socket.socket, int] = {}
        self._waiting = selectors.DefaultSelector()
        for each in [*connections, *([listener] if listener else [])]:
            self._waiting.register(each, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the last connection is closed, or for ever with a listener."""
        # Nobody waits for the processes in between, nor for what becomes of the others.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while len(self._waiting.get_map()) > len(self._spares):
            short = len(self._spares) < self._wanted
            ready = self._waiting.select(IDLE_S if short else None)
            if short and not ready:
                # A machine that refuses one now may not in a while.
                with contextlib.suppress(OSError, EOFError):
                    self._make_spare()
            for key, _ in ready:
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                if peer is self._listener:
                    self._waiting.register(peer.accept()[0], selectors.EVENT_READ)
                elif peer in self._spares:
                    self._forget_spare(peer)
                # One that was closed on the way is a spare that was used.
                elif peer.fileno() >= 0:
                    self._serve_peer(peer)

    def _serve_peer(self, peer: socket.socket) -> None:
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
            body = _exactly(peer, LENGTH.unpack(head)[0])
            request = _understand(body, len(streams))
            if not request.apart:
                _answer(peer, pid=self._use_spare(body, streams))
            elif self._forked(peer):
                _answer(peer, pid=os.getpid())
                self._close()
                _become(request, streams)
        except ConnectionError:
            raise
        except (OSError, EOFError) as error:
            _answer(peer, error=str(error))
        finally:
            for stream in streams:
                os.close(stream)

    def _forked(self, waiting: socket.socket) -> bool:
        """Whether this is the new process.

        Its parent is then whoever of our ancestors takes orphans in, and only then may that one
        hear of it. OSError, or word of it to whoever is `waiting`, when the machine refuses.
        """
        if os.fork():
            return False
        between = os.getpid()
        try:
            if os.fork():
                os._exit(0)
        except OSError as error:
            # This process is not the template, though it has all that is its.
            _answer(waiting, error=str(error))
            os._exit(1)
        _await_end(between)
        return True

    # -- spares ----------------------------------------------------------------------------

    def _make_spare(self) -> None:
        ours, theirs = socket.socketpair()
        if self._forked(theirs):
            ours.close()
            self._close()
            _wait_as_spare(theirs)
        theirs.close()
        try:
            answer = json.loads(_receive(ours))
            if answer["error"]:
                raise OSError(answer["error"])
        except BaseException:
            ours.close()
            raise
        self._spares[ours] = int(answer["pid"])
        self._waiting.register(ours, selectors.EVENT_READ)

    def _use_spare(self, body: bytes, streams: Sequence[int]) -> int:
        """The pid of one that does what is asked: one that waits, or that is made for it.

        One that is killed meanwhile closes its connection, so nobody waits for it.
        """
        for _ in range(len(self._spares) + ATTEMPTS):
            if not self._spares:
                self._make_spare()
            spare, pid = next(iter(self._spares.items()))
            try:
                socket.send_fds(spare, [LENGTH.pack(len(body))], streams)
                spare.sendall(body)
                # One that is being killed may still be sent to: its word counts.
                _receive(spare)
            except (OSError, EOFError):
                continue
            else:
                return pid
            finally:
                self._forget_spare(spare)
        raise OSError("new processes end at once")

    def _forget_spare(self, spare: socket.socket) -> None:
        del self._spares[spare]
        self._waiting.unregister(spare)
        spare.close()

    def _close(self) -> None:
        for key in list(self._waiting.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._waiting.close()


def _wait_as_spare(template: socket.socket) -> NoReturn:
    """Until there is something to become, or the template is gone."""
    try:
        # Already here: whoever gets its number may end its group at once.
        os.setpgid(0, 0)
        _answer(template, pid=os.getpid())
        head, streams, _, _ = socket.recv_fds(template, LENGTH.size, STREAMS)
        if not head:
            os._exit(0)
        request = _understand(_exactly(template, LENGTH.unpack(head)[0]), len(streams))
        _answer(template, pid=os.getpid())
        template.close()
    except (OSError, EOFError):
        os._exit(1)
    _become(request, streams)


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
    """Import them, rehearse what they would load later, and keep all that out of the collector.

    UsageError names the one that cannot be.
    """
    # All names first: to import one of them may take seconds.
    for name in modules:
        if importlib.util.find_spec(name.partition(".")[0] or "?") is None:
            raise UsageError(
                f"--preload {name}: there is no such module; give the name that `import` takes, of "
                "one that is installed, lies beside the script or is on PYTHONPATH"
            )
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            why = "".join(traceback.format_exception_only(error)).strip()
            raise UsageError(f"--preload {name} cannot be imported: {why}") from error
        _preloaded.append(name)
    _run_hooks("before_fork")
    threads = [each.name for each in threading.enumerate()[1:]]
    if threads:
        raise UsageError(
            f"what is preloaded ({', '.join(modules)}) started a thread ({threads[0]}), so workers "
            "cannot be forked off it; start it where the script begins, or leave that --preload out"
        )
    # What waits to be written would be written by every worker.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
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
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--listen", metavar="SOCKET", help="path of a Unix socket")
    place.add_argument("--connection", type=int, metavar="FD", help="an open one, to the parent")
    parser.add_argument("--preload", action="append", required=True, metavar="MODULE")
    parser.add_argument("--folder", help="where modules are looked for first")
    parser.add_argument("--spares", type=int, default=0, help="how many wait, forked already")
    options = parser.parse_args()
    if options.folder and not sys.flags.safe_path:
        sys.path[0] = options.folder
    if options.connection is None:
        _serve_all(options.listen, options.preload, options.spares)
    else:
        _serve_parent(options.connection, options.preload, options.spares)


def _serve_all(path: str, modules: Sequence[str], spares: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        os.chmod(path, 0o600)
        preload(modules)
        # Whoever comes earlier is refused, so nobody waits for imports without knowing it.
        listener.listen(64)
        print("ready", flush=True)  # noqa: T201
        Template(listener=listener, spares=spares).serve()


def _serve_parent(connection: int, modules: Sequence[str], spares: int) -> None:
    die_with_parent(int(os.environ["EDL_LAUNCHER_PID"]))
    peer = socket.socket(fileno=connection)
    peer.set_inheritable(False)
    try:
        preload(modules)
    except UsageError as error:
        _answer(peer, error=str(error))
        traceback.print_exc()
        sys.exit(1)
    _answer(peer)
    Template([peer], spares=spares).serve()
    # As a worker ends: Python would take torch apart piece by piece.
    os._exit(0)


if __name__ == "__main__":
    # By its own name, under which what is forked off it looks for what was preloaded.
    importlib.import_module("edl.launch.template").main()
