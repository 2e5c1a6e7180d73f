"""Workers die at every named point of a migration, in which some stay for one step and then go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Start
from tests.integration.orders import Doomed
from tests.integration.test_switch_deaths import product

# Before the switch, in the step that everybody is in, and as the leavers go. Who comes where:
# the stayer is the one that leads, unless the leader moves; then it is its heir.
MOVE = {
    "built": ("stayer", "leaver", "joiner"),
    "recorded": ("leader",),
    "decided": ("stayer", "leaver"),
    "switched": ("stayer", "leaver"),
    "sending": ("source",),
    "receiving": ("joiner",),
    "moved": ("source", "joiner"),
    "entering": ("stayer", "leaver", "joiner"),
    "levelled-in": ("stayer", "leaver", "joiner"),
    "settle": ("stayer", "leaver", "joiner"),
    "settled": ("stayer", "joiner"),
    "through": ("leaver",),
    "let-go": ("leaver",),
    "goodbye": ("leaver",),
    "departing": ("leaver",),
    "released": ("leaver",),
    "parting": ("stayer", "joiner"),
    "parted": ("stayer", "joiner"),
}
# The leader moves: it leads through the step, and hands over after it.
MOVE_LEADER = {
    "recorded": ("leaver",),
    "switched": ("leaver", "heir"),
    "entering": ("leaver", "heir", "joiner"),
    "settle": ("leaver", "heir", "joiner"),
    "through": ("leaver",),
    "let-go": ("leaver",),
    "goodbye": ("leaver",),
    "released": ("leaver",),
    "handed": ("heir",),
    "taken": ("heir",),
    "elected": ("heir",),
    "parted": ("heir", "joiner"),
}


def die_in_a_migration(
    doomed: Doomed, point: str, role: str, leavers: list[str], request_id: str = "move"
) -> None:
    """The one in this role dies at the point, and the requester is told what came of it."""
    members, leader = doomed.members(), doomed.leader()
    stayers = [worker for worker in members if worker not in leavers]
    joiners = {f"w{doomed.next + index}" for index in range(len(leavers))}
    source = stayers[0] if stayers else members[0]
    heir = source if leader in leavers else leader
    roles = {"leader": leader, "leaver": leavers[0], "joiner": min(joiners), "heir": heir}
    roles |= {"source": source, "stayer": heir}
    victim = roles[role]
    doomed.order(victim, point)
    answer = doomed.migrate(leavers, request_id)
    assert doomed.obeyed(victim) == victim
    doomed.train(3)
    present = set(doomed.members())
    if answer.what == "adjusted":
        assert present == {*stayers, *joiners} - {victim}
        assert set(answer.left) == set(leavers)
    elif answer.what == "undone":
        # Leavers stay, unless they had gone when the failure came.
        assert {*stayers} - {victim} <= present <= {*members} - {victim}
    else:
        # Its leader took the request with it, and whoever was to leave is gone by now.
        assert leader == victim
        assert not present & {victim, *joiners}


CHAIN = [
    ("receiving", "joiner"),
    ("switched", "leaver"),
    ("let-go", "leaver"),
    ("settle", "joiner"),
    ("parted", "stayer"),
]


def test_deaths_in_one_migration_after_another(start: Start, tmp_path: Path) -> None:
    doomed = Doomed(start, tmp_path, workers=6)
    for number, (point, role) in enumerate(CHAIN):
        leader = doomed.leader()
        going = [worker for worker in doomed.members() if worker != leader][-1:]
        die_in_a_migration(doomed, point, role, going, f"move-{number}")
    doomed.finish(survivors=set(doomed.members()))


def test_deaths_as_one_leader_after_another_moves(start: Start, tmp_path: Path) -> None:
    doomed = Doomed(start, tmp_path, workers=6)
    for number, (point, role) in enumerate(
        [("through", "leaver"), ("goodbye", "leaver"), ("handed", "heir"), ("settle", "joiner")]
    ):
        die_in_a_migration(doomed, point, role, [doomed.leader()], f"move-{number}")
    doomed.finish(survivors=set(doomed.members()))


@pytest.mark.slow
@pytest.mark.parametrize(("point", "role"), product(MOVE))
def test_death_in_a_migration(start: Start, tmp_path: Path, point: str, role: str) -> None:
    doomed = Doomed(start, tmp_path, workers=3)
    die_in_a_migration(doomed, point, role, ["w2"])
    doomed.finish(survivors=set(doomed.members()))


@pytest.mark.slow
@pytest.mark.parametrize(("point", "role"), product(MOVE_LEADER))
def test_death_in_a_migration_of_the_leader(
    start: Start, tmp_path: Path, point: str, role: str
) -> None:
    doomed = Doomed(start, tmp_path, workers=3)
    die_in_a_migration(doomed, point, role, ["w1", "w2"])
    doomed.finish(survivors=set(doomed.members()))


@pytest.mark.slow
@pytest.mark.parametrize("role", ["leaver", "joiner"])
@pytest.mark.parametrize("point", ["switched", "entering", "settle"])
def test_death_where_everybody_moves(start: Start, tmp_path: Path, point: str, role: str) -> None:
    if (point, role) == ("switched", "joiner"):
        point = "receiving"
    doomed = Doomed(start, tmp_path, workers=2)
    die_in_a_migration(doomed, point, role, ["w0", "w1"])
    doomed.finish(survivors=set(doomed.members()))
