"""Members that cannot connect to each other: who is left out, and when."""

from __future__ import annotations

from edl.protocol.messages import GroupFailed
from edl.protocol.topology import Generation, draw_first
from edl.protocol.unreached import UNNAMED, LeftOut, Unreached, unreached_text
from edl.types import WorkerId
from tests.seeded.cast import member

LIMIT = 3


def members(count: int, number: int = 1) -> Generation:
    return draw_first(
        [member(index) for index in range(count)],
        number=number,
        leader=WorkerId("w0"),
        token=1,
    )


def after(builds: int, *reports: tuple[str, str], size: int = 4, limit: int = LIMIT) -> Unreached:
    """So many failed builds with the same reports: (who reports, whom it could not reach)."""
    unreached = Unreached(limit=limit)
    for number in range(builds):
        fail(unreached, members(size, number + 1), *reports)
    return unreached


def fail(unreached: Unreached, target: Generation, *reports: tuple[str, str]) -> None:
    for worker, others in reports:
        unreached.on_failed(target, failed(worker, others))
    unreached.end_build(target, ())


def failed(worker: str, others: str, unproven: str = "") -> GroupFailed:
    return GroupFailed(
        generation=1,
        worker=WorkerId(worker),
        why="timed out",
        unreached=tuple(map(WorkerId, others.split())),
        unproven=tuple(map(WorkerId, unproven.split())),
    )


def left_out(unreached: Unreached, *gone: str, size: int = 4) -> LeftOut | None:
    base = members(size)
    return unreached.leave_out(base, leader=WorkerId("w0"), gone=[WorkerId(w) for w in gone])


def test_nobody_is_left_out_before_the_limit() -> None:
    assert left_out(after(LIMIT - 1, ("w1", "w2"), ("w2", "w1"))) is None


def test_one_end_of_the_pair_is_left_out_at_the_limit() -> None:
    found = left_out(after(LIMIT, ("w1", "w2"), ("w2", "w1")))
    assert found is not None
    assert found.worker == "w2"
    address = members(4).member(WorkerId("w1")).address
    assert found.why == f"w2 cannot connect to w1 at {address}: left out after 3 failed builds"


def test_a_pair_counts_once_a_build_whichever_end_reports_it() -> None:
    assert left_out(after(2, ("w1", "w2"), ("w2", "w1"), ("w1", "w2"))) is None


def test_the_member_that_most_others_do_not_reach_is_left_out() -> None:
    found = left_out(after(LIMIT, ("w1", "w2 w3"), ("w0", "w1")))
    assert found is not None
    assert found.worker == "w1"


def test_the_leader_stays_among_equals() -> None:
    found = left_out(after(LIMIT, ("w1", "w0"), size=2), size=2)
    assert found is not None
    assert found.worker == "w1"


def test_a_leader_that_nobody_reaches_is_left_out() -> None:
    found = left_out(after(LIMIT, ("w1", "w0"), ("w2", "w0"), size=3), size=3)
    assert found is not None
    assert found.worker == "w0"


def test_a_second_exclusion_needs_another_failed_build() -> None:
    """The leader saw both ends of the pair close, and named both: it reaches either of them."""
    reports = (("w1", "w2"), ("w0", "w1 w2"))
    unreached = after(LIMIT, *reports, size=3)
    found = left_out(unreached, size=3)
    assert found is not None
    assert found.worker == "w2"
    assert left_out(unreached, "w2", size=3) is None
    fail(unreached, members(3, LIMIT + 1), ("w0", "w1"))
    again = left_out(unreached, "w2", size=3)
    assert again is not None
    assert again.worker == "w1"


def test_a_pair_without_a_proof_is_left_out_later_than_one_without_a_connection() -> None:
    """A stranger that takes a member's place must not have that member left out soon."""
    unreached = Unreached(limit=LIMIT)
    for build in range(UNNAMED * LIMIT):
        assert left_out(unreached) is None, build
        unreached.on_failed(members(4), failed("w1", "", "w2"))
        unreached.on_failed(members(4), failed("w2", "", "w1"))
        unreached.end_build(members(4), ())
    found = left_out(unreached)
    assert found is not None
    assert found.why == (
        "w2 did not prove the job's secret to w1, or they not to w2: left out after 9 failed builds"
    )


def test_a_cut_pair_counts_before_what_strangers_do() -> None:
    unreached = Unreached(limit=LIMIT)
    for _ in range(LIMIT):
        unreached.on_failed(members(4), failed("w0", "", "w3"))
        unreached.on_failed(members(4), failed("w1", "w2"))
        unreached.end_build(members(4), ())
    found = left_out(unreached)
    assert found is not None
    assert found.worker == "w2"


def test_pairs_of_those_that_are_gone_do_not_count() -> None:
    assert left_out(after(LIMIT, ("w1", "w2")), "w1") is None


def test_a_group_that_was_built_forgets_what_was_before() -> None:
    unreached = after(LIMIT, ("w1", "w2"))
    unreached.forget()
    assert left_out(unreached) is None


def test_a_member_that_fails_by_itself_is_left_out() -> None:
    many = UNNAMED * LIMIT
    assert left_out(after(many - 1, ("w3", ""), ("w1", ""))) is None
    found = left_out(after(many, ("w3", ""), ("w1", "")))  # both do
    assert found == LeftOut(
        WorkerId("w3"), f"w3 cannot build the group: left out after {many} failed builds"
    )


def test_a_failure_that_names_nobody_gives_way_to_one_that_names_a_pair() -> None:
    """The leader went on to the next group, and waited there for members that came no further."""
    found = left_out(after(LIMIT, ("w0", ""), ("w1", "w2"), size=3), size=3)
    assert found is not None
    assert found.worker == "w2"


def test_a_late_failure_is_that_of_members_that_are_still_connecting() -> None:
    unreached = Unreached(limit=1)
    for _ in range(UNNAMED):
        unreached.on_failed(members(3), failed("w0", ""))
        unreached.end_build(members(3), [WorkerId("w1"), WorkerId("w2")])
    found = left_out(unreached, size=3)
    assert found is not None
    assert found.worker == "w2"


def test_silence_of_most_members_is_nobodys_fault() -> None:
    unreached = Unreached(limit=1)
    for _ in range(UNNAMED):
        unreached.end_build(members(3), [WorkerId("w1"), WorkerId("w2")])
    assert left_out(unreached, size=3) is None
    for _ in range(UNNAMED):
        unreached.end_build(members(3), [WorkerId("w1")])
    found = left_out(unreached, size=3)
    assert found is not None
    assert found.worker == "w1"


def test_a_limit_of_zero_leaves_nobody_out() -> None:
    assert left_out(after(50, ("w1", "w2"), limit=0)) is None


def test_names_of_strangers_are_not_repeated() -> None:
    assert unreached_text(WorkerId("w1"), [WorkerId("x")], members(2)) == ""
