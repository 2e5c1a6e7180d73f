"""The template of one job: spares wait, are used and replaced, and end with their launcher."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edl.errors import UsageError
from edl.launch import warm
from edl.launch.base import WorkerPlan
from edl.launch.jobs import JobFolder
from edl.launch.template import ANSWER_S, Request, TemplateSilent, ask
from edl.launch.warm import TemplateProcess, WarmProcesses, start_template
from edl.types import Gpu, WorkerId
from tests.contract.servers import until


@pytest.fixture(autouse=True)
def no_orphanage() -> Iterator[None]:
    """A launcher takes orphans in for good; this process must not, once it has played one.

    What ends afterwards would stay its zombie, and seem to run to whoever waits for the end.
    """
    yield
    until(lambda: not templates(), "the end of every template")
    prctl = ctypes.CDLL(None).prctl
    assert prctl(warm.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0
    for child in psutil.Process().children():
        if child.status() == psutil.STATUS_ZOMBIE:
            os.waitpid(child.pid, 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    # No framework: what is tried here is the same for every module, and is there at once.
    monkeypatch.setattr(warm, "REHEARSALS", {})
    (tmp_path / "logs").mkdir()
    (tmp_path / "script.py").write_text("import os, sys\nprint('told', 'wave' in sys.modules)\n")
    return JobFolder(tmp_path)


@pytest.fixture
def pool(folder: JobFolder) -> Iterator[WarmProcesses]:
    script = str(folder.path / "script.py")
    found = WarmProcesses(folder, [script], template=template_of(folder, "wave", spares=2))
    yield found
    found.close()


def template_of(folder: JobFolder, *modules: str, spares: int) -> TemplateProcess:
    return start_template(
        folder,
        environment=dict(os.environ),
        modules=modules,
        beside=str(folder.path),
        spares=spares,
    )


def spares(launcher: int) -> list[psutil.Process]:
    """Children that lead a group but no session: the template leads one."""
    children = psutil.Process(launcher).children()
    living = [each for each in children if each.status() != psutil.STATUS_ZOMBIE]
    return [each for each in living if os.getpgid(each.pid) == each.pid != os.getsid(each.pid)]


def runs(process: psutil.Process) -> bool:
    """Not so a zombie: whether somebody hears of its end is not its own affair."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def plan(name: str) -> WorkerPlan:
    environment = {"PATH": os.environ["PATH"]}
    slot = Gpu("localhost", 0)
    return WorkerPlan(worker=WorkerId(name), slot=slot, request_id="", environment=environment)


def test_spares_are_used_and_replaced(pool: WarmProcesses, folder: JobFolder) -> None:
    until(lambda: len(spares(os.getpid())) == 2, "two spares")
    waiting = {each.pid for each in spares(os.getpid())}
    started = [pool.start(plan(name)) for name in ("w0", "w1", "w2")]
    assert set(started[:2]) == waiting, "the spares are the workers"
    assert started[2] not in waiting, "and one more is forked when there is none left"
    ended: dict[str, int] = {}

    def all_ended() -> bool:
        ended.update({each.worker: each.status for each in pool.ended()})
        return len(ended) == 3

    until(all_ended, "three ends")
    assert set(ended.values()) == {0}
    assert {folder.log(WorkerId(w)).read_text() for w in ended} == {"told True\n"}
    until(lambda: len(spares(os.getpid())) == 2, "two new spares")


def test_a_spare_that_is_killed_is_replaced(pool: WarmProcesses) -> None:
    until(lambda: len(spares(os.getpid())) == 2, "two spares")
    killed = [each.pid for each in spares(os.getpid())]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert pool.start(plan("w0")) not in killed
    until(lambda: len(spares(os.getpid())) >= 2, "two new spares")


def templates() -> list[psutil.Process]:
    """Children that lead a session."""
    living = filter(runs, psutil.Process().children())
    return [each for each in living if os.getsid(each.pid) == each.pid]


def end_of(pool: WarmProcesses, *names: str) -> None:
    left = set(names)

    def none_left() -> bool:
        left.difference_update(each.worker for each in pool.ended())
        return not left

    until(none_left, f"the end of {', '.join(names)}")


def test_stopped_template_is_killed_and_workers_are_started_from_nothing(
    pool: WarmProcesses, folder: JobFolder
) -> None:
    until(lambda: len(spares(os.getpid())) == 2, "two spares")
    (template,), waiting = templates(), spares(os.getpid())
    template.suspend()
    pool.start(plan("w0"))
    pool.start(plan("w1"))
    end_of(pool, "w0", "w1")
    assert folder.log(WorkerId("w0")).read_text() == "told False\n"
    assert folder.log(WorkerId("w1")).read_text() == "told False\n"
    # The second start did not wait for a template that is known to be silent.
    (cold,) = pool.cold_starts()
    assert (cold.worker, cold.why) == (
        WorkerId("w0"),
        f"the template of processes has not answered for {ANSWER_S:g} s",
    )
    assert pool.cold_starts() == []
    until(
        lambda: not any(map(runs, [template, *waiting])), "the end of the template and its spares"
    )


def test_stopped_spare_is_killed_and_another_is_forked(
    pool: WarmProcesses, folder: JobFolder
) -> None:
    until(lambda: len(spares(os.getpid())) == 2, "two spares")
    stopped = spares(os.getpid())
    for each in stopped:
        each.suspend()
    pid = pool.start(plan("w0"))
    assert pid not in {each.pid for each in stopped}
    end_of(pool, "w0")
    assert folder.log(WorkerId("w0")).read_text() == "told True\n"
    assert pool.cold_starts() == []
    until(lambda: sum(map(runs, stopped)) == 1, "the end of the silent one")
    for each in filter(runs, stopped):
        each.resume()


def test_template_whose_new_processes_do_not_answer_is_given_up_at_the_first_start(
    folder: JobFolder,
) -> None:
    go = folder.path / "go"
    (folder.path / "stuck.py").write_text(
        "import os, time\n"
        "def wait():\n"
        f"    while not os.path.exists({str(go)!r}):\n"
        "        time.sleep(0.01)\n"
        "    os._exit(0)\n"
        "os.register_at_fork(after_in_child=wait)\n"
    )
    script = str(folder.path / "script.py")
    pool = WarmProcesses(folder, [script], template=template_of(folder, "stuck", spares=0))
    (template,) = templates()
    try:
        pool.start(plan("w0"))
        pool.start(plan("w1"))
        end_of(pool, "w0", "w1")
        (cold,) = pool.cold_starts()
        assert cold.worker == WorkerId("w0")
        assert "new processes do not answer" in cold.why
        until(lambda: not runs(template), "the end of the template")
    finally:
        go.touch()
        pool.close()


def test_request_that_was_given_up_is_not_carried_out_later(folder: JobFolder) -> None:
    made = template_of(folder, "wave", spares=0)
    (template,) = templates()
    template.suspend()
    (folder.path / "said").touch()
    request = Request(
        module="edl.launch.boot",
        arguments=[str(folder.path / "script.py")],
        environment=dict(os.environ),
        folder=str(folder.path),
        apart=False,
    )
    with open(folder.path / "said", "ab") as said:
        with pytest.raises(TemplateSilent, match=r"has not answered for 0\.1 s"):
            ask(made.connection, request, (0, said.fileno(), said.fileno()), timeout_s=0.1)
        template.resume()
        # It acts on what it finds when it goes on, and makes a process, which has no permit.
        made.connection.settimeout(None)
        answer = b""
        while not answer.endswith(b"}"):
            answer += made.connection.recv(4096)
    pid = json.loads(answer[4:])["pid"]
    assert pid > 0
    until(lambda: not psutil.pid_exists(pid) or not runs(psutil.Process(pid)), "its end")
    assert (folder.path / "said").read_bytes() == b""
    made.close()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("no_such_module", None, "--preload no_such_module: there is no such module"),
        ("broken", "import no_such_thing", "cannot be imported: ModuleNotFoundError"),
        ("leaving", "raise SystemExit(3)", "--preload leaving cannot be imported: SystemExit: 3"),
        (
            "busy",
            "import threading as t; t.Thread(target=t.Event().wait, name='mine').start()",
            r"started a thread \(mine\)",
        ),
    ],
)
def test_what_cannot_be_preloaded_is_told_at_once(
    folder: JobFolder, name: str, text: str | None, told: str
) -> None:
    if text is not None:
        (folder.path / f"{name}.py").write_text(text + "\n")
    with pytest.raises(UsageError, match=told):
        template_of(folder, name, spares=1)
    assert not spares(os.getpid())


NO_GRANDCHILDREN = """
import os
fork, template = os.fork, os.getpid()
def refuse():
    if os.getpid() != template:
        raise BlockingIOError(11, "no more processes")
    return fork()
os.fork = refuse
"""


def test_a_machine_that_refuses_processes_gets_no_second_template(folder: JobFolder) -> None:
    (folder.path / "refusing.py").write_text(NO_GRANDCHILDREN)
    template = template_of(folder, "refusing", spares=1)
    (process,) = templates()
    processes = WarmProcesses(folder, [str(folder.path / "script.py")], template=template)
    # Not forked, but started as usual.
    processes.start(plan("w0"))
    until(lambda: bool(processes.ended()), "its end")
    assert folder.log(WorkerId("w0")).read_text() == "told False\n"
    until(lambda: not any(map(runs, process.children())), "a template without children")
    processes.close()


LAUNCHER = """
import os, sys, time
from pathlib import Path
from edl.launch import warm
from edl.launch.jobs import JobFolder
warm.REHEARSALS = {}
kept = warm.start_template(JobFolder(Path(sys.argv[1])), environment=dict(os.environ),
                           modules=["wave"], beside=sys.argv[1], spares=2)
print("ready", flush=True)
time.sleep(600)
"""


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        until(lambda: len(spares(launcher.pid)) == 2, "two spares")
        family = psutil.Process(launcher.pid).children(recursive=True)
        assert len(family) == 3
        launcher.kill()
        launcher.wait()
    began = time.monotonic()
    until(lambda: not any(map(runs, family)), "the end of all of them")
    assert time.monotonic() - began < 10
