"""The command line from `edl run` to the exit status, with scripts that train or do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl import client
from edl.errors import JobFailed, JobFinished, Refused, UsageError

PATIENCE_S = 90.0

WAITS = """
import os, signal, sys, threading
print("begun", os.environ["EDL_WORKER"], flush=True)
signal.signal(signal.SIGTERM, lambda *a: sys.exit(0))
threading.Event().wait(120)
"""
# Without a framework: what is tried here is none of its business.
TRAINS = """
import os, sys, threading
import numpy as np
import edl.plain as edl

steps, gate = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
edl.init()
w, rng = np.zeros(4), np.random.default_rng(0)
edl.share(w=w)
loader = edl.DataLoader((rng.normal(size=(120, 4)), rng.normal(size=120)), batch_size=12, seed=0)
for epoch in edl.epochs(steps // 10):
    for x, y in loader:
        error = x @ w - y
        loss = np.square(error).mean()
        w -= 0.01 * edl.average(2 * x.T @ error / len(y))
        # Slow, so that there is time to scale, until the gate is opened.
        threading.Event().wait(0.0 if gate and os.path.exists(gate) else 0.04)
        edl.report(loss=loss)
        edl.notify_batch_end()
edl.shutdown()
print("trained", edl.step(), "steps", flush=True)
"""


class Edl:
    """`edl` in a home of its own."""

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
            [sys.executable, "-m", "edl.cli.main", *arguments],
            env=self.environment,
            # Anywhere: a job is found from every directory.
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def read(self, *arguments: str) -> Any:
        status, out, err = self(*arguments, "--json")
        assert status == 0, err
        return json.loads(out)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for path in (self.folder / "home" / "jobs").glob("*/job.json"):
            if not (path.parent / "result.json").exists():
                self("stop", "--force", path.parent.name)


@pytest.fixture
def edl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edl]:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    source = str(Path(client.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
    made = Edl(tmp_path)
    yield made
    made.close()


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


# -- scripts that do not train ---------------------------------------------------------------


def test_a_detached_job_is_listed_followed_and_stopped(edl: Edl) -> None:
    status, out, err = edl("run", "-d", "-n", "2", "--name", "mnist", edl.script(WAITS))
    assert (status, out) == (0, "mnist\n"), err
    until(lambda: edl("logs", "mnist")[1].count("begun") == 2)
    assert sorted(edl("logs", "mnist")[1].splitlines()) == ["w0 | begun w0", "w1 | begun w1"]
    assert edl("logs", "mnist", "--worker", "w1")[1] == "begun w1\n"
    (row,) = edl.read("ps")
    assert (row["job"], row["running"], row["state"]) == ("mnist", True, "starting")
    follower = edl.start("logs", "-f", "mnist")
    status, out, _ = edl("stop", "mnist")
    assert status == 0
    assert "job mnist stopped" in out
    follower.communicate(timeout=PATIENCE_S)
    assert follower.returncode == 0
    assert edl.read("status", "mnist")["state"] == "stopped"
    assert edl.read("status", "mnist")["result"]["exit_status"] == 143
    status, _, err = edl("stop", "mnist")
    assert status == 1
    assert "job mnist is over (stopped)" in err


def test_a_detached_job_that_cannot_start_says_so_at_once(edl: Edl) -> None:
    status, out, err = edl("run", "-d", "nowhere.py")
    assert (status, out) == (2, "")
    assert "edl: script 'nowhere.py' does not exist" in err
    status, _, err = edl("run", "-d", "-n", "4", "--slots", "2", edl.script(WAITS))
    assert status == 2
    assert "2 of 2" in err


def test_a_job_killed_by_force_ends_at_once(edl: Edl) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS.replace(
        "signal.signal(signal.SIGTERM, lambda *a: sys.exit(0))", ""
    )
    edl("run", "-d", "-n", "1", "--name", "j", edl.script(deaf))
    until(lambda: "begun" in edl("logs", "j")[1])
    assert edl("stop", "--force", "j")[0] == 0
    assert edl.read("status", "j")["state"] == "stopped"


def test_a_workers_log_that_is_not_there_is_told_with_those_that_are(edl: Edl) -> None:
    edl("run", "-n", "1", "--name", "j", edl.script("print('x')"))
    status, _, err = edl("logs", "j", "--worker", "w7")
    assert status == 2
    assert "no worker 'w7'; there is w0" in err


def test_an_unknown_job_is_told_with_those_that_exist(edl: Edl) -> None:
    edl("run", "-n", "1", "--name", "j", edl.script("print('x')"))
    status, _, err = edl("status", "k")
    assert status == 2
    assert "no job 'k'" in err
    assert "there is j" in err


def test_a_foreign_secret_is_not_accepted(edl: Edl) -> None:
    edl("run", "-d", "-n", "1", "--name", "j", edl.script(WAITS))
    secret = edl.folder / "home/jobs/j/secret"
    right = secret.read_text()
    secret.write_text("00" * 32)
    status, _, err = edl("scale-out", "j", "--add", "1", "--timeout", "5")
    secret.write_text(right)
    assert status == 1
    assert "could not prove the secret of job 'j'" in err


def test_a_job_that_does_not_train_cannot_be_scaled(edl: Edl) -> None:
    edl("run", "-d", "-n", "1", "--name", "j", edl.script(WAITS))
    status, _, err = edl("scale-out", "j", "--add", "1", "--timeout", "1")
    assert status == 1
    assert "no leader yet" in err


def test_run_from_python_tells_why_a_job_failed(edl: Edl) -> None:
    script = edl.script("raise ValueError('a banana')\n")
    with pytest.raises(JobFailed, match="a banana"):
        client.run(script, workers=1)
    with pytest.raises(UsageError, match="does not exist"):
        client.run("nowhere.py")


# -- scripts that train ----------------------------------------------------------------------


def training(edl: Edl, name: str) -> bool:
    return bool(edl.read("status", name)["state"] == "training")


def test_a_job_that_trains_is_scaled_out_and_in_and_finishes(edl: Edl) -> None:
    gate = edl.folder / "open"
    process = edl.start(
        "run", "-n", "1", "--name", "j", "--max", "3", edl.script(TRAINS), "1500", str(gate)
    )
    until(lambda: (edl.folder / "home/jobs/j/job.json").exists())
    until(lambda: training(edl, "j"))

    status, out, err = edl("scale-out", "j", "--add", "1", "--json", "--request-id", "mine")
    assert status == 0, err
    record = json.loads(out)
    assert (record["joined"], record["size"]) == (["w1"], 2)
    # The same id is carried out once.
    again = json.loads(edl("scale-out", "j", "--add", "1", "--json", "--request-id", "mine")[1])
    assert again == record
    shown = edl.read("status", "j")
    assert [worker["id"] for worker in shown["workers"]] == ["w0", "w1"]
    assert shown["generation"] == 2

    status, _, err = edl("scale-out", "j", "--add", "2")
    assert status == 2
    assert "over --max 3" in err
    status, _, err = edl("scale-in", "j", "--remove", "2")
    assert status == 2
    assert "leaves none" in err
    status, _, err = edl("scale-in", "j", "--workers", "w9")
    assert status == 2
    assert "it has w0, w1" in err
    status, _, err = edl("scale-out", "j", "--gpus", "node2:0")
    assert status == 2
    assert "host 'node2'" in err

    status, out, err = edl("scale-in", "j", "--gpus", "localhost:1")
    assert status == 0, err
    assert out.startswith("scale_in: w1 left; 1 worker from step ")

    lines = edl("events", "j", "--request", "mine")[1]
    assert next(line.split()[1] for line in lines.splitlines()) == "adjust.accepted"
    assert "adjust.complete" in lines

    gate.touch()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "trained 1500 steps" in out
    assert "job j finished: 1500 steps" in out
    result = edl.read("status", "j")["result"]
    assert (result["state"], len(result["adjustments"])) == ("finished", 2)
    status, _, err = edl("scale-out", "j", "--add", "1")
    assert status == 1
    assert "job j is over (finished)" in err


def test_python_can_do_what_the_command_line_does(edl: Edl) -> None:
    job = client.run(edl.script(TRAINS), "100000", workers=2, min_workers=2)
    assert job.name == "train-1"
    until(lambda: job.status().state == "training")
    with pytest.raises(Refused, match="under --min 2"):
        job.scale_in(1)
    record = client.scale_out(job, ["localhost:5"])
    assert record is not None
    assert record.joined == ("w2",)
    assert "localhost:5" in [worker.slot for worker in job.status().workers]
    record = client.scale_in("train-1", ["localhost:5"])
    assert record is not None
    assert record.left == ("w2",)
    result = job.stop()
    assert result is not None
    assert (result.state, len(result.adjustments)) == ("stopped", 2)
    assert [event.what for event in job.events()][-1] == "job.stopped"
    with pytest.raises(JobFinished):
        job.scale_out(1)


def test_a_newcomer_that_crashes_is_told_to_its_requester(edl: Edl) -> None:
    crash = "import os\nif os.environ['EDL_REQUEST']:\n    raise ValueError('I am new')\n"
    job = client.run(edl.script(crash + TRAINS), "100000", workers=1)
    until(lambda: job.status().state == "training")
    status, _, err = edl("scale-out", job.name, "--add", "1")
    assert status == 1
    assert "was undone, and the job trains on without it: w1 went away" in err
    step = job.status().step
    until(lambda: job.status().step > step)
    job.stop()


def test_ctrl_c_ends_a_job_at_its_steps_end(edl: Edl) -> None:
    process = edl.start("run", "-n", "2", "--name", "j", edl.script(TRAINS), "100000")
    until(lambda: (edl.folder / "home/jobs/j/job.json").exists())
    until(lambda: training(edl, "j"))
    process.send_signal(2)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "once more kills" in out
    assert [each["what"] for each in events(edl, "j")][-1] == "job.stopped"


def test_a_crash_that_meets_every_worker_is_shown_with_two_tracebacks(edl: Edl) -> None:
    # Whoever has rank 0 raises: when the first is gone, the next one does.
    script = TRAINS.replace(
        "        loss = ", "        if edl.rank() == 0 and edl.step() > 5: 1 / 0\n        loss = "
    )
    status, _, err = edl("run", "-n", "3", edl.script(script), "1000")
    assert status == 1
    assert err.count("ZeroDivisionError: division by zero") == 2
    assert "failed first: exit status 1" in err
    assert "failed too: exit status 1" in err
    assert "failed on the same batch" in err


def test_a_crash_of_one_worker_is_shown_with_its_traceback_and_survived(edl: Edl) -> None:
    script = TRAINS.replace(
        "        loss = ",
        "        if os.environ['EDL_WORKER'] == 'w1' and edl.step() > 5: 1 / 0\n        loss = ",
    )
    status, out, _ = edl("run", "-n", "2", "--name", "j", edl.script(script), "60")
    log = edl.folder / "home/jobs/j/logs/w1.log"
    assert status == 0
    assert "trained 60 steps" in out
    assert out.count("Traceback (most recent call last)") == 1
    assert "edl: worker w1 failed at step 6: ZeroDivisionError: division by zero" in out
    assert f"edl: its log: {log}" in out
    assert "finished: 60 steps" in out
    assert "w1 failed at step 6 (ZeroDivisionError: division by zero)" in out.splitlines()[-1]
    shown = edl("status", "j")[1]
    assert "lost worker w1 at step 6: ZeroDivisionError: division by zero" in shown
    assert str(log) in shown
    (failure,) = json.loads(edl("status", "j", "--json")[1])["failures"]
    assert failure["worker"] == "w1"
    assert failure["error"] == "ZeroDivisionError: division by zero"
    assert failure["log"] == str(log)


def events(edl: Edl, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in edl("events", name, "--json")[1].splitlines()]


DATA = """
import os, time
import edl.plain as edl

edl.init()
told = os.path.join(os.environ["EDL_JOB_DIR"], "events.jsonl")
for _ in edl.DataLoader(list(range(25)), batch_size=10, epochs=2):
    while "job.started" not in (open(told).read() if os.path.exists(told) else ""):
        time.sleep(0.02)  # until the launcher has heard of this job
    edl.notify_batch_end()
edl.shutdown()
"""


def test_an_audit_tells_what_was_used_and_what_no_log_tells(edl: Edl) -> None:
    assert edl("run", "-n", "2", "--name", "j", edl.script(DATA))[0] == 0
    status, out, _ = edl("audit", "j")
    assert status == 0
    assert "exactly once: 6 steps in 2 epochs, by the logs of 2 workers" in out
    told = edl.read("audit", "j")
    assert list(told) == ["job", "exact", "unused", "epochs", "steps", "logs", "torn", "fault"]
    assert list(told["epochs"][0].items()) == [
        ("epoch", 0),
        ("state", "complete"),
        ("steps", 3),
        ("samples", 25),
        ("used", 25),
        ("twice", 0),
        ("never", 0),
        ("earlier", 0),
        ("unused", 0),
        ("fault", ""),
    ]
    for log in (edl.folder / "home/jobs/j/audit").glob("*.log"):
        log.write_bytes(log.read_bytes()[:-4])
    status, out, _ = edl("audit", "j")
    assert status == 1
    assert "no log tells of step" in out


LEAVES = """
import edl.torch as edl

edl.init()
loader = edl.DataLoader(list(range(40)), batch_size=10)
for _ in edl.epochs(2):
    for number, _ in enumerate(loader):
        edl.notify_batch_end()
        if number == 2:  # as a framework does that counts a step that was done again
            break
edl.shutdown()
"""


def test_an_audit_of_epochs_that_end_early_says_what_was_left_unused(edl: Edl) -> None:
    assert edl("run", "-n", "2", "--name", "j", edl.script(LEAVES))[0] == 0
    status, out, _ = edl("audit", "j")
    assert status == 0
    assert "exactly once" not in out
    assert "20 samples of 2 epochs were left unused" in out
    assert edl.read("audit", "j")["unused"] == 20
    assert edl("audit", "j", "--strict")[0] == 1


def test_a_job_without_an_audit_log_says_why(edl: Edl) -> None:
    assert edl("run", "-n", "1", "--name", "j", "--no-audit", edl.script(DATA))[0] == 0
    status, _, err = edl("audit", "j")
    assert status == 2
    assert "started with --no-audit" in err
