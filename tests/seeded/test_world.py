"""Whole jobs in a fake world, thousands of them: what must hold, holds whatever happens.

Replay a failed one as its fault says: `python -m tests.seeded.replay n [--crash ...]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from edl.config import Settings
from tests.seeded.checkers import check
from tests.seeded.crashes import draw_crash_plan
from tests.seeded.endings import survivors
from tests.seeded.migrations import draw_crash_migrations, draw_migrations
from tests.seeded.plan import Ask, Fault, Plan, draw_big_plan, draw_plan
from tests.seeded.replay import BIG, line
from tests.seeded.withdrawals import with_withdrawals
from tests.seeded.world import run

CHUNKS = 30
SEEDS_PER_CHUNK = 100
CRASH_CHUNKS = 20
MIGRATION_CHUNKS = 5
# What each of these shows as soon as its cure is taken out again. A world that changes makes new
# stories of old seeds: take the cure out, and look for one that shows it, where one does no more.
REMEMBERED = {
    12: "a leader's swap that was done and whose answer was lost, so that nobody leads",
    0: "followers that are never told that they may go",
    17: "a founder whose connection is lost while the first group is built",
    18: "a member that reconnects before it knows that it has entered, and is turned away",
    143: "a hand-over that is lost with its connection",
    176: "a leader that has handed over and still completes the adjustment",
    260: "an undo that does not wait for the store's answer about the generation it gives up",
    412: "a job that ends between the switch and the hand-over, and an heir that tells nobody",
    839: "an old leader that never hears that its successor has taken over",
    873: "an heir that goes before it has the office, when the job ends",
    948: "a founder that hears of the next generation before it hears of the first",
    7005305: "a founder that missed its founding, and enters a generation that fell meanwhile",
    20523: "a key asked for long ago, won from a leader that is well, and followers told late",
}
# The same, in worlds where workers are moved.
REMEMBERED_MIGRATIONS = {
    384: "one whose way to a successor is long, and that is called lost while all train",
    934: "a successor that slept, and calls those lost that wait to be heard",
    7014442: "a founder that missed its founding, and enters a generation that it is to leave",
}
# The same, in worlds where workers are moved and die.
REMEMBERED_BOTH = {
    109: "a leaver that is lost before it has let the others go on, and that nobody counts on",
    2079: "an heir that waits for the store, does not answer, and is called lost",
    21017: "a leader that goes last, and waits for a leaver while its successor should act",
    900690: "a leader that has left and awaits a successor, when the end of the job is told",
    9003548: "a newcomer that is lost, comes back, is lost at once, and outlives its undo",
    7007633: "a leader that has handed over, and says undone of a migration that stands",
    7018338: "a newcomer that wakes after it was lost, and is never told that it is out",
    4105938: "a leader that leaves, whose only successor dies, and a former generation's leavers",
}
# The same, in worlds where workers die.
REMEMBERED_CRASHES = {
    73: "a lost answer to the swap that would have made a survivor the leader",
    266: "a newcomer that never despairs, though nobody is left who could lead",
    370: "a number that the last leader had used for a generation that was undone",
    1056: "a number that a member knows from a leader that the present one has not heard of",
    6183: "an heir whose office nobody needs any more, for the end is told",
    6561: "a lost member that comes back and builds what the failure has undone",
    7167: "a leader that awaits its successor and calls those lost that have turned to it",
    10002116: "an heir that breaks, and an old leader that calls those lost that have turned to it",
    8011056: "a failure that only a leaving leader noticed, and a job that trains on",
    7009171: "an heir that leads late, by a handover that another leader made outdated",
}


def faults_of(plan: Plan, how: str) -> str:
    """What is wrong with one world, and how to see it; empty if nothing is."""
    history = run(plan)
    found = check(history)
    if not found:
        return ""
    lines = "\n".join(f"  {name}: {faults}" for name, faults in found.items())
    return f"seed {plan.seed} failed; replay with: {how}\n{lines}"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_job_keeps_its_promises(chunk: int) -> None:
    seeds = range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)
    found = [faults_of(draw_plan(seed), f"make seeded SEED={seed}") for seed in seeds]
    assert not any(found), "\n".join(fault for fault in found if fault)


@pytest.mark.parametrize("seed", sorted(REMEMBERED))
def test_a_seed_that_showed_a_bug_shows_it_no_more(seed: int) -> None:
    fault = faults_of(draw_plan(seed), f"make seeded SEED={seed}")
    assert not fault, f"{REMEMBERED[seed]}\n{fault}"


def crash_faults(seeds: Iterable[int]) -> list[str]:
    how = "make seeded SEED='{} --crash'"
    found = [faults_of(draw_crash_plan(seed), how.format(seed)) for seed in seeds]
    return [fault for fault in found if fault]


@pytest.mark.parametrize("chunk", range(CRASH_CHUNKS))
def test_every_job_survives_as_long_as_one_worker_does(chunk: int) -> None:
    found = crash_faults(range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK))
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CRASH_CHUNKS, 5 * CRASH_CHUNKS))
def test_every_job_survives_in_many_more_worlds(chunk: int) -> None:
    found = crash_faults(range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("seed", sorted(REMEMBERED_CRASHES))
def test_a_crash_that_showed_a_bug_shows_it_no_more(seed: int) -> None:
    found = crash_faults([seed])
    assert not found, f"{REMEMBERED_CRASHES[seed]}\n{found}"


@pytest.mark.parametrize("chunk", range(MIGRATION_CHUNKS))
def test_every_migrated_job_keeps_its_promises(chunk: int) -> None:
    seeds = range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)
    how = "make seeded SEED='{} --migrate'"
    found = [faults_of(draw_migrations(seed), how.format(seed)) for seed in seeds]
    assert not any(found), "\n".join(fault for fault in found if fault)


@pytest.mark.parametrize("chunk", range(MIGRATION_CHUNKS))
def test_every_migrated_job_survives_as_long_as_one_worker_does(chunk: int) -> None:
    seeds = range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)
    how = "make seeded SEED='{} --crash --migrate'"
    found = [faults_of(draw_crash_migrations(seed), how.format(seed)) for seed in seeds]
    assert not any(found), "\n".join(fault for fault in found if fault)


@pytest.mark.parametrize("draw", [draw_migrations, draw_crash_migrations])
def test_a_requester_that_gives_up_leaves_nothing_half_done(draw: Callable[[int], Plan]) -> None:
    crash = " --crash" if draw is draw_crash_migrations else ""
    how = f"make seeded SEED='{{}}{crash} --migrate --withdraw'"
    found = [
        faults_of(with_withdrawals(draw(seed)), how.format(seed)) for seed in range(SEEDS_PER_CHUNK)
    ]
    assert not any(found), "\n".join(fault for fault in found if fault)


@pytest.mark.parametrize("seed", sorted(REMEMBERED_MIGRATIONS))
def test_a_migration_that_showed_a_bug_shows_it_no_more(seed: int) -> None:
    fault = faults_of(draw_migrations(seed), f"make seeded SEED='{seed} --migrate'")
    assert not fault, f"{REMEMBERED_MIGRATIONS[seed]}\n{fault}"


@pytest.mark.parametrize("seed", sorted(REMEMBERED_BOTH))
def test_a_crash_in_a_migration_that_showed_a_bug_shows_it_no_more(seed: int) -> None:
    fault = faults_of(draw_crash_migrations(seed), f"make seeded SEED='{seed} --crash --migrate'")
    assert not fault, f"{REMEMBERED_BOTH[seed]}\n{fault}"


@pytest.mark.parametrize("founders", [1, 2, 3])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_death_at_any_time_of_a_migration_of_everybody(founders: int, who: str) -> None:
    """Among them a leaver's, after the announcement, where the leader leaves as well."""
    found = []
    for seed in range(24):
        moved = Ask(
            time=1.2,
            kind="move-all",
            count=min(2, founders),
            twice=False,
            again=True,
            fates=("lives",) * min(2, founders),
        )
        plan = Plan(
            seed=seed,
            founders=founders,
            samples=60,
            batch=4,
            epochs=1,
            step_s=0.3,
            context_s=0.3,
            asks=[moved],
            faults=[Fault(kind="kill", who=who, time=2.0 + seed * 0.12, span_s=3.0)],
            settings=Settings(
                silence_s=2.0,
                lease_s=1.0,
                reconnect_s=1.0,
                switch_allowance_s=0.3,
                switch_at_once=0,
                register_timeout_s=3.0,
                build_timeout_s=1.0,
            ),
        )
        found.append(faults_of(plan, "this test"))
    assert not any(found), "\n".join(fault for fault in found if fault)


def parted_plan(seed: int, kind: str, who: str) -> Plan:
    """Two of several workers cannot connect to each other any more, and a third one dies."""
    settings = Settings(
        silence_s=2.0,
        lease_s=1.0,
        reconnect_s=1.0,
        switch_allowance_s=0.3,
        switch_at_once=0,
        register_timeout_s=3.0,
        build_timeout_s=1.0,
    )
    return Plan(
        seed=seed,
        founders=3 + seed % 4,
        samples=80,
        batch=4,
        epochs=1,
        step_s=0.3,
        context_s=0.3,
        launcher=("prompt", "late", "never")[seed % 3],
        faults=[
            Fault(kind=kind, who=who, time=1.5 + 0.1 * seed),
            Fault(kind="kill", who=("leader", "follower")[seed % 2], time=2.0 + 0.1 * seed),
        ],
        settings=settings,
    )


@pytest.mark.parametrize("kind", ["cut forever", "bar forever"])
@pytest.mark.parametrize("who", ["leader", "follower", "two"])
def test_a_pair_that_is_cut_forever_costs_a_worker_and_not_the_job(kind: str, who: str) -> None:
    found = [faults_of(parted_plan(seed, kind, who), "this test") for seed in range(24)]
    assert not any(found), "\n".join(fault for fault in found if fault)


def test_a_worker_that_is_left_out_exits_with_the_reason() -> None:
    reasons = Counter[str]()
    for seed in range(24):
        history = run(parted_plan(seed, "bar forever", "follower"))
        reasons.update(end.why for end in history.exits.values() if "cannot connect" in end.why)
        assert history.state == "finished"
    assert reasons.total() > 12
    assert all("left out after" in why and "failed builds" in why for why in reasons), reasons


@pytest.mark.parametrize("draw", [draw_plan, draw_crash_plan, draw_crash_migrations])
def test_a_fenced_job_stops_everywhere(draw: Callable[[int], Plan]) -> None:
    found = []
    for seed in range(40):
        plan = draw(seed)
        plan.faults.append(Fault(kind="fence", who="any", time=1.0 + 0.2 * seed))
        found.append(faults_of(plan, "this test"))
    assert not any(found), "\n".join(fault for fault in found if fault)


def test_workers_that_reach_the_store_stop_at_once_when_they_are_fenced() -> None:
    fenced = 0
    for seed in range(24):
        plan = parted_plan(seed, "fence", "any")
        plan.faults = plan.faults[:1]
        history = run(plan)
        assert not check(history)
        fenced += bool(history.fenced_at)
        assert max(commit.time for commit in history.commits) < history.fenced_at + 1.0
        assert history.state == ""
        for end in history.exits.values():
            assert end.status == 0
            assert "its generation was deleted from the store" in end.why
    assert fenced == 24


def test_the_migrations_cover_what_can_happen() -> None:
    seen: Counter[str] = Counter()
    for seed in range(200):
        for request in run(draw_migrations(seed)).requests:
            for _, answer in request.finals[:1]:
                seen[f"{request.kind} {answer}"] += 1
    for kind in ("move", "move-leader", "move-all"):
        for answer in ("Adjusted", "Undone", "Finished"):
            assert seen[f"{kind} {answer}"] > 5, seen


# Each takes most of a minute: a thousand members publish their addresses and receive a table.
MORE = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 5)]


@pytest.mark.parametrize("seed", [0, 1, *MORE])
def test_a_job_of_a_thousand_workers_keeps_its_promises(seed: int) -> None:
    fault = faults_of(draw_big_plan(seed, BIG), f"python -m tests.seeded.replay {seed} --big")
    assert not fault, fault


@pytest.mark.parametrize("draw", [draw_plan, draw_crash_plan])
def test_the_same_seed_is_the_same_story(draw: Callable[[int], Plan]) -> None:
    told: list[list[str]] = [[], []]
    for story in told:
        for seed in (3, 4, 5):
            run(draw(seed), lambda *what, into=story: into.append(line(*what)))
    assert told[0] == told[1]
    assert len(told[0]) > 150


def test_the_seeds_cover_what_can_happen() -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        history = run(draw_plan(seed))
        seen[f"state {history.state}"] += 1
        seen["leader changed"] += len({worker for worker, _ in history.leaders}) > 1
        seen["broken epoch"] += bool(history.broken_epochs)
        for said in history.answers.values():
            seen[type(said[0].answer).__name__] += 1
        for end in history.exits.values():
            seen[f"exit {end.status}"] += 1
    for what in ("state finished", "state stopped", "leader changed", "broken epoch"):
        assert seen[what] > 5, seen
    for what in ("Adjusted", "Undone", "Refusal", "Finished", "exit -9"):
        assert seen[what] > 20, seen


def test_the_crashes_cover_what_can_happen() -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        plan = draw_crash_plan(seed)
        history = run(plan)
        seen["recovered"] += history.recovered > 0
        seen["recovered again"] += history.recovered > 1
        seen["took the state of one ahead"] += any(a < b for _, a, b in history.adopted)
        seen["led by another"] += len({worker for worker, _ in history.leaders}) > 1
        seen["told a step"] += any(told for _, _, told in history.told_steps)
        seen["nobody left"] += bool(history.recorded) and not survivors(history)
        seen[f"state {history.state}"] += 1
        for end in history.exits.values():
            seen["went on without"] += "without this worker" in end.why
        for fault in plan.faults:
            seen[fault.kind] += 1
        for said in history.answers.values():
            seen[type(said[0].answer).__name__] += 1
    for what in ("recovered", "led by another", "state finished", "kill", "Adjusted"):
        assert seen[what] > 100, seen
    assert seen["told a step"] > 50, seen
    for what in ("nobody left", "went on without", "state stopped", "Undone"):
        assert seen[what] > 15, seen
    for what in ("freeze", "lapse", "cut store", "cut leader", "cut pair", "isolate", "outage"):
        assert seen[what] > 15, seen
    for what in ("took the state of one ahead", "recovered again"):
        assert seen[what] > 2, seen
