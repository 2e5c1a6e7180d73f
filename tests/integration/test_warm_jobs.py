"""A job with a warm pool, from `edl run --warm` to its end: what is forked is a worker like any."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl.client import run
from edl.errors import AdjustmentFailed, EdlError
from tests.contract.servers import until
from tests.integration.conftest import SCRIPTS, Start
from tests.integration.test_warm import runs, spares


class Pool:
    """One job of the script that gives an account of its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(SCRIPTS / "account.py", folder / "account.py")
        (folder / "beside.py").write_text("print('told by the template')\n")
        script = str(folder / "account.py")
        self.job = run(
            script, str(folder), "--lr", "1", workers=1, warm=1, preload=["beside"], timeout_s=90.0
        )
        info = json.loads((self.job.folder / "job.json").read_text())
        self.launcher = psutil.Process(info["pid"])
        until(lambda: self.job.status().step > 0, "a step")

    def account(self, worker: str) -> dict[str, Any]:
        until((self.folder / f"{worker}.json").exists, f"word of {worker}")
        found: dict[str, Any] = json.loads((self.folder / f"{worker}.json").read_text())
        return found

    def pid(self, worker: str) -> int:
        return next(each.pid for each in self.job.status().workers if each.id == worker)

    def spare(self) -> int:
        """The process that waits."""

        def waiting() -> list[int]:
            workers = {each.pid for each in self.job.status().workers}
            return [each.pid for each in spares(self.launcher.pid) if each.pid not in workers]

        # What was seen counts: the one that is killed may be gone at a second look.
        seen: list[list[int]] = []

        def one_waits() -> bool:
            seen.append(waiting())
            return len(seen[-1]) == 1

        until(one_waits, "one that waits")
        return seen[-1][0]

    def template(self) -> psutil.Process:
        sessions = [each for each in self.launcher.children() if os.getsid(each.pid) == each.pid]
        (template,) = sessions
        return template

    def scale_out(self) -> float:
        """How long it took."""
        began = time.monotonic()
        assert self.job.scale_out(1) is not None
        return time.monotonic() - began


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EDL_TEMPLATE", raising=False)
    # As most have it: what is printed waits to be written.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    made = Pool(tmp_path)
    yield made
    with contextlib.suppress(EdlError):
        if made.job.running():
            made.job.stop(force=True)


def test_a_warm_job_from_its_founder_to_its_end(pool: Pool) -> None:
    # The founder is forked as well, and what is forked finds what a fresh process would.
    waiting = pool.spare()
    warm_s = pool.scale_out()
    assert pool.pid("w1") == waiting
    first, second = pool.account("w0"), pool.account("w1")
    for told in (first, second):
        assert told["argv"] == [str(pool.folder / "account.py"), str(pool.folder), "--lr", "1"]
        assert (told["name"], told["preloaded"]) == ("__main__", True)
        assert told["threads"][0] == told["threads"][1]
        assert (told["total"], told["made_elsewhere"]) == (1 << 20, True)
    assert (second["worker"], second["slot"]) == ("w1", "localhost:1")
    assert first["random"] != second["random"]
    assert first["numpy"] != second["numpy"]
    # Each has a log of its own, written at once, without what the template said.
    logs = [(pool.job.folder / "logs" / f"{w}.log").read_text() for w in ("w0", "w1")]
    assert logs == ["not flushed\n"] * 2
    assert (pool.job.folder / "template.log").read_text() == "told by the template\n"

    # A newcomer that fails, and one that is killed while it waits, are their own affair.
    (pool.folder / "fail").touch()
    with pytest.raises(AdjustmentFailed):
        pool.job.scale_out(1)
    (pool.folder / "fail").unlink()
    killed = pool.spare()
    os.kill(killed, signal.SIGKILL)
    until(lambda: pool.spare() != killed, "another that waits")

    # A notice of preemption reaches a forked worker.
    os.kill(pool.pid("w1"), signal.SIGTERM)
    until(lambda: [w.id for w in pool.job.status().workers] == ["w0"], "w1 to leave")

    # Without its template the next one is started from nothing, and the pool is gone.
    template, waiting = pool.template(), pool.spare()
    template.kill()
    until(lambda: not psutil.pid_exists(waiting), "the end of those that wait")
    cold_s = pool.scale_out()
    assert warm_s < 0.5 * cold_s, f"warm {warm_s:.2f} s, cold {cold_s:.2f} s"
    (pool.folder / "end").touch()
    assert pool.job.wait(60).state == "finished"


def test_job_whose_template_is_stopped_still_answers_grows_and_stops(pool: Pool) -> None:
    template = pool.template()
    pool.spare()
    template.suspend()
    assert pool.job.status().step > 0
    joined = pool.job.scale_out(1)
    assert joined is not None
    assert joined.size == 2
    # What is preloaded is imported by a template alone.
    assert pool.account("w1")["preloaded"] is False
    (cold,) = [event for event in pool.job.events() if event.what == "worker.cold_start"]
    assert cold.fields["worker"] == "w1"
    assert "has not answered for" in str(cold.fields["why"])
    until(lambda: not runs(template), "the end of the template")
    pool.job.stop()
    assert pool.job.wait(60).state == "stopped"


@pytest.mark.parametrize("force", [False, True])
def test_job_whose_template_is_stopped_can_be_stopped(pool: Pool, force: bool) -> None:
    template = pool.template()
    template.suspend()
    pool.job.stop(force=force)
    assert pool.job.wait(60).state == "stopped"
    until(lambda: not runs(template), "the end of the template")


@pytest.mark.paired
@pytest.mark.parametrize("how", ["success", "failure", "Ctrl-C", "stop --force", "SIGKILL"])
def test_nothing_of_the_pool_outlives_the_job(start: Start, tmp_path: Path, how: str) -> None:
    job = start("account.py", str(tmp_path), workers=1, warm=2)
    launcher = psutil.Process(json.loads((job.folder / "job.json").read_text())["pid"])
    until(lambda: job.status().step > 0, "a step")
    until(lambda: len(spares(launcher.pid)) == 3, "one that works and two that wait")
    family: list[psutil.Process] = []

    def complete() -> bool:
        family[:] = launcher.children(recursive=True)
        return len(family) == 5

    until(complete, "a template, one that works, its watchdog, and two that wait")
    match how:
        case "success":
            (tmp_path / "end").touch()
        case "failure":
            os.kill(job.status().workers[0].pid, signal.SIGKILL)
        case "Ctrl-C":
            launcher.send_signal(signal.SIGINT)
        case "stop --force":
            job.stop(force=True)
        case "SIGKILL":
            launcher.kill()
    until(lambda: not any(map(runs, [launcher, *family])), "the end of all of them")


REFUSED = """
import torch
from edl.errors import UsageError
from edl.torch import rehearsal

def refused():
    try:
        rehearsal.before_fork()
    except UsageError as error:
        return str(error)

rehearsal.PATIENCE_S = 1.0
print(refused())
torch.cuda._initialized = True
print(refused())
torch.cuda._initialized = False
torch.set_num_threads(2)
torch.ones(1 << 20).sum()
print(refused())
"""


@pytest.mark.paired
def test_what_torch_workers_cannot_be_forked_off_is_refused() -> None:
    command = [sys.executable, "-c", REFUSED]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    sound, gpu, threads = said.splitlines()
    assert sound == "None"
    assert "opened a GPU" in gpu
    assert "computed with torch on several threads" in threads
