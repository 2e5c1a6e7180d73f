"""`edl simulate` without its engine: what was asked of it is remembered, and answered by hand."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from edl.cli import simulate as command
from edl.cli.main import main
from edl.cli.simulate_runs import Watch
from edl.simulator.jobs import Trace
from edl.simulator.outcome import Outcome
from edl.simulator.setting import Setting
from tests.unit.outcomes import compared

__all__ = ["ASKED", "CLUSTER", "any_engine", "any_simulate", "jobs", "simulated"]

CLUSTER = ["--nodes", "1", "--gpus-per-node", "4"]
ASKED: list[tuple[Trace, str, Setting]] = []


def any_simulate(
    trace: Trace,
    policy: str,
    setting: Setting,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    ASKED.append((trace, policy, setting))
    if progress is not None:
        progress(1, 3)
    return {outcome.policy: outcome for outcome in compared()}[policy]


def one_after_the_other(
    simulate: object, trace: Trace, policies: list[str], setting: Setting, *, watch: Watch
) -> list[Outcome]:
    """As `run_policies`, without processes."""
    return [any_simulate(trace, policy, setting) for policy in policies]


@pytest.fixture(autouse=True)
def any_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = types.ModuleType("edl.simulator.run")
    engine.__dict__["simulate"] = any_simulate
    engine.__dict__["POLICIES"] = {
        "tiresias": "jobs that got little go first",
        "elastic-tiresias": "the same, and jobs shrink and grow",
    }
    engine.__dict__["QUEUED"] = ("elastic-tiresias",)
    monkeypatch.setitem(sys.modules, "edl.simulator.run", engine)
    monkeypatch.setattr(command, "run_policies", one_after_the_other)
    ASKED.clear()


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "id,submit_s,gpus,duration_s\n"
        "job-a,0,4,100\njob-b,0,2,100\njob-c,50,1,50\nlarge,60,8,10\nnothing,70,1,\n"
    )
    return str(path)


def simulated(trace: str, *more: str, policy: str = "tiresias,elastic-tiresias") -> int:
    return main(["simulate", "--trace", trace, "--policy", policy, *CLUSTER, *more])
