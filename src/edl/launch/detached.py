"""A job in a process of its own, which outlives the one that started it.

`start` runs `python -m edl.launch.detached`, gives it the job's description on its standard input,
and waits for one line: the job's name, or why there is none. From then on the job's folder tells
everything; what the launcher has to say goes to launcher.log in it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict

from edl.errors import EdlError, Refused, TimedOut, UsageError
from edl.launch.base import JobSpec
from edl.launch.files import writing
from edl.launch.jobs import JobFolder
from edl.launch.local import LocalLauncher
from edl.launch.template import Request, TemplateSilent, ask, peer_user

__all__ = ["log_to_folder", "main", "start", "stop_on_signals"]

# Names the socket of a template (see template.py) that jobs are to be forked off.
TEMPLATE = "EDL_TEMPLATE"
# Nothing else waits for the template here, and a busy machine may be slow.
TEMPLATE_S = 30.0
KINDS: dict[str, type[EdlError]] = {
    kind.__name__: kind for kind in (EdlError, Refused, UsageError, TimedOut)
}


def start(spec: JobSpec) -> str:
    """Start the job and return its name; raises what `LocalLauncher` raised over there."""
    description = json.dumps(asdict(spec)).encode()
    template = os.environ.get(TEMPLATE, "")
    said, complaints = _forked(description, template) if template else _fresh(description)
    try:
        answer = json.loads(said)
    except ValueError:
        text = complaints.decode(errors="replace").strip()
        raise EdlError(f"the launcher could not start: {text[-2000:]}") from None
    if "error" in answer:
        raise KINDS.get(answer["kind"], EdlError)(answer["error"])
    return str(answer["job"])


def _fresh(description: bytes) -> tuple[bytes, bytes]:
    command = [sys.executable, "-m", "edl.launch.detached"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as child:
        try:
            return child.communicate(description)
        except KeyboardInterrupt:
            # Nobody knows the job's name yet who could stop it. The launcher may be the child's
            # child by now, but it is in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            raise


def _check_owner(connection: socket.socket, template: str) -> None:
    """It is given the environment and open files: UsageError if it is another user's."""
    user = peer_user(connection)
    if user != os.geteuid():
        raise UsageError(
            f"{TEMPLATE}={template} belongs to user {user}, not to you ({os.geteuid()}); unset it, "
            "or start `python -m edl.launch.template --listen` with a path of your own"
        )


def _forked(description: bytes, template: str) -> tuple[bytes, bytes]:
    """The same off a template, whose modules the job's workers will have too."""
    request = Request(
        module="edl.launch.detached",
        arguments=(),
        environment=dict(os.environ),
        folder=os.getcwd(),
        apart=True,
    )
    with (
        tempfile.TemporaryFile() as question,
        tempfile.TemporaryFile() as complaints,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        question.write(description)
        question.seek(0)
        reading, writing = os.pipe()
        with open(reading, "rb") as said:
            try:
                connection.settimeout(TEMPLATE_S)
                connection.connect(template)
                _check_owner(connection, template)
                streams = (question.fileno(), writing, complaints.fileno())
                ask(connection, request, streams, timeout_s=TEMPLATE_S)
            except (OSError, TemplateSilent) as error:
                raise UsageError(
                    f"{TEMPLATE}={template} cannot be reached: {error}; unset it, or start "
                    "`python -m edl.launch.template --listen` with that path"
                ) from error
            finally:
                os.close(writing)
            answer = said.read()
        complaints.seek(0)
        return answer, complaints.read()


def log_to_folder(folder: JobFolder) -> None:
    """What the launcher logs goes to the job's folder, never onto the user's screen."""
    path = folder.path / "launcher.log"
    with writing(path):
        handler = _LogFile(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("edl")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    root.propagate = False


class _LogFile(logging.FileHandler):
    """Drops lines that cannot be written; logging would print a traceback for each."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def stop_on_signals(launcher: LocalLauncher) -> None:
    """The first signal ends the job at its step's end, the second at once."""
    signal.signal(signal.SIGINT, lambda number, frame: launcher.interrupt(number))
    signal.signal(signal.SIGTERM, lambda number, frame: launcher.interrupt(number))
    # A job under nohup is not to hear of its terminal's end.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: launcher.interrupt(number))


def main() -> int:
    fields = json.loads(sys.stdin.read())
    # Once more, while there is one thread: whoever started us must not have to reap us.
    if os.fork():
        os._exit(0)
    try:
        lists = {name: tuple(fields[name]) for name in ("args", "preload")}
        launcher = LocalLauncher(JobSpec(**{**fields, **lists}))
        try:
            log_to_folder(launcher.folder)
        except BaseException:
            launcher.abandon()
            raise
    except EdlError as error:
        _answer({"error": str(error), "kind": type(error).__name__})
        return 1
    stop_on_signals(launcher)
    launcher.start()
    _answer({"job": launcher.folder.name})
    result = launcher.wait()
    launcher.close()
    return result.exit_status if result else 1


def _answer(fields: dict[str, str]) -> None:
    """Say it, and let go of the streams: whoever started us reads until they are closed."""
    os.write(1, json.dumps(fields).encode())
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
