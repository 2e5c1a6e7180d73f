"""Workers die at every named point of a switch of generation: nothing is lost, and whoever asked
for the change is told what became of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Start
from tests.integration.orders import Doomed

# Of a scale-out: who comes to which point. The source sends its state to the joiner.
OUT = {
    "prepare": ("leader", "source", "elder", "joiner"),
    "built": ("leader", "source", "elder", "joiner"),
    "recording": ("leader",),
    "recorded": ("leader",),
    "deciding": ("leader", "source", "elder"),
    "decided": ("leader", "source", "elder"),
    "switch": ("leader", "source", "elder"),
    "switched": ("leader", "source", "elder"),
    "sending": ("source",),
    "receiving": ("joiner",),
    "moved": ("source", "joiner"),
    "entering": ("leader", "source", "elder", "joiner"),
    "levelled-in": ("leader", "source", "elder", "joiner"),
    "entered": ("leader", "source", "elder", "joiner"),
}
# Of a scale-in of a worker that does not lead. It builds nothing, and moves nowhere.
IN = {
    "prepare": ("leader", "source", "leaver"),
    "built": ("leader", "source"),
    "recording": ("leader",),
    "recorded": ("leader",),
    "deciding": ("leader", "source", "leaver"),
    "decided": ("leader", "source"),
    "departing": ("leaver",),
    "released": ("leaver",),
    "switch": ("leader", "source"),
    "switched": ("leader", "source"),
    "entering": ("leader", "source"),
    "entered": ("leader", "source"),
}
# Of a scale-in of the leader, which hands its office to the heir.
IN_LEADER = {
    "prepare": ("leaver", "heir", "elder"),
    "built": ("heir", "elder"),
    "recording": ("leaver",),
    "recorded": ("leaver",),
    "deciding": ("leaver", "heir", "elder"),
    "decided": ("heir", "elder"),
    "departing": ("leaver",),
    "released": ("leaver",),
    "handed": ("heir",),
    "taken": ("heir",),
    "elected": ("heir",),
    "switch": ("heir", "elder"),
    "switched": ("heir", "elder"),
    "entering": ("heir", "elder"),
    "entered": ("heir", "elder"),
}


def product(cases: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(point, role) for point, roles in cases.items() for role in roles]


def die_in_a_scale_out(doomed: Doomed, point: str, role: str, request_id: str = "grow") -> None:
    """The one in this role dies at the point, and the requester is told what came of it."""
    members, joiner, victim = doomed.members(), doomed.victim("joiner"), doomed.victim(role)
    doomed.order(victim, point)
    answer = doomed.scale_out(request_id)
    assert doomed.obeyed(victim) == victim
    stay = {*members, joiner} - {victim} if answer.what == "adjusted" else {*members} - {victim}
    if answer.what == "adjusted":
        assert answer.joined == (joiner,)
    doomed.train(3)
    assert set(doomed.members()) == stay


def die_in_a_scale_in(
    doomed: Doomed, point: str, role: str, leaver: str, request_id: str = "shrink"
) -> None:
    members, led = doomed.members(), doomed.leader() == leaver
    stayers = [worker for worker in members if worker != leaver]
    named = {"leaver": leaver, "heir": stayers[0], "source": stayers[0]}
    victim = stayers[-1] if led and role == "elder" else named.get(role) or doomed.victim(role)
    doomed.order(victim, point)
    answer = doomed.scale_in(leaver, request_id)
    assert doomed.obeyed(victim) == victim
    if answer.what == "refused":
        # Its leader took the request with it, and whoever was to leave is gone by now.
        assert led
        assert victim == leaver
    if answer.what == "adjusted":
        assert answer.left == (leaver,)
    gone = {victim, leaver} if answer.what == "adjusted" else {victim}
    doomed.train(3)
    assert set(doomed.members()) == {*members} - gone


# A few of them in one job, which is quicker than a job for each.
CHAINS = {
    "before the switch": [("prepare", "elder"), ("recorded", "leader"), ("built", "joiner")],
    "in the switch": [("sending", "source"), ("receiving", "joiner"), ("switched", "leader")],
}


@pytest.mark.parametrize("chain", [*CHAINS])
def test_deaths_in_one_scale_out_after_another(start: Start, tmp_path: Path, chain: str) -> None:
    doomed = Doomed(start, tmp_path, workers=3)
    for number, (point, role) in enumerate(CHAINS[chain]):
        die_in_a_scale_out(doomed, point, role, f"grow-{number}")
    doomed.finish(survivors=set(doomed.members()))


def test_deaths_in_one_scale_in_after_another(start: Start, tmp_path: Path) -> None:
    doomed = Doomed(start, tmp_path, workers=5)
    die_in_a_scale_in(doomed, "deciding", "leaver", "w4", "shrink-0")
    die_in_a_scale_in(doomed, "departing", "leaver", doomed.leader(), "shrink-1")
    die_in_a_scale_in(doomed, "handed", "heir", doomed.leader(), "shrink-2")
    doomed.finish(survivors=set(doomed.members()))


@pytest.mark.slow
@pytest.mark.parametrize(("point", "role"), product(OUT))
def test_death_in_a_scale_out(start: Start, tmp_path: Path, point: str, role: str) -> None:
    doomed = Doomed(start, tmp_path, workers=3)
    die_in_a_scale_out(doomed, point, role)
    doomed.finish(survivors=set(doomed.members()))


@pytest.mark.slow
@pytest.mark.parametrize("point", [point for point, roles in OUT.items() if "source" in roles])
def test_death_of_a_leader_that_sends(start: Start, tmp_path: Path, point: str) -> None:
    doomed = Doomed(start, tmp_path, workers=2, leader="w0")
    die_in_a_scale_out(doomed, point, "leader")
    doomed.finish(survivors=set(doomed.members()))


@pytest.mark.slow
@pytest.mark.parametrize(("point", "role"), product(IN))
def test_death_in_a_scale_in(start: Start, tmp_path: Path, point: str, role: str) -> None:
    doomed = Doomed(start, tmp_path, workers=3)
    die_in_a_scale_in(doomed, point, role, "w2")
    doomed.finish(survivors=set(doomed.members()))


@pytest.mark.slow
@pytest.mark.parametrize(("point", "role"), product(IN_LEADER))
def test_death_in_a_scale_in_of_the_leader(
    start: Start, tmp_path: Path, point: str, role: str
) -> None:
    doomed = Doomed(start, tmp_path, workers=3)
    die_in_a_scale_in(doomed, point, role, "w1")
    doomed.finish(survivors=set(doomed.members()))


TOGETHER = ("built", "recorded", "decided", "switched", "entering")


@pytest.mark.parametrize(
    "point",
    [p if p == "recorded" else pytest.param(p, marks=pytest.mark.slow) for p in TOGETHER],
)
def test_leader_and_joiner_die_in_the_same_moment(start: Start, tmp_path: Path, point: str) -> None:
    doomed = Doomed(start, tmp_path, workers=3)
    doomed.order("w1", f"{point}+newcomers")
    answer = doomed.scale_out("grow")
    assert doomed.obeyed("w1") == "w1"
    doomed.dead.append("w3")
    doomed.train(3)
    assert set(doomed.members()) == {"w0", "w2"}
    # Once the others have moved, the switch has happened, and what follows is a failure of its own.
    assert answer.what == "undone" or point in ("decided", "switched", "entering")
    doomed.finish(survivors={"w0", "w2"})


@pytest.mark.parametrize("then", [pytest.param("elected", marks=pytest.mark.slow), "recorded"])
def test_each_new_leader_dies_as_soon_as_it_leads(start: Start, tmp_path: Path, then: str) -> None:
    """At its election, or when the store has its first generation; two workers are left of five."""
    doomed = Doomed(start, tmp_path, workers=5)
    doomed.order("anyone-1", "elected")
    doomed.order("anyone-2", then)
    doomed.order("w1", "committed")
    for order in ("w1", "anyone-1", "anyone-2"):
        doomed.obeyed(order)
    assert len(set(doomed.dead)) == 3
    doomed.train(3)
    doomed.finish(survivors={f"w{number}" for number in range(5)} - set(doomed.dead))
