"""A template: a process that has imported what programs need, and is forked into them on demand.

A fresh worker spends seconds of a core on imports; one that is forked off a template is there in
ten milliseconds. `python -m edl.launch.template --listen SOCKET --preload MODULE` serves whoever
may open that socket; `--connection FD` serves one launcher, as `edl run --warm` has it, and ends
with it (see warm.py). A preloaded module may have a function `before_fork`, which is run once when
all of them are imported, and one `after_fork`, run in each new process when its environment is in
place.

Owns: the way of a request, which is a program's name, arguments, environment and folder, three open
files and a permit; and the spares, which are forked already and wait for one. Holds: a template has
one thread, so that a fork copies no lock in use; what is forked finds nothing of it but its
modules: not its connections, signals or random numbers; a spare ends with its template.

Either side may be stopped or swapped out at any moment, so every call has a time limit. A requester
that gives up starts the program by other means, and the template may act on the request later. The
permit keeps it from running twice: it is the reading end of a pipe to which the requester writes
one byte when it has heard the new pid in time. A process that reads end-of-file instead exits.
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
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, NoReturn, TypedDict

from edl.errors import PeerError, UsageError
from edl.launch.boot import exit_status, leave, report
from edl.runtime.lifeline import die_with_parent

__all__ = [
    "ANSWER_S",
    "Request",
    "Template",
    "TemplateSilent",
    "ask",
    "await_ready",
    "main",
    "peer_user",
    "preload",
    "preloaded",
]

LENGTH = struct.Struct("!I")
CREDENTIALS = struct.Struct("iII")  # of SO_PEERCRED: process, user, group
STREAMS = 3
# An environment and arguments; the kernel allows programs far less.
REQUEST_BYTES = 64 * 1024 * 1024
# A launcher serves its store and its users in the thread that asks, so it waits no longer.
ANSWER_S = 5.0
# How long a template waits for all spares that it tries for one request: its requester must still
# be there to hear the answer.
SPARES_S = 0.75 * ANSWER_S
# How long it waits for one of them, before it kills it and forks another.
SPARE_S = 0.3 * ANSWER_S
# How long a requester that has begun to send may take for the rest.
REQUEST_S = 5.0
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


class _Answer(TypedDict, total=False):
    pid: int
    error: str
    silent: bool  # the processes forked for the request did not answer in time


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


class TemplateSilent(PeerError):
    """The template is gone, or did not answer in time, or what it forks does not: leave it.

    A repeated request would wait that long again.
    """


def ask(
    template: socket.socket,
    request: Request,
    streams: tuple[int, int, int],
    *,
    timeout_s: float = ANSWER_S,
) -> int:
    """The pid of the new process.

    TemplateSilent when the template is gone, or it or what it forks does not answer within
    `timeout_s`; PeerError when it could not fork. After either error no process runs the request,
    nor ever will.
    """
    body = json.dumps(asdict(request)).encode()
    deadline = time.monotonic() + timeout_s
    permit, grant = os.pipe()
    try:
        _send_request(template, body, [*streams, permit], deadline)
        answer = json.loads(_receive(template, deadline))
        if not answer["error"]:
            os.write(grant, b"+")
    except TimeoutError as error:
        raise TemplateSilent(
            f"the template of processes has not answered for {timeout_s:g} s"
        ) from error
    except (OSError, ValueError, EOFError) as error:
        raise TemplateSilent(f"the template of processes does not answer: {error}") from error
    finally:
        os.close(permit)
        os.close(grant)
    if answer["error"]:
        kind = TemplateSilent if answer.get("silent") else PeerError
        raise kind(f"the template could not make a process: {answer['error']}")
    return int(answer["pid"])


def peer_user(connection: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket, by the kernel's word."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    user: int = CREDENTIALS.unpack(found)[1]
    return user


def await_ready(template: socket.socket) -> None:
    """Until it has imported everything; UsageError says what it could not."""
    try:
        answer = json.loads(_receive(template, None))
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
                    self._make_spare(time.monotonic() + SPARE_S)
            for key, _ in ready:
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                if peer is self._listener:
                    self._accept(peer)
                elif peer in self._spares:
                    self._forget_spare(peer)
                # One that was closed on the way is a spare that was used.
                elif peer.fileno() >= 0:
                    self._serve_peer(peer)

    def _accept(self, listener: socket.socket) -> None:
        """Whoever is served here runs programs as this user, so nobody else is."""
        peer, _ = listener.accept()
        if peer_user(peer) == os.geteuid():
            self._waiting.register(peer, selectors.EVENT_READ)
        else:
            peer.close()

    def _serve_peer(self, peer: socket.socket) -> None:
        try:
            self._serve_one(peer)
        except (EOFError, ConnectionError, TimeoutError):
            self._waiting.unregister(peer)
            peer.close()

    def _serve_one(self, peer: socket.socket) -> None:
        deadline = time.monotonic() + REQUEST_S
        body, files = _receive_request(peer, deadline)
        try:
            request = _understand(body, len(files))
            if not request.apart:
                _answer(peer, deadline, **self._try_spares(body, files))
            elif self._forked(peer):
                self._become_apart(peer, request, files, deadline)
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            _answer(peer, deadline, error=str(error))
        finally:
            _close_all(files)

    def _become_apart(
        self, peer: socket.socket, request: Request, files: Sequence[int], deadline: float
    ) -> NoReturn:
        """In the new process, which must never go on as a second template."""
        try:
            _answer(peer, deadline, pid=os.getpid())
            self._close()
        except BaseException:
            os._exit(1)
        _become(request, files)

    def _try_spares(self, body: bytes, files: Sequence[int]) -> _Answer:
        try:
            return {"pid": self._use_spare(body, files)}
        except TimeoutError:
            return {"error": "new processes do not answer", "silent": True}
        except (OSError, EOFError) as error:
            return {"error": str(error) or "no answer"}

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
            try:
                _answer(waiting, time.monotonic() + SPARE_S, error=str(error))
            finally:
                os._exit(1)
        _await_end(between)
        return True

    # -- spares ----------------------------------------------------------------------------

    def _make_spare(self, deadline: float) -> None:
        ours, theirs = socket.socketpair()
        if self._forked(theirs):
            ours.close()
            self._close()
            _wait_as_spare(theirs)
        theirs.close()
        try:
            answer = json.loads(_receive(ours, deadline))
            if answer["error"]:
                raise OSError(answer["error"])
        except BaseException:
            ours.close()
            raise
        self._spares[ours] = int(answer["pid"])
        self._waiting.register(ours, selectors.EVENT_READ)

    def _use_spare(self, body: bytes, files: Sequence[int]) -> int:
        """The pid of one that does what is asked: one that waits, or that is made for it.

        One that is killed meanwhile closes its connection, and the next one is tried. One that
        does not answer, since it is stopped or swapped out, is killed; the others may be no better,
        so a new one is forked. TimeoutError when no new one answers either.
        """
        deadline = time.monotonic() + SPARES_S
        silent = False
        for _ in range(len(self._spares) + ATTEMPTS):
            soon = min(deadline, time.monotonic() + SPARE_S)
            if silent or not self._spares:
                self._make_spare(soon)
            waiting = self._spares.items()
            spare, pid = next(reversed(waiting) if silent else iter(waiting))
            try:
                _send_request(spare, body, files, soon)
                # One that is being killed may still be sent to: its word counts.
                _receive(spare, soon)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                silent = True
                if time.monotonic() >= deadline:
                    raise
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
        _answer(template, None, pid=os.getpid())
        body, files = _receive_request(template, None)
        request = _understand(body, len(files))
        _answer(template, None, pid=os.getpid())
        template.close()
    except EOFError:
        os._exit(0)
    except BaseException:
        os._exit(1)
    _become(request, files)


def _understand(body: bytes, files: int) -> Request:
    try:
        if files != STREAMS + 1:
            raise ValueError(f"{files} open files came along, not {STREAMS} and a permit")
        return Request(**json.loads(body))
    except (ValueError, TypeError) as error:
        raise ConnectionError(f"no request: {error}") from error


# -- messages: a length and JSON; a request has open files beside its length -----------------------
# A deadline of None is for the far end of a connection that closes when its owner ends.


def _send_request(
    peer: socket.socket, body: bytes, files: Sequence[int], deadline: float | None
) -> None:
    _limit(peer, deadline)
    socket.send_fds(peer, [LENGTH.pack(len(body))], files)
    _send(peer, body, deadline)


def _receive_request(peer: socket.socket, deadline: float | None) -> tuple[bytes, list[int]]:
    """EOFError when the peer closed the connection; ConnectionError for what is no request."""
    _limit(peer, deadline)
    head, files, _, _ = socket.recv_fds(peer, LENGTH.size, STREAMS + 1)
    try:
        if not head:
            raise EOFError("the connection was closed")
        # Whoever sends byte by byte is understood too.
        (length,) = LENGTH.unpack(head + _exactly(peer, LENGTH.size - len(head), deadline))
        if length > REQUEST_BYTES:
            raise ConnectionError(f"a request of {length} bytes; the limit is {REQUEST_BYTES}")
        return _exactly(peer, length, deadline), files
    except BaseException:
        _close_all(files)
        raise


def _answer(
    peer: socket.socket,
    deadline: float | None,
    *,
    pid: int = 0,
    error: str = "",
    silent: bool = False,
) -> None:
    body = json.dumps({"pid": pid, "error": error, "silent": silent}).encode()
    _send(peer, LENGTH.pack(len(body)) + body, deadline)


def _receive(peer: socket.socket, deadline: float | None) -> bytes:
    (length,) = LENGTH.unpack(_exactly(peer, LENGTH.size, deadline))
    return _exactly(peer, length, deadline)


def _send(peer: socket.socket, data: bytes, deadline: float | None) -> None:
    _limit(peer, deadline)
    peer.sendall(data)


def _exactly(peer: socket.socket, count: int, deadline: float | None) -> bytes:
    found = bytearray()
    while len(found) < count:
        _limit(peer, deadline)
        part = peer.recv(count - len(found))
        if not part:
            raise EOFError("the connection was closed")
        found += part
    return bytes(found)


def _limit(peer: socket.socket, deadline: float | None) -> None:
    """The next call on this socket takes no longer; TimeoutError if there is no time left."""
    if deadline is None:
        peer.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    peer.settimeout(left)


def _close_all(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _await_end(pid: int) -> None:
    """Until this process's first parent has ended, so that its lasting one is known."""
    try:
        end = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([end], [], [])
    os.close(end)


def _become(request: Request, files: Sequence[int]) -> NoReturn:
    status = 1
    *streams, permit = files
    # The requester has given up, and may have started another in this one's place.
    if not os.read(permit, 1):
        os._exit(0)
    os.close(permit)
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
        _answer(peer, None, error=str(error))
        traceback.print_exc()
        sys.exit(1)
    _answer(peer, None)
    Template([peer], spares=spares).serve()
    # As a worker ends: Python would take torch apart piece by piece.
    os._exit(0)


if __name__ == "__main__":
    # By its own name, under which what is forked off it looks for what was preloaded.
    importlib.import_module("edl.launch.template").main()
