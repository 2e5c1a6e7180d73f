"""Processes that are forked off a template are what fresh ones would be, and die alike."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl.client import Job
from edl.errors import UsageError
from edl.launch.template import Request, ask
from tests.contract.servers import until
from tests.integration.conftest import Start
from tests.integration.judge import read_journal

ACCOUNT = """
import json, os, random, signal, sys
import numpy, torch
told = {
    "argv": sys.argv, "cwd": os.getcwd(), "path": sys.path[0], "mine": os.environ.get("MINE"),
    "names": sorted(os.environ), "group": os.getpgid(0) == os.getpid(),
    "signals": [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)],
    "others": [signal.getsignal(signal.SIGINT) is signal.default_int_handler,
               signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN],
    "files": sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{n}")),
    "threads": torch.get_num_threads(), "drawn": torch.rand(1).item(),
    "random": random.random(), "numpy": float(numpy.random.rand()),
    "input": sys.stdin.read(),
}
print(json.dumps(told))
"""


def account(template: str, folder: Path, *, threads: int) -> dict[str, Any]:
    """What a script says of itself that is run by the worker's program off the template."""
    script = folder / "account.py"
    script.write_text(ACCOUNT)
    request = Request(
        module="edl.launch.boot",
        arguments=[str(script), "--lr", "0.1"],
        environment={"MINE": "yes", "OMP_NUM_THREADS": str(threads), "PATH": os.environ["PATH"]},
        folder=str(folder),
        apart=False,
    )
    reading, writing = os.pipe()
    with (
        open(os.devnull, "rb") as nothing,
        open(reading) as said,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        connection.connect(template)
        pid = ask(connection, request, (nothing.fileno(), writing, 2))
        os.close(writing)
        found: dict[str, Any] = json.loads(said.read())
        assert pid > 1
    return found


def test_a_forked_script_finds_what_a_fresh_one_would(template: str, tmp_path: Path) -> None:
    first = account(template, tmp_path, threads=1)
    second = account(template, tmp_path, threads=2)
    script = str(tmp_path / "account.py")
    assert first["argv"] == [script, "--lr", "0.1"]
    assert (first["cwd"], first["path"], first["mine"]) == (str(tmp_path), str(tmp_path), "yes")
    assert {"MINE", "PATH"} <= set(first["names"])
    assert not {"EDL_TEMPLATE", "HOME"} & set(first["names"])
    assert first["group"] is True
    assert first["signals"] == [signal.SIG_DFL] * 3
    assert first["others"] == [True, True]
    assert first["input"] == ""
    assert not [name for name in first["files"] if name.startswith("socket:")]
    assert (first["threads"], second["threads"]) == (1, 2)
    # torch begins at the same number in every fresh process; the others at none.
    assert first["drawn"] == second["drawn"]
    assert first["random"] != second["random"]
    assert first["numpy"] != second["numpy"]


def test_a_program_that_is_not_there_harms_nobody_else(template: str, tmp_path: Path) -> None:
    bad = Request(module="edl.launch.no_such", arguments=(), environment={}, folder="/", apart=True)
    with (
        open(os.devnull, "r+b") as nothing,
        open(tmp_path / "said", "w+b") as said,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        connection.connect(template)
        none = nothing.fileno()
        pid = ask(connection, bad, (none, none, said.fileno()))
        until(lambda: not psutil.pid_exists(pid), "its end")
        assert b"No module named 'edl.launch.no_such'" in (tmp_path / "said").read_bytes()
        # A connection that sends garbage is closed, alone.
        connection.sendall(b"\0\0\0\2{}")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    for garbage in (b"\0", b"\0\0", b"\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\5{"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(template)
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    assert account(template, tmp_path, threads=1)["mine"] == "yes"


CALLER = """
import os, socket, sys
os.setuid(12345)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    print(connection.recv(1), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a process as another user")
def test_template_serves_no_other_user() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = f"{folder}/template"
        command = [sys.executable, "-m", "edl.launch.template", "--listen", path]
        command += ["--preload", "wave"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            # As if the socket's own protection had been lifted.
            os.chmod(path, 0o777)
            calling = [sys.executable, "-c", CALLER, path]
            said = subprocess.run(calling, stdout=subprocess.PIPE, text=True, check=True).stdout
            process.kill()
    assert said == "b''\n"


def test_a_template_that_cannot_be_reached_is_told(
    start: Start, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_TEMPLATE", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"EDL_TEMPLATE=.*cannot be reached.*unset it"):
        start("journal.py", "--log", str(log))


def launcher_of(job: Job) -> psutil.Process:
    return psutil.Process(json.loads((job.folder / "job.json").read_text())["pid"])


def training(start: Start, log: Path, end: Path) -> Job:
    pace = ("--pause", "0.05", "--pause-until", str(end))
    job = start("journal.py", "--log", str(log), "--epochs", "1000", "--until", str(end), *pace)
    until(lambda: job.status().step > 0, "a step")
    return job


LISTENER = """
import os, socket, sys
os.setuid(12345)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    os.chmod(sys.argv[1], 0o777)
    listener.listen()
    print("ready", flush=True)
    accepted, _ = listener.accept()
    print(len(accepted.recv(1 << 16)), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a process as another user")
def test_template_of_another_user_is_given_nothing(
    start: Start, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = f"{folder}/template"
        command = [sys.executable, "-c", LISTENER, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
            assert listener.stdout is not None
            assert listener.stdout.readline() == "ready\n"
            monkeypatch.setenv("EDL_TEMPLATE", path)
            with pytest.raises(UsageError, match="belongs to user 12345"):
                start("journal.py", "--log", str(log))
            assert listener.stdout.readline() == "0\n"


def test_workers_are_the_launchers_children_and_die_with_it(
    start: Start, log: Path, tmp_path: Path
) -> None:
    job = training(start, log, tmp_path / "end")
    launcher = launcher_of(job)
    family = launcher.children(recursive=True)
    workers = {worker.pid for worker in job.status().workers}
    assert workers < {child.pid for child in launcher.children()}
    assert len(family) == 2 * len(workers) + 1  # each with its watchdog, and the template
    launcher.kill()
    gone, alive = psutil.wait_procs(family, timeout=20)
    assert (len(gone), alive) == (5, [])


def test_without_its_template_a_job_starts_workers_afresh(
    start: Start, log: Path, tmp_path: Path
) -> None:
    job = training(start, log, tmp_path / "end")
    workers = {worker.pid for worker in job.status().workers}
    (template,) = (each for each in launcher_of(job).children() if each.pid not in workers)
    template.send_signal(signal.SIGKILL)
    joined = job.scale_out(1)
    assert joined is not None
    assert joined.size == 3
    (tmp_path / "end").touch()
    assert job.wait(60).state == "finished"
    journal = read_journal(log)
    journal.check_exactly_once(samples=1003, epochs=set(range(max(journal.used()) + 1)))
    journal.check_replicas()
    assert "launch.cold" in (job.folder / "launcher.log").read_text()


def test_what_a_worker_leaves_behind_is_reaped(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "leaving.py"
    script.write_text(
        "import os, subprocess, sys\n"
        'code = \'import os, subprocess, sys; p = subprocess.Popen([sys.executable, "-c", ""]);\'\n'
        "code += 'print(p.pid); os._exit(0)'\n"
        "out = subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True)\n"
        "open(sys.argv[1], 'a').write(out.stdout)\n"
        "import edl.torch as edl\n"
        "edl.init()\n"
        "while not os.path.exists(sys.argv[2]): os.sched_yield()\n"
        "edl.shutdown()\n"
    )
    pids, end = tmp_path / "pids", tmp_path / "end"
    job = start(str(script), str(pids), str(end), workers=1)
    until(lambda: pids.exists() and pids.read_text().strip() != "", "the orphan")
    orphan = int(pids.read_text())
    until(lambda: not psutil.pid_exists(orphan), "the orphan's end")
    end.touch()
    assert job.wait(60).state == "finished"


def test_the_template_has_one_thread_of_python(template: str) -> None:
    (process,) = (each for each in psutil.Process().children() if template in each.cmdline())
    # numpy's own pool of threads, which it makes anew after a fork, is the other.
    assert process.num_threads() <= 2
