"""Whole jobs with a slow worker, in a fake world: each policy, and every checker content."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.seeded.checkers import check
from tests.seeded.history import Committed, History
from tests.seeded.plan import Ask, Fault, Plan
from tests.seeded.world import run


def plan(policy: str, *, shards: tuple[int, ...] = ()) -> Plan:
    """Three workers, of which w1 takes twice as long for a sample."""
    made = Plan(seed=3, founders=3, samples=1000, batch=20, epochs=1, step_s=0.1, context_s=0.5)
    # Steps of these worlds are short, and jobs too.
    made.settings = replace(made.settings, stragglers=policy, straggler_s=0.0)
    made.shards = shards
    made.slow = {"w1": 2.0}
    return made


def last_step(history: History) -> dict[str, int]:
    """Who used how many samples in the last full step."""
    full: dict[int, list[Committed]] = {}
    for commit in history.commits:
        full.setdefault(commit.step, []).append(commit)
    step = max(step for step, of in full.items() if sum(len(c.indexes) for c in of) == 20)
    return {str(commit.worker): len(commit.indexes) for commit in full[step]}


def test_a_slow_worker_ends_up_with_half_a_share() -> None:
    history = run(plan("rebalance"))
    assert check(history) == {}
    assert last_step(history) == {"w0": 8, "w1": 4, "w2": 8}


@pytest.mark.parametrize("shards", [(300, 300, 400), (20,) * 50])
def test_shares_of_partitions_are_smaller_too_until_an_epochs_end(shards: tuple[int, ...]) -> None:
    history = run(plan("rebalance", shards=shards))
    assert check(history) == {}
    halves = [c for c in history.commits if c.worker == "w1" and len(c.indexes) == 4]
    # What was handed out before it was found stays with it, and is read by it at the end.
    assert len(halves) >= 15


def test_a_warned_of_worker_keeps_its_share() -> None:
    history = run(plan("warn"))
    assert check(history) == {}
    assert last_step(history) == {"w0": 7, "w1": 7, "w2": 6}


def test_a_slow_worker_is_scaled_in_without_anybody_asking() -> None:
    history = run(plan("remove"))
    assert check(history) == {}
    assert last_step(history) == {"w0": 10, "w2": 10}


def test_a_slow_leader_removes_itself() -> None:
    made = plan("remove")
    made.slow = {"w0": 2.0, "w1": 1.0}
    history = run(made)
    assert check(history) == {}
    assert len(last_step(history)) == 2


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("time", [2.5, 3.5, 5.0])
def test_shares_stay_the_same_for_everybody_through_a_death(who: str, time: float) -> None:
    made = plan("rebalance")
    made.faults = [Fault(kind="kill", who=who, time=time)]
    assert check(run(made)) == {}


def test_shares_stay_the_same_for_everybody_through_a_scale_out() -> None:
    made = plan("rebalance")
    made.asks = [Ask(time=2.0, kind="out", count=1, twice=False, again=False, fates=("lives",))]
    history = run(made)
    assert check(history) == {}
    assert last_step(history)["w1"] < min(
        count for worker, count in last_step(history).items() if worker != "w1"
    )
