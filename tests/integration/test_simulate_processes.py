"""Several policies in a process each: outcomes in order, and nobody left behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from edl.cli.simulate_runs import Watch, run_policies
from edl.errors import EdlError, UsageError
from edl.simulator.jobs import Trace
from edl.simulator.outcome import Outcome
from edl.simulator.setting import Setting
from tests.unit.outcomes import an_outcome, done

pytestmark = pytest.mark.paired

SETTING = Setting(nodes=1, gpus_per_node=4)
Progress = Callable[[int, int], None] | None


def play(trace: Trace, policy: str, setting: Setting, *, progress: Progress = None) -> Outcome:
    """What a policy's name says; the trace's name is a folder, where each leaves its process."""
    folder = Path(trace.name)
    (folder / policy).write_text(str(os.getpid()))
    assert progress is not None
    progress(1, 2)
    if policy == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if policy == "leaves":
        os._exit(3)
    if policy == "refuses":
        raise UsageError("models.csv:3: a is 'x'")
    if policy == "fails":
        raise ZeroDivisionError("by zero")
    if policy.startswith("waits"):
        while not (folder / "end").exists():
            threading.Event().wait(0.02)
            progress(1, 2)
    return an_outcome(done("a"), policy=policy)


class Heard(Watch):
    """Remembers, and may act when a policy is heard of first."""

    def __init__(self, act: Callable[[str], None] = lambda policy: None) -> None:
        self.seen: list[str] = []
        self.completed: list[str] = []
        self._act = act

    def at(self, policy: str, done: int, jobs: int) -> None:
        if policy not in self.seen:
            self.seen.append(policy)
            self._act(policy)

    def over(self, policy: str, outcome: Outcome) -> None:
        self.completed.append(policy)


def a_trace(folder: Path) -> Trace:
    return Trace(name=str(folder), jobs=())


def alive(folder: Path, *policies: str) -> list[str]:
    pids = {each: (folder / each).read_text() for each in policies}
    return [each for each, pid in pids.items() if pid and psutil.pid_exists(int(pid))]


def test_outcomes_come_in_the_order_asked_for(tmp_path: Path) -> None:
    heard = Heard(lambda policy: (tmp_path / "end").touch() if policy == "b" else None)
    wanted = ["waits", "b", "c"]
    found = run_policies(play, a_trace(tmp_path), wanted, SETTING, watch=heard, processes=2)
    assert [outcome.policy for outcome in found] == wanted
    assert found[1] == an_outcome(done("a"), policy="b")
    assert set(heard.completed) == set(heard.seen) == set(wanted)
    assert len({(tmp_path / policy).read_text() for policy in wanted}) == 3
    assert str(os.getpid()) not in {(tmp_path / policy).read_text() for policy in wanted}


def test_one_policy_needs_no_process(tmp_path: Path) -> None:
    heard = Heard()
    found = run_policies(play, a_trace(tmp_path), ["alone"], SETTING, watch=heard)
    assert [outcome.policy for outcome in found] == heard.seen == heard.completed == ["alone"]
    assert (tmp_path / "alone").read_text() == str(os.getpid())


def test_no_more_run_at_a_time_than_may(tmp_path: Path) -> None:
    # Other tests of this process may have some that last.
    before = set(psutil.Process().children())

    def check(policy: str) -> None:
        assert len(set(psutil.Process().children()) - before) <= 2  # with multiprocessing's own
        (tmp_path / "end").touch()

    wanted = ["waits-1", "waits-2", "waits-3"]
    run_policies(play, a_trace(tmp_path), wanted, SETTING, watch=Heard(check), processes=1)
    assert alive(tmp_path, *wanted) == []


@pytest.mark.parametrize(
    ("policy", "kind", "told"),
    [
        ("killed", EdlError, r"the simulation of policy killed died \(killed by SIGKILL, perhaps"),
        ("leaves", EdlError, r"the simulation of policy leaves died \(exit status 3\)"),
        ("fails", EdlError, r"(?s)the simulation of policy fails failed:.*ZeroDivisionError: by"),
        ("refuses", UsageError, r"policy refuses: models.csv:3: a is 'x'"),
    ],
)
def test_one_that_ends_early_is_told_and_ends_the_others(
    policy: str, kind: type[EdlError], told: str, tmp_path: Path
) -> None:
    heard = Heard(lambda seen: until((tmp_path / "waits").exists))
    with pytest.raises(kind, match=told):
        run_policies(play, a_trace(tmp_path), ["waits", policy], SETTING, watch=heard, processes=2)
    assert alive(tmp_path, "waits", policy) == []
    assert heard.completed == []


def test_ctrl_c_ends_all_at_once(tmp_path: Path) -> None:
    begun: list[float] = []

    def interrupt(policy: str) -> None:
        if (tmp_path / "waits-1").exists() and (tmp_path / "waits-2").exists():
            begun.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)

    class EveryTime(Heard):
        def at(self, policy: str, done: int, jobs: int) -> None:
            interrupt(policy)

    # Where the tests run in the background, a shell has it ignored.
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_policies(
                *(play, a_trace(tmp_path), ["waits-1", "waits-2"], SETTING),
                watch=EveryTime(),
                processes=2,
            )
    finally:
        signal.signal(signal.SIGINT, outside)
    assert alive(tmp_path, "waits-1", "waits-2") == []
    assert time.monotonic() - begun[0] < 5


def hear_ctrl_c() -> None:
    """A shell ignores SIGINT in what it runs in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


SCRIPT = """
import sys
from pathlib import Path
from tests.integration import test_simulate_processes as t

if __name__ == "__main__":
    trace = t.a_trace(Path(sys.argv[1]))
    try:
        t.run_policies(
            t.play, trace, ["waits-1", "waits-2"], t.SETTING, watch=t.Watch(), processes=2
        )
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """In a process of its own, which has started no process yet."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("begun", [False, True])
def test_only_the_parent_speaks_of_ctrl_c(
    begun: bool, parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    """A terminal sends it to everybody at once, also to children that are still importing."""
    if begun:
        until(lambda: all((tmp_path / policy).exists() for policy in ("waits-1", "waits-2")))
    else:
        # The first of them is multiprocessing's own.
        until(lambda: len(psutil.Process(parent.pid).children()) >= 2)
    children = psutil.Process(parent.pid).children()
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.communicate(timeout=60) == ("interrupted\n", "")
    until(lambda: not any(child.is_running() for child in children))


def test_children_end_with_a_parent_that_is_killed(
    parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    wanted = ["waits-1", "waits-2"]
    until(lambda: all((tmp_path / policy).exists() for policy in wanted))
    until(lambda: alive(tmp_path, *wanted) == wanted)
    parent.kill()
    until(lambda: alive(tmp_path, *wanted) == [])


CLUSTER = ("--nodes", "4", "--gpus-per-node", "8")


def edl(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "edl.cli.main", *arguments],
        cwd=Path(__file__).parents[2] / "src",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    )


def test_the_command_from_a_trace_to_a_report(tmp_path: Path) -> None:
    page, table = tmp_path / "out", tmp_path / "jobs.csv"
    both = ("--policy", "tiresias,elastic-tiresias", *CLUSTER)
    files = ("--report", str(page), "--jobs-csv", str(table))
    process = edl("simulate", "--trace", "generate:200", *both, *files, "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert [each["jobs"] for each in told["policies"]] == [200, 200]
    assert told["policies"][1]["adjustments"] > 0
    assert "tiresias: 200 jobs, simulated in" in err
    assert len(table.read_text().splitlines()) == 401
    assert (page / "index.html").read_text().count("<polyline") == 8


def test_the_command_ends_by_ctrl_c_with_nothing_written(tmp_path: Path) -> None:
    both = ("--policy", "elastic-tiresias,tiresias", *CLUSTER)
    files = ("--report", str(tmp_path / "out"), "--jobs-csv", str(tmp_path / "jobs.csv"))
    process = edl("simulate", "--trace", "generate:50000", *both, *files)
    until(lambda: len(psutil.Process(process.pid).children()) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "edl: interrupted\n")
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("everybody", [False, True])
def test_the_command_ends_by_sigterm_while_its_processes_start(everybody: bool) -> None:
    """A child that was told half of what to do would speak of it at length."""
    both = ("--policy", "elastic-tiresias,tiresias", *CLUSTER)
    process = edl("simulate", "--trace", "generate:50000", *both)
    # The first of them is multiprocessing's own; the next has not heard yet what to do.
    until(lambda: len(psutil.Process(process.pid).children()) >= 2)
    children = psutil.Process(process.pid).children()
    (os.killpg if everybody else os.kill)(process.pid, signal.SIGTERM)
    try:
        assert process.communicate(timeout=60) == ("", "")
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    until(lambda: not any(child.is_running() for child in children))


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--trace", "generate:20", "--policy", "fifo", "--nodes", "1", "--gpus-per-node", "8"],
        ["--list-models"],
        ["--help"],
    ],
)
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    """As in `edl simulate ... --json | head`: what nobody reads does not end in a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    # As from a shell, where Python keeps what it writes to a pipe until the end.
    environment = {key: os.environ[key] for key in os.environ if key != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "edl.cli.main", "simulate", *arguments]
    with os.fdopen(writing, "w") as nobody:
        done = subprocess.run(
            command, stdout=nobody, stderr=subprocess.PIPE, text=True, env=environment, timeout=60
        )
    assert done.returncode == 128 + signal.SIGPIPE
    assert "Broken" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_one_line() -> None:
    ask = [sys.executable, "-m", "edl.cli.start", "simulate", "--list-policies"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(ask, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "edl: cannot write standard output: No space left on device\n"
