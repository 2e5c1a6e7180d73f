"""Bad input, as a user would give it: a clear word to whoever asked, and no harm to a running job.

One job trains through the whole module. After each test that comes near it, it must still train
with the same workers; at the end it is scaled and finishes, and every sample was used once.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edl import client
from edl.client import Job
from edl.errors import Refused, UsageError
from edl.launch.access import Access
from edl.launch.jobs import find_job
from edl.store.service import StoreAnswer, StoreGet
from tests.e2e.conftest import (
    HOLDS,
    UNTIDY,
    WRAPPED,
    Terminal,
    closed,
    gone,
    listening,
    pids,
    shout,
    started,
)
from tests.e2e.test_cli import PATIENCE_S, TRAINS, WAITS, until
from tests.integration.judge import read_journal

JOURNAL = Path(__file__).resolve().parents[1] / "integration" / "scripts" / "journal.py"
SAMPLES, BATCH = 1003, 50

IMPORTS_NOTHING = "import a_module_that_is_nowhere\n"
CRASHES_AT_ONCE = TRAINS.replace(
    "        loss = ",
    "        if edl.rank() == 0: raise ValueError('a banana in the first step')\n        loss = ",
)
HANGS_IN_A_STEP = TRAINS.replace(
    "        loss = ", "        if edl.step() == 3: threading.Event().wait(300)\n        loss = "
)


@pytest.fixture(scope="module")
def edl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("bad")
    source = str(Path(client.__file__).parents[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDL_HOME", str(folder / "home"))
        patch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
        made = Terminal(folder)
        yield made
        made.close()


@pytest.fixture(scope="module")
def job(edl: Terminal) -> Job:
    """Two workers, which may be 2 to 4, on five slots."""
    log = edl.folder / "log"
    log.mkdir()
    limits = ("-n", "2", "--min", "2", "--max", "4", "--slots", "5", "--gpus", "none")
    script = (str(JOURNAL), "--log", str(log), "--until", str(edl.folder / "end"))
    status, _, err = edl(
        *("run", "-d", "--name", "live", *limits, *script),
        *("--epochs", "1000000", "--pause", "0.05"),
    )
    assert status == 0, err
    made = Job("live")
    until(lambda: made.status().state == "training")
    return made


@pytest.fixture
def live(job: Job) -> Iterator[Job]:
    """The job, which must not notice what is done to it."""
    before = pids(job)
    yield job
    step = job.status().step
    until(lambda: job.status().step > step)
    assert pids(job) == before
    assert job.status().adjustment is None


# -- jobs that cannot start ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.py"], "script 'nowhere.py' does not exist; give the path of a Python file"),
        (["-d", "nowhere.py"], "script 'nowhere.py' does not exist"),
        (["{folder}"], "is a folder; give the path of a Python file"),
        (["-n", "3", "--slots", "2", "{script}"], "2 of 2 (--slots 2) are free"),
        (["-n", "1", "--min", "2", "{script}"], "-n 1 is under --min 2; start at least 2"),
        (["-n", "3", "--max", "2", "{script}"], "-n 3 is over --max 2; start at most 2"),
        (["--min", "3", "--max", "2", "{script}"], "--max 2 is under --min 3"),
        (["-n", "5000", "{script}"], "5000 workers cannot be started; give at most 1024"),
        (["-n", "0", "{script}"], "'0' is not a number of 1 or more"),
        (["--port", "70000", "{script}"], "--port 70000 is no port; give 1 to 65535"),
        (["--name", "live", "{script}"], "job 'live' is running already"),
        (["--name", "../up", "{script}"], "job name '../up' will not do"),
    ],
)
def test_a_job_that_cannot_start_says_why(
    edl: Terminal, live: Job, arguments: list[str], told: str
) -> None:
    script = edl.script("print('never')\n")
    before = sorted((edl.folder / "home/jobs").iterdir())
    words = [each.format(folder=edl.folder, script=script) for each in arguments]
    assert told in edl.refused("run", *words)
    assert sorted((edl.folder / "home/jobs").iterdir()) == before


def test_a_taken_port_is_named(edl: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        err = edl.refused("run", "--port", port, edl.script("print('never')\n"))
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert "choose another port" in err


def test_a_home_that_cannot_be_written_is_named(edl: Terminal) -> None:
    script = edl.script("print('never')\n")
    other = Terminal(edl.folder)
    other.environment["EDL_HOME"] = script
    for words in (["run"], ["run", "-d"]):
        assert f"cannot write {script}/jobs" in other.refused(*words, script)


# -- scripts that fail -----------------------------------------------------------------------


def test_a_script_that_crashes_at_import_is_shown(edl: Terminal) -> None:
    status, _, err = edl("run", "-n", "2", "--name", "imp", edl.script(IMPORTS_NOTHING))
    assert status == 1
    lines = err.splitlines()
    assert lines[0] in [f"edl: worker w{n} of job imp failed first: exit status 1" for n in (0, 1)]
    assert "  ModuleNotFoundError: No module named 'a_module_that_is_nowhere'" in lines
    assert str(edl.folder / "home/jobs/imp/logs") in lines[-2]
    assert lines[-1].startswith("edl: job imp failed")


def test_a_crash_in_the_first_step_shows_the_culprits_and_not_their_peer(edl: Terminal) -> None:
    status, _, err = edl("run", "-n", "3", "--name", "crash", edl.script(CRASHES_AT_ONCE), "1000")
    over = time.time()
    assert status == 1
    folder = edl.folder / "home/jobs/crash"
    notes = sorted(folder.glob("failures/*.txt"), key=lambda each: each.stat().st_mtime)
    culprits = [each.stem for each in notes if "banana" in each.read_text()]
    # The third one may fail too before it is ended.
    assert len(culprits) >= 2
    for culprit, order in zip(culprits[:2], ("first", "too"), strict=True):
        assert f"worker {culprit} of job crash failed {order}: exit status 1" in err
        assert f"edl: its log: {folder}/logs/{culprit}.log" in err
    assert err.count("  ValueError: a banana in the first step") == 2
    assert "GroupBroken" not in err
    assert over - notes[-1].stat().st_mtime < 6.0


def test_an_untidy_script_loses_nothing_at_its_end(edl: Terminal) -> None:
    target = edl.folder / "left"
    run = ("run", "-n", "1", "--output", "all", edl.script(UNTIDY), str(target))
    status, out, err = edl(*run)
    assert status == 1
    assert "no reason" in err
    assert out.index("w0 | a thread") < out.index("w0 | at exit")
    assert target.read_text() + target.with_suffix(".raw").read_text() == "textraw"


def test_a_worker_that_is_gone_holds_nothing_in_the_store(edl: Terminal) -> None:
    taken = edl.folder / "taken"
    edl("run", "-d", "-n", "2", "--name", "held", edl.script(HOLDS + WAITS), str(taken))
    until(taken.exists)
    files = find_job("held")
    access = Access(job="held", store=files.info().store, secret=files.secret())

    def free() -> bool:
        answer = access.ask_launcher(StoreGet(request_id=1, key="mine"))
        return isinstance(answer, StoreAnswer) and answer.value is None

    until(free)
    assert Job("held").running()
    assert edl("stop", "held")[0] == 0


def test_under_torchruns_variables_init_refuses(edl: Terminal) -> None:
    other = Terminal(edl.folder)
    other.environment["TORCHELASTIC_RUN_ID"] = "1"
    status, _, err = other("run", "-n", "1", edl.script(TRAINS), "10")
    assert status == 1
    assert "UsageError: edl.init() under torchrun (TORCHELASTIC_RUN_ID is set)" in err
    assert "run the script with `edl run -n N SCRIPT`" in err


def test_a_model_wrapped_in_ddp_is_refused(edl: Terminal) -> None:
    meeting = str(edl.folder / "meeting")
    status, _, err = edl("run", "-n", "1", "--gpus", "none", edl.script(WRAPPED), meeting)
    assert status == 1
    assert "UsageError: the model is wrapped in DistributedDataParallel" in err
    assert "pass the bare model" in err


# -- requests that cannot be granted ---------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["logs"],
        ["events"],
        ["scale-out", "--add", "1"],
        ["scale-in", "--remove", "1"],
        ["stop"],
    ],
    ids=lambda command: command[0],
)
def test_an_unknown_job_is_told_with_those_that_exist(
    edl: Terminal, live: Job, command: list[str]
) -> None:
    err = edl.refused(command[0], "lice", *command[1:])
    assert "there is no job 'lice'" in err
    assert "live" in err.rpartition("there is ")[2]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("scale-out --add 0", "'0' is not a number of 1 or more"),
        ("scale-out --add -1", "'-1' is not a number of 1 or more"),
        ("scale-out --add x", "'x' is not a number of 1 or more"),
        ("scale-out --add 2000", "give at least 1 and at most 1024"),
        ("scale-out --add 4", "4 more workers need 4 free slots, and 3 of 5"),
        ("scale-out --add 3", "2 workers and 3 more are over --max 4; add at most 2"),
        ("scale-out --gpus localhost:0", "slot localhost:0 is taken by worker"),
        ("scale-out --gpus localhost:3,3", "slot localhost:3 is named twice"),
        ("scale-out --gpus node2:0", "slot node2:0 is on host 'node2'"),
        ("scale-out --gpus nonsense", "'nonsense' is not HOST:INDEX"),
        ("scale-in --remove 0", "'0' is not a number of 1 or more"),
        ("scale-in --remove 1", "1 left of 2 is under --min 2; it can only grow, or end"),
        ("scale-in --remove 2", "leaves none; keep at least one, or end the job with `edl stop`"),
        ("scale-in --workers w0,w1", "leaves none"),
        ("scale-in --workers w7", "worker 'w7' is not in the job; it has w"),
        ("scale-in --gpus localhost:4", "slot localhost:4 has no worker of this job; it has loc"),
        ("scale-in --gpus node2:0", "slot node2:0 has no worker of this job"),
        ("scale-in --workers ,", "scale_in of 0 workers; give at least one"),
        ("logs --worker w7", "job live has no worker 'w7'; there is w0, w1"),
    ],
)
def test_a_request_that_cannot_be_granted_says_why(
    edl: Terminal, live: Job, arguments: str, told: str
) -> None:
    command, *rest = arguments.split()
    assert told in edl.refused(command, "live", *rest)


def test_python_is_told_what_the_command_line_is_told(live: Job) -> None:
    for many in (0, -1):
        with pytest.raises(UsageError, match=f"scale_out of {many} workers"):
            live.scale_out(many)
        with pytest.raises(UsageError, match=f"scale_in of {many} workers"):
            live.scale_in(many)
    with pytest.raises(Refused, match="on host 'node2'"):
        live.scale_out(["node2:0"])
    with pytest.raises(Refused, match="not in the job"):
        live.scale_in(["w7"])


@pytest.mark.parametrize(
    ("secret", "told"),
    [("00" * 32, "could not prove the secret of job 'live'"), ("zz", "secret cannot be read")],
)
def test_a_wrong_secret_opens_nothing(edl: Terminal, live: Job, secret: str, told: str) -> None:
    file = live.folder / "secret"
    right = file.read_text()
    file.write_text(secret)
    try:
        for words in (["status"], ["scale-out", "--add", "1"], ["stop"], ["stop", "--force"]):
            status, _, err = edl(words[0], "live", *words[1:])
            assert status in (1, 2)
            assert told in err
            assert "Traceback" not in err
    finally:
        file.write_text(right)


# -- noise -----------------------------------------------------------------------------------


def test_noise_at_every_port_harms_nobody(edl: Terminal, live: Job) -> None:
    """EDL's ports close a stranger's connection; torch's accept none once their group is built."""
    workers = live.status().workers
    launcher = psutil.Process(workers[0].pid).ppid()
    ours = [*listening([launcher]), *(worker.address for worker in workers)]
    ports = listening([launcher, *(worker.pid for worker in workers)])
    assert len(ours) == 3
    assert set(ours) < set(ports)
    noise = random.Random(7).randbytes(1 << 20)
    for address in ours:
        with shout(address, noise) as sock:
            assert closed(sock)
    for address in set(ports) - set(ours):
        with pytest.raises(TimeoutError):
            shout(address, noise)
    step = live.status().step
    until(lambda: live.status().step > step + 5)
    for words in (["scale-out", "--add", "1"], ["scale-in", "--remove", "1"]):
        status, _, err = edl(words[0], "live", *words[1:])
        assert status == 0, err


# -- signals ---------------------------------------------------------------------------------


def test_more_workers_than_slots_work_when_allowed_and_end_by_ctrl_c(edl: Terminal) -> None:
    crowd = ("-n", "2", "--slots", "1", "--oversubscribe")
    process, job = started(edl, "crowd", *crowd, edl.script(TRAINS), "100000")
    record = job.scale_out(1)
    assert record is not None
    slots = [worker.slot for worker in job.status().workers]
    assert len(slots) == 3
    assert len(set(slots)) == 1
    workers = list(pids(job).values())
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert gone(workers)
    assert [event.what for event in job.events()][-1] == "job.stopped"
    assert "job crowd stopped" in out


def test_ctrl_c_twice_kills_workers_that_hang_in_a_step(edl: Terminal) -> None:
    process, job = started(edl, "hang", "-n", "1", edl.script(HANGS_IN_A_STEP), "100000")
    workers = list(pids(job).values())
    until(lambda: job.status().step == 3)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout is not None
    assert any("once more kills" in line for line in process.stdout)
    assert not gone(workers)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert gone(workers)


def test_sigterm_ends_a_job_at_its_steps_end(edl: Terminal) -> None:
    process, job = started(edl, "term", "-n", "2", edl.script(TRAINS), "100000")
    workers = list(pids(job).values())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert gone(workers)
    assert [event.what for event in job.events()][-1] == "job.stopped"


def test_a_killed_edl_run_leaves_no_orphans(edl: Terminal) -> None:
    process, job = started(edl, "kill", "-n", "2", edl.script(TRAINS), "100000")
    workers = list(pids(job).values())
    process.kill()
    until(lambda: gone(workers))
    assert edl.read("status", "kill")["state"] == "killed"
    status, _, err = edl("scale-out", "kill", "--add", "1")
    assert status == 1
    assert "job kill is over (its launcher was killed)" in err


# -- afterwards ------------------------------------------------------------------------------


def test_the_job_that_saw_it_all_is_scaled_and_finishes(edl: Terminal, job: Job) -> None:
    assert sorted(pids(job)) == ["w0", "w1"]
    assert job.scale_out(1) is not None
    assert job.scale_in(1) is not None
    (edl.folder / "end").touch()
    assert job.wait(PATIENCE_S).state == "finished"
    journal = read_journal(edl.folder / "log")
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(max(journal.used()) + 1)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
    assert set(journal.sizes()) == {2, 3}
