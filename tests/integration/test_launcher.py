"""The launcher with real processes: crashes, signals, orphans, slots, names and strangers.

The scripts here know nothing of training: what is tried is the care for their processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl.client import Job
from edl.errors import PeerError, WrongSecret
from edl.launch.access import Access
from edl.launch.messages import Release, Reserve, Reserved, Started, StartWorkers
from edl.protocol import messages as m
from edl.types import Address, Gpu
from tests.integration.conftest import SCRIPTS
from tests.integration.moments import running_clock

PATIENCE_S = 30.0

WAITS = """
import os, signal, sys, threading
print("begun", os.environ["EDL_WORKER"], os.getpid(), flush=True)
signal.signal(signal.SIGTERM, lambda *a: sys.exit(0))
threading.Event().wait(120)
"""
DEAF = """
import os, signal, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begun", os.environ["EDL_WORKER"], os.getpid(), flush=True)
while True:
    threading.Event().wait(120)
"""
W1_CRASHES = """
import os, threading
print("begun", flush=True)
def step():
    raise ValueError("the loss is a banana")
if os.environ["EDL_WORKER"] == "w1":
    step()
threading.Event().wait(120)
"""


class Runs:
    """Starts `edl run` in a home of its own, and leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "EDL_HOME": str(folder / "home")}
        self._started: list[subprocess.Popen[str]] = []

    def script(self, text: str, name: str = "train.py") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "edl.cli.main", "run", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def job(self, name: str) -> Path:
        return self.folder / "home" / "jobs" / name

    def pids(self, name: str, count: int) -> list[int]:
        """The workers' pids, once all of them have begun."""
        found: list[int] = []

        def begun() -> bool:
            found.clear()
            for log in self.job(name).glob("logs/*.log"):
                words = log.read_text().split()
                found.extend([int(words[2])] if len(words) == 3 else [])
            return len(found) == count

        until(begun)
        return found

    def result(self, name: str) -> dict[str, object]:
        loaded: dict[str, object] = json.loads((self.job(name) / "result.json").read_text())
        return loaded

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    made = Runs(tmp_path)
    yield made
    made.close()


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def gone(pids: list[int]) -> bool:
    """Whether none of them runs; a zombie that nobody reaped yet does not."""
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            continue
    return True


# -- ends ------------------------------------------------------------------------------------


def test_no_worker_outlives_a_killed_launcher(runs: Runs) -> None:
    process = runs.start("-n", "3", "--name", "j", runs.script(DEAF))
    pids = runs.pids("j", 3)
    process.send_signal(signal.SIGKILL)
    until(lambda: gone(pids))
    job = Job("j")
    # The kernel ends the workers while it is still closing the launcher's files.
    until(lambda: not job.running())
    assert job.status().state == "killed"


def test_the_first_failing_worker_is_shown_and_the_others_end(runs: Runs) -> None:
    status, _, err = runs.run("-n", "3", "--name", "j", runs.script(W1_CRASHES))
    assert status == 1
    assert "worker w1 of job j failed first: exit status 1" in err
    assert 'raise ValueError("the loss is a banana")' in err
    assert str(runs.job("j") / "logs" / "w1.log") in err
    assert "runpy" not in err
    assert "boot.py" not in err
    result = runs.result("j")
    assert (result["state"], result["exit_status"]) == ("failed", 1)
    failure = result["first_failure"]
    assert isinstance(failure, dict)
    assert (failure["worker"], failure["status"]) == ("w1", 1)
    assert failure["traceback"].startswith("Traceback (most recent call last):\n")
    assert failure["traceback"] in (runs.job("j") / "logs/w1.log").read_text()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import nowhere_to_be_found\n", "ModuleNotFoundError"),
        ("def broken(:\n", "SyntaxError"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "killed by SIGSEGV"),
        ("import sys\nsys.exit('no data here')\n", "no data here"),
    ],
)
def test_a_script_that_fails_at_once_fails_the_job(runs: Runs, script: str, words: str) -> None:
    status, _, err = runs.run("-n", "2", runs.script(script))
    assert status == 1
    assert words in err


def test_scripts_that_end_well_are_no_failure(runs: Runs) -> None:
    script = "import sys\nprint('hello', sys.argv[1:])\n"
    status, out, _ = runs.run("-n", "2", "--name", "j", runs.script(script), "--lr", "0.1")
    assert status == 0
    assert out.count("hello ['--lr', '0.1']") == 1
    assert "without training" in out


def test_the_output_of_all_workers_has_their_names(runs: Runs) -> None:
    script = runs.script("print('hello')\n")
    _, out, _ = runs.run("-n", "2", "--output", "all", script)
    assert {"w0 | hello", "w1 | hello"} <= set(out.splitlines())
    _, out, _ = runs.run("-n", "2", "--output", "none", script)
    assert "hello" not in out


# -- signals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_job(runs: Runs, number: signal.Signals, status: int) -> None:
    process = runs.start("-n", "2", "--name", "j", runs.script(WAITS))
    pids = runs.pids("j", 2)
    process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status
    assert "once more kills the workers" in out
    assert gone(pids)
    assert runs.result("j")["state"] == "stopped"


def test_a_second_signal_kills_workers_that_do_not_listen(runs: Runs) -> None:
    process = runs.start("-n", "2", "--name", "j", runs.script(DEAF))
    pids = runs.pids("j", 2)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    # Two signals at once may be one to the kernel.
    assert any("once more kills" in line for line in process.stdout)
    with running_clock() as clock:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert clock() < 2.5, "they were killed only when their time was up"
    assert process.returncode == 130
    assert gone(pids)


def test_workers_that_do_not_listen_are_killed_after_a_while(runs: Runs) -> None:
    process = runs.start("-n", "1", "--name", "j", runs.script(DEAF))
    pids = runs.pids("j", 1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert gone(pids)


def test_what_a_worker_started_ends_with_it(runs: Runs) -> None:
    script = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait(120)"])
print("begun", os.environ["EDL_WORKER"], child.pid, flush=True)
"""
    status, _, _ = runs.run("-n", "1", "--name", "j", runs.script(script))
    assert status == 0
    until(lambda: gone(runs.pids("j", 1)))


def test_workers_do_not_hear_the_terminals_interrupt(runs: Runs) -> None:
    runs.start("-n", "1", "--name", "j", runs.script(WAITS))
    (pid,) = runs.pids("j", 1)
    assert os.getpgid(pid) == pid


def test_a_stop_and_what_it_left_are_told_to_programs(runs: Runs) -> None:
    runs.start("-n", "2", "--name", "j", runs.script(WAITS))
    runs.pids("j", 2)

    def ask(*words: str) -> Any:
        command = [sys.executable, "-m", "edl.cli.main", *words, "--json"]
        done = subprocess.run(
            command, env=runs.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    stopped = ask("stop", "j")
    assert (stopped["job"], stopped["state"]) == ("j", "stopped")
    (row,) = ask("ps")
    assert (row["state"], row["workers"]) == ("stopped", 2)
    shown = ask("status", "j")
    assert (shown["restarts"], shown["checkpoint"]) == (0, None)


def test_grace_that_has_passed_is_a_forced_exit(runs: Runs) -> None:
    log = runs.folder / "log"
    log.mkdir()
    # A step of a minute: there is no boundary within the grace.
    script = (str(SCRIPTS / "journal.py"), "--log", str(log), "--pause", "60")
    process = runs.start("-n", "1", "--name", "j", "--grace", "0.5", *script)
    until((log / "w0.jsonl").exists)
    until(lambda: "intent" in (log / "w0.jsonl").read_text())
    (worker,) = Job("j").status().workers
    os.kill(worker.pid, signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    failures: Any = runs.result("j")["failures"]
    assert [failure["status"] for failure in failures] == [143]


# -- names, ports, strangers -----------------------------------------------------------------


def test_a_second_job_of_the_same_name_is_refused_while_the_first_runs(runs: Runs) -> None:
    script = runs.script(WAITS)
    first = runs.start("-n", "1", "--name", "j", script)
    pids = runs.pids("j", 1)
    status, _, err = runs.run("-n", "1", "--name", "j", script)
    assert status == 2
    assert "job 'j' is running already" in err
    assert not gone(pids)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=PATIENCE_S)
    quick = runs.script("print('again')\n", "quick.py")
    assert runs.run("-n", "1", "--name", "j", quick)[0] == 0
    assert (runs.job("j.old") / "result.json").exists()


def test_a_taken_port_is_told_and_leaves_nothing(runs: Runs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, _, err = runs.run("--name", "j", "--port", port, runs.script(WAITS))
    assert status == 2
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert not runs.job("j").exists()


def test_strangers_at_the_port_harm_nobody(runs: Runs) -> None:
    runs.start("-n", "1", "--name", "j", runs.script(WAITS))
    pids = runs.pids("j", 1)
    job = Job("j")
    info = json.loads((runs.job("j") / "job.json").read_text())
    address = Address.parse(info["store"].removeprefix("edl://"))
    noise = random.Random(7)
    for size in (0, 1, 64, 5000):
        with socket.create_connection((address.host, address.port)) as stranger:
            try:
                stranger.sendall(noise.randbytes(size))
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass
            except OSError:
                pass  # thrown out, as it should be
    with pytest.raises(WrongSecret):
        Access(job="j", store=info["store"], secret=b"another").leader()
    assert job.status().state == "starting"
    assert not gone(pids)


# -- slots -----------------------------------------------------------------------------------


def test_slots_are_reserved_started_and_freed(runs: Runs) -> None:
    runs.start("-n", "1", "--slots", "3", "--name", "j", runs.script(WAITS))
    runs.pids("j", 1)
    info = json.loads((runs.job("j") / "job.json").read_text())
    secret = bytes.fromhex((runs.job("j") / "secret").read_text())
    access = Access(job="j", store=info["store"], secret=secret)
    want = Reserve(request_id="a", count=2, gpus=(), for_s=0.0)
    answer = access.ask_launcher(want)
    assert isinstance(answer, Reserved)
    assert [str(joiner.slot) for joiner in answer.joiners] == ["localhost:1", "localhost:2"]
    assert [joiner.worker for joiner in answer.joiners] == ["w1", "w2"]
    # The same request gets the same answer, another one nothing.
    assert access.ask_launcher(want) == answer
    other = Reserve(request_id="b", count=1, gpus=(), for_s=0.0)
    assert isinstance(access.ask_launcher(other), m.Refusal)
    access.ask_launcher(Release(request_id="a"))
    again = access.ask_launcher(other)
    assert isinstance(again, Reserved)
    assert [joiner.worker for joiner in again.joiners] == ["w3"]
    assert access.ask_launcher(StartWorkers(request_id="b")) == Started(request_id="b")
    runs.pids("j", 2)
    foreign = Reserve(request_id="c", count=0, gpus=(Gpu("node2", 0),), for_s=0.0)
    refusal = access.ask_launcher(foreign)
    assert isinstance(refusal, m.Refusal)
    assert "host 'node2'" in refusal.reason
    nothing = access.ask_launcher(Reserve(request_id="d", count=0, gpus=(), for_s=0.0))
    assert isinstance(nothing, m.Refusal)
    assert isinstance(access.ask_launcher(StartWorkers(request_id="e")), m.Refusal)


def test_a_newcomer_that_fails_does_not_end_the_job(runs: Runs) -> None:
    script = WAITS + "\n"
    script = f"import os\nif os.environ['EDL_REQUEST']: raise ValueError('I am new')\n{script}"
    runs.start("-n", "1", "--name", "j", runs.script(script))
    pids = runs.pids("j", 1)
    info = json.loads((runs.job("j") / "job.json").read_text())
    secret = bytes.fromhex((runs.job("j") / "secret").read_text())
    access = Access(job="j", store=info["store"], secret=secret)
    access.ask_launcher(Reserve(request_id="a", count=1, gpus=(), for_s=0.0))
    access.ask_launcher(StartWorkers(request_id="a"))
    failure = runs.job("j") / "failures" / "w1.txt"
    until(failure.exists)
    log = runs.job("j") / "launcher.log"
    until(lambda: "ended worker=w1" in log.read_text())
    assert not gone(pids)
    assert Job("j").running()


def test_a_launcher_leaks_nothing_from_one_reservation_to_the_next(runs: Runs) -> None:
    script = f"import os, sys\nif os.environ['EDL_REQUEST']: sys.exit(0)\n{WAITS}"
    process = runs.start("-n", "1", "--name", "j", runs.script(script))
    runs.pids("j", 1)
    info = json.loads((runs.job("j") / "job.json").read_text())
    secret = bytes.fromhex((runs.job("j") / "secret").read_text())
    access = Access(job="j", store=info["store"], secret=secret)
    launcher = psutil.Process(process.pid)
    counts: list[int] = []
    log = runs.job("j") / "launcher.log"
    for number in range(5):
        access.ask_launcher(Reserve(request_id=str(number), count=1, gpus=(), for_s=0.0))
        access.ask_launcher(StartWorkers(request_id=str(number)))
        ended = f"ended worker=w{number + 1}"
        until(lambda ended=ended: ended in log.read_text())  # type: ignore[misc]
        until(lambda: launcher.num_fds() <= min(counts or [10**6]))
        counts.append(launcher.num_fds())
        threads = launcher.num_threads()
    # The first may have counted a connection that was just being closed; none is ever higher.
    assert max(counts[1:]) == min(counts[1:])
    assert threads == launcher.num_threads()


def test_a_client_that_finds_no_launcher_says_so(runs: Runs) -> None:
    with pytest.raises(PeerError, match="cannot connect"):
        Access(job="j", store="edl://127.0.0.1:9", secret=b"x").leader()
