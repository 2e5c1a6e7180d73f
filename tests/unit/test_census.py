"""What the ends of processes mean for a job."""

from __future__ import annotations

import json

import pytest

from edl.launch.base import Ended
from edl.launch.census import EXPLAIN_LAST_S, EXPLAIN_S, VACANT_S, Census, Judged
from edl.protocol.election import write_leader
from edl.protocol.messages import Happened
from edl.protocol.recorded import write_recorded
from edl.protocol.topology import Generation
from edl.types import Address, Gpu, Member, WorkerId

W0, W1, W2 = WorkerId("w0"), WorkerId("w1"), WorkerId("w2")
LED = write_leader(W0, Address("127.0.0.1", 1))


def happened(what: str, request_id: str = "", /, **fields: str | int | float) -> Happened:
    return Happened(
        seq=1, what=what, request_id=request_id, generation=1, step=5, fields=dict(fields)
    )


def training() -> Census:
    census = Census([W0, W1])
    census.on_leader(LED, 0.0)
    for worker in (W0, W1):
        census.on_started(worker, "")
    census.on_event(happened("job.started"))
    return census


def generation(number: int, *members: WorkerId) -> bytes:
    return json.dumps({"number": number, "members": list(members)}).encode()


def joining(census: Census) -> None:
    census.on_started(W2, "4f2")
    census.on_event(happened("adjust.accepted", "4f2", kind="scale_out", workers="w2"))


def ended(worker: WorkerId, status: int) -> Ended:
    return Ended(worker=worker, status=status, at=0.0)


def judged(census: Census, worker: WorkerId, status: int, *, later: float = 0.0) -> list[Judged]:
    census.on_ended(ended(worker, status), 100.0)
    return census.judge(100.0 + later)


@pytest.mark.parametrize("status", [1, -9, 143])
def test_a_member_that_dies_is_lost_and_the_job_goes_on(status: int) -> None:
    census = training()
    (judgement,) = judged(census, W1, status)
    assert judgement.lost
    assert not judgement.failed
    assert census.open
    assert census.working() == 1
    assert not census.deserted(200.0)


def test_a_member_that_dies_before_training_begins_fails_the_job() -> None:
    census = Census([W0, W1])
    for worker in (W0, W1):
        census.on_started(worker, "")
    (judgement,) = judged(census, W1, 1)
    assert judgement.failed


def test_word_of_the_first_generation_may_come_after_a_members_death() -> None:
    census = Census([W0, W1])
    census.on_leader(LED, 0.0)
    for worker in (W0, W1):
        census.on_started(worker, "")
    assert judged(census, W1, -9) == []
    census.on_generation(generation(1, W0, W1))
    (judgement,) = census.judge(100.1)
    assert judgement.lost


def test_a_dead_member_that_the_others_have_left_behind_is_lost() -> None:
    census = training()
    census.on_generation(generation(2, W0))
    assert census.size == 1
    (judgement,) = judged(census, W1, 1)
    assert judgement.lost


def test_a_newcomer_that_the_store_told_of_first_stays_a_member() -> None:
    census = training()
    joining(census)
    census.on_generation(generation(2, W0, W1, W2))
    census.on_event(happened("adjust.switching", "4f2", at=7))
    assert census.is_member(W2)
    assert not census.has_left(W2)


def test_a_process_that_the_others_took_for_dead_is_expelled_and_a_leaver_is_not() -> None:
    census = training()
    assert census.expelled() == set()
    census.on_generation(generation(2, W0))
    assert census.expelled() == {W1}
    assert census.pending() == []
    census.on_dismissed(W1)
    assert census.expelled() == set()
    census = training()
    census.on_event(happened("adjust.accepted", "5a1", kind="scale_in", workers="w1"))
    census.on_generation(generation(2, W0))
    assert census.expelled() == set()


def test_whoever_stays_for_the_newcomers_first_step_has_not_left_with_the_switch() -> None:
    census = training()
    census.on_started(W2, "5a1")
    census.on_event(happened("adjust.accepted", "5a1", kind="migrate", workers="w2"))
    census.on_event(happened("adjust.switching", "5a1", at=4))
    assert not census.has_left(W0)
    assert census.is_member(W2)
    census.on_event(happened("adjust.parted", "5a1", workers="w0,w1"))
    assert census.has_left(W0)
    assert census.has_left(W1)
    assert census.expelled() == set()


def test_newcomers_without_a_member_left_wait_for_nothing() -> None:
    census = training()
    joining(census)
    judged(census, W0, -9)
    assert not census.deserted(100.0)
    judged(census, W1, -9)
    assert census.deserted(100.0)
    assert census.size == 2, "it begins again with as many"


def newcomers_left() -> Census:
    """One was taken in, and all who trained died."""
    census = training()
    joining(census)
    census.on_generation(generation(2, W0, W1, W2))
    for worker in (W0, W1):
        judged(census, worker, -9)
    census.on_leader(None, 100.0)
    return census


def test_newcomers_that_were_taken_in_and_have_done_no_step_wait_for_nothing_either() -> None:
    census = newcomers_left()
    assert not census.deserted(100.0 + VACANT_S - 0.1), "it may have done its first step, and lead"
    assert census.deserted(100.0 + VACANT_S)
    census.on_leader(LED, 110.0)
    assert not census.deserted(200.0)
    census.on_event(happened("adjust.complete", "4f2", joined="w2"))
    census.on_leader(None, 300.0)
    assert not census.deserted(400.0), "it trains, and will lead"


def test_a_newcomer_that_has_led_is_waited_for_though_nobody_told_that_it_was_complete() -> None:
    census = newcomers_left()
    census.on_leader(write_leader(W2, Address("127.0.0.1", 1)), 101.0)
    census.on_leader(None, 200.0)
    assert not census.deserted(400.0), "frozen, it may go on"


def test_a_job_lives_on_where_others_have_started_its_members() -> None:
    census = training()
    far = WorkerId("far")
    census.on_generation(generation(2, W0, W1, far))
    for worker in (W0, W1):
        judged(census, worker, -9)
    assert not census.open
    assert census.elsewhere() == {far: None}
    census.on_leader(None, 200.0)
    assert not census.has_leader
    assert census.elsewhere() == {far: None}, "a lapsed lease is no death"
    census.on_state("finished")
    assert census.elsewhere() == {}


def test_members_elsewhere_are_found_at_the_addresses_of_the_last_generation() -> None:
    census = training()
    far = Member(
        worker=WorkerId("far"),
        address=Address("10.0.0.2", 4711),
        host="node2",
        slot=Gpu("node2", 0),
        pid=7,
    )
    value = write_recorded(
        Generation(
            number=2,
            members=(far,),
            newcomers=(),
            source=far.worker,
            leader=far.worker,
            founding=False,
            mended=False,
            token=3,
            request_id="",
        ),
        (),
    )
    census.on_generation(value, 12)
    assert census.elsewhere() == {far.worker: far.address}
    assert census.revision == 12


def test_a_newcomer_that_fails_before_its_switch_harms_nobody() -> None:
    census = training()
    joining(census)
    assert judged(census, W2, 1) == []
    census.on_event(happened("adjust.undone", "4f2"))
    (judgement,) = census.judge(100.0)
    assert not judgement.failed
    assert "before it had joined" in judgement.why


def test_a_newcomer_that_fails_after_its_switch_is_lost_as_any_member() -> None:
    census = training()
    joining(census)
    # Its end was seen before the word of the switch came.
    assert judged(census, W2, 1) == []
    census.on_event(happened("adjust.switching", "4f2", at=7))
    (judgement,) = census.judge(100.0)
    assert judgement.lost


def test_a_leaver_may_end_as_it_likes() -> None:
    census = training()
    census.on_event(happened("adjust.accepted", "5a1", kind="scale_in", workers="w1"))
    census.on_event(happened("adjust.switching", "5a1", at=7))
    (judgement,) = judged(census, W1, 1)
    assert not judgement.failed
    assert census.has_left(W1)


def test_a_quiet_end_waits_for_its_explanation() -> None:
    census = training()
    assert judged(census, W1, 0, later=EXPLAIN_S - 1) == []
    census.on_event(happened("job.finished"))
    (judgement,) = census.judge(101.0)
    assert not judgement.failed


def test_a_quiet_end_in_the_middle_of_the_job_is_a_loss() -> None:
    (judgement,) = judged(training(), W1, 0, later=EXPLAIN_S + 1)
    assert judgement.lost
    assert "while the others still trained" in judgement.why


def test_everybody_leaving_quietly_without_an_end_is_a_loss() -> None:
    census = training()
    judged(census, W0, 0)
    assert all(each.lost for each in judged(census, W1, 0, later=EXPLAIN_LAST_S + 0.1))
    assert not census.open


def test_scripts_that_are_no_job_may_just_end() -> None:
    census = Census([W0, W1])
    for worker in (W0, W1):
        (judgement,) = judged(census, worker, 0)
        assert not judgement.failed


def test_a_failure_after_the_job_is_over_still_counts() -> None:
    census = training()
    census.on_state("finished")
    (judgement,) = judged(census, W0, 1)
    assert judgement.failed


def test_a_kill_after_the_job_is_over_takes_no_success_from_the_others() -> None:
    census = training()
    census.on_state("finished")
    (judgement,) = judged(census, W0, -9)
    assert judgement.lost
    assert not judgement.failed
    assert not census.succeeded
    judged(census, W1, 0)
    assert census.succeeded


def test_whom_the_launcher_ends_does_not_fail() -> None:
    census = training()
    joining(census)
    census.on_state("finished")
    assert census.pending() == [W2]
    assert census.on_dismissed(W2)
    assert not census.on_dismissed(W2)
    (judgement,) = judged(census, W2, -15)
    assert not judgement.failed
    assert not judgement.why


def test_adjustments_are_read_from_events() -> None:
    census = training()
    joining(census)
    census.on_event(happened("adjust.switching", "4f2", at=7))
    census.on_event(
        happened(
            "adjust.complete",
            "4f2",
            kind="scale_out",
            joined="w2",
            left="",
            workers=3,
            total_s=1.5,
            stop_s=0.25,
            transfer_bytes=10,
        )
    )
    (record,) = census.records
    assert (record.joined, record.left, record.size, record.step) == ((W2,), (), 3, 7)
    assert (record.total_s, record.parts.stop_s, record.transfer_bytes) == (1.5, 0.25, 10)
    assert census.is_member(W2)
