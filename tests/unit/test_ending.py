"""How a job's end is told: who failed first, what the others did, and whether it begins again."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from edl.launch.base import Ended, JobSpec
from edl.launch.census import Census, Judged
from edl.launch.ending import Ending
from edl.launch.history import History
from edl.launch.jobs import JobFolder
from edl.launch.notes import Note, read_note
from edl.launch.restarts import PAUSE_S, PAUSE_S_MAX, Again, Enough, Restarts
from edl.protocol.election import write_leader
from edl.protocol.messages import Happened
from edl.types import Address, WorkerId

W0, W1, W2 = WorkerId("w0"), WorkerId("w1"), WorkerId("w2")
LED = write_leader(W0, Address("127.0.0.1", 1))


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    for name in ("logs", "failures"):
        (tmp_path / name).mkdir()
    return JobFolder(tmp_path)


@pytest.fixture
def census() -> Census:
    made = Census([W0, W1, W2])
    made.on_leader(LED, 0.0)
    for worker in (W0, W1, W2):
        made.on_started(worker, "")
    made.on_generation(json.dumps({"number": 1, "members": [W0, W1, W2]}).encode())
    return made


def note(folder: JobFolder, worker: str, **fields: object) -> None:
    known = {"kind": "ValueError", "message": "a banana", "step": 7, "own": True, "pieces": []}
    known |= fields
    folder.note_file(worker).write_text(json.dumps(known))
    folder.failure_file(worker).write_text(f"Traceback of {worker}")


def lost(worker: WorkerId, status: int = 1) -> Judged:
    return Judged(ended=Ended(worker=worker, status=status, at=0.0), lost=True)


def test_a_job_that_lost_workers_and_came_to_its_end_has_succeeded(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    assert ending.lose(lost(W1, -9)) == ""
    census.on_state("finished")
    census.on_ended(Ended(worker=W0, status=0, at=0.0), 1.0)
    census.judge(1.0)
    result = ending.result(2.0)
    assert (result.state, result.exit_status) == ("finished", 0)
    assert result.first_failure is None
    assert [failure.worker for failure in result.failures] == [W1]
    assert "w1 was lost" in result.why


def test_a_job_without_a_worker_left_has_failed(folder: JobFolder, census: Census) -> None:
    ending = Ending(folder, census)
    for worker in (W1, W0, W2):
        assert ending.lose(lost(worker, -9)) == ""
    result = ending.result(2.0)
    assert (result.state, result.exit_status, result.why) == ("failed", 1, "no worker is left")
    assert result.first_failure is not None
    assert result.first_failure.worker == W1
    assert ending.cause is None


def test_job_that_trained_and_did_not_record_its_end_has_failed(
    folder: JobFolder, census: Census
) -> None:
    result = Ending(folder, census).result(1.0)
    assert (result.state, result.exit_status) == ("failed", 1)
    assert result.why == "no worker is left, and none of them recorded the job's end"


def test_job_whose_last_members_ended_elsewhere_has_failed(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    ending.lose_elsewhere([WorkerId("far")])
    result = ending.result(1.0)
    assert (result.state, result.exit_status) == ("failed", 1)
    assert "far ended on another machine" in result.why


def test_job_that_lost_a_worker_and_was_finished_elsewhere_has_succeeded(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    assert ending.lose(lost(W1, -9)) == ""
    census.on_generation(json.dumps({"number": 2, "members": ["far"]}).encode())
    census.on_state("finished")
    result = ending.result(2.0)
    assert (result.state, result.exit_status) == ("finished", 0)
    assert "w1 was lost" in result.why


def test_script_that_never_trained_keeps_its_own_success(folder: JobFolder) -> None:
    result = Ending(folder, Census([W0])).result(1.0)
    assert (result.state, result.exit_status) == ("finished", 0)


def test_killed_after_the_end_without_one_success_is_a_failure(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    census.on_state("finished")
    for worker in (W0, W1, W2):
        ending.lose(lost(worker, -9))
    assert ending.result(1.0).state == "failed"


def test_a_batch_that_raises_on_two_workers_ends_the_job_with_both_tracebacks(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    assert ending.lose(lost(W2, -9)) == ""
    note(folder, W0)
    assert ending.lose(lost(W0)) == ""
    note(folder, W1, message="another banana")
    assert "step 7 raised on two workers, w0 and w1" in ending.lose(lost(W1))
    assert ending.failed
    assert ending.twice
    result = ending.result(1.0)
    assert result.state == "failed"
    assert [failure.worker for failure in result.failures] == [W0, W1, W2]
    assert [failure.traceback for failure in result.failures[:2]] == [
        "Traceback of w0",
        "Traceback of w1",
    ]
    assert result.why == "workers w0 and w1 failed on the same batch"


DIVERGED = "replicas diverged at step 7: w1 differs from w0 in lr (0.1 on w1, 0.2 on w0)"


def test_replicas_that_differ_end_the_job_with_what_differs(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    note(folder, W2, kind="Diverged", message=f"{DIVERGED}\nWhat to do")
    assert ending.lose(lost(W2)) == DIVERGED
    result = ending.result(1.0)
    assert (result.state, result.exit_status, result.why) == ("failed", 1, DIVERGED)


def test_a_worker_that_was_killed_while_it_stopped_does_not_hide_the_divergence(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    note(folder, W2, kind="Diverged", message=f"{DIVERGED}\nWhat to do")
    ending.lose(Judged(ended=Ended(worker=W2, status=1, at=5.0), lost=True))
    # It stopped first, and SIGTERM took its own exit status.
    ending.also_ended(Ended(worker=W0, status=143, at=4.0))
    result = ending.result(1.0)
    assert result.why == DIVERGED
    assert result.first_failure is not None
    assert result.first_failure.traceback == "Traceback of w2"


def test_a_job_that_was_asked_to_stop_fails_if_its_replicas_differ(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    ending.stop("asked to", status=143)
    note(folder, W2, kind="Diverged", message=f"{DIVERGED}\nWhat to do")
    ending.lose(lost(W2))
    result = ending.result(1.0)
    assert (result.state, result.why) == ("failed", DIVERGED)


def test_a_divergence_is_the_cause_though_another_worker_was_noticed_first(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    note(folder, W0, kind="GroupBroken", message="w2 went away", own=False)
    ending.fail(Judged(ended=Ended(worker=W0, status=1, at=4.0), failed=True))
    note(folder, W2, kind="Diverged", message=f"{DIVERGED}\nWhat to do")
    ending.also_ended(Ended(worker=W2, status=1, at=5.0))
    assert ending.result(1.0).why == DIVERGED


def test_samples_that_raise_on_two_workers_in_different_steps_end_the_job(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    note(folder, W0, pieces=[[0, 3, 10, 5]])
    note(folder, W2, pieces=[[1, 3, 10, 5], [0, 4, 10, 5], [0, 3, 15, 5]], step=8)
    note(folder, W1, pieces=[[0, 2, 0, 5], [0, 3, 14, 2]], step=9)
    assert ending.lose(lost(W0)) == ""
    assert ending.lose(lost(W2)) == ""
    told = "the same samples raised on two workers, w0 and w1, in steps 7 and 9"
    assert ending.lose(lost(W1)) == told
    assert ending.result(1.0).why == "workers w0 and w1 failed on the same batch"
    assert ending.result(1.0).steps == 9, "its launcher had heard of none"


@pytest.mark.parametrize("other", [{"step": 8}, {"own": False}, {"step": None}])
def test_what_two_workers_do_in_different_steps_or_for_a_peer_ends_nothing(
    folder: JobFolder, census: Census, other: dict[str, object]
) -> None:
    ending = Ending(folder, census)
    note(folder, W0)
    note(folder, W1, **other)
    assert ending.lose(lost(W0)) == ""
    assert ending.lose(lost(W1)) == ""
    assert not ending.failed


def test_the_cause_is_what_ended_the_last_ones_and_not_that_they_lost_a_peer(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    note(folder, W0, kind="OSError", step=3)
    note(folder, W1)
    note(folder, W2, kind="GroupBroken", own=False)
    for worker in (W0, W1, W2):
        ending.lose(lost(worker))
    assert ending.cause == Note(kind="ValueError", message="a banana", step=7, own=True)


def test_a_note_that_cannot_be_read_is_none(folder: JobFolder) -> None:
    assert read_note(folder, W0) is None
    for text in ("", "[]", '{"kind": "x"}', '{"kind":1,"message":2,"step":"x","own":1}'):
        folder.note_file(W0).write_text(text)
        assert read_note(folder, W0) is None


# -- restarts --------------------------------------------------------------------------------

BANANA = Note(kind="ValueError", message="a banana", step=7, own=True)


def decide(
    restarts: Restarts,
    *,
    began: bool = True,
    over: bool = False,
    step: int = 9,
    cause: Note | None = None,
    twice: bool = False,
) -> Again | Enough:
    return restarts.decide(began=began, over=over, step=step, cause=cause, twice=twice)


def test_restarts_come_later_and_later_until_they_are_enough() -> None:
    restarts = Restarts(most=3, checkpoint=True)
    pauses = [decide(restarts) for _ in range(3)]
    assert pauses == [Again(PAUSE_S * 2**n, n + 1) for n in range(3)]
    assert decide(restarts) == Enough("3 restarts in a row got no further than step 9")


def test_a_job_that_gets_further_each_time_is_not_given_up() -> None:
    restarts = Restarts(most=2, checkpoint=True)
    for number in range(1, 10):
        assert decide(restarts, step=number * 10) == Again(PAUSE_S, number)


def test_the_pause_does_not_grow_for_ever() -> None:
    restarts = Restarts(most=20, checkpoint=True)
    last = [decide(restarts) for _ in range(20)][-1]
    assert isinstance(last, Again)
    assert last.pause_s == PAUSE_S_MAX


def test_the_same_exception_at_the_same_step_is_not_tried_a_third_time() -> None:
    restarts = Restarts(most=3, checkpoint=True)
    assert isinstance(decide(restarts, cause=BANANA), Again)
    assert decide(restarts, cause=BANANA) == Enough("ValueError at step 7 happened again")


def test_another_exception_or_another_step_is_tried_again() -> None:
    restarts = Restarts(most=5, checkpoint=True)
    other = Note(kind="OSError", message="the disk", step=7, own=True)
    later = Note(kind="OSError", message="the disk", step=8, own=True)
    for cause in (BANANA, other, later, None, BANANA):
        assert isinstance(decide(restarts, cause=cause), Again)


@pytest.mark.parametrize("step", [None, 0])
def test_an_exception_before_any_step_is_not_tried_again(step: int | None) -> None:
    cause = Note(kind="ImportError", message="no module", step=step, own=True)
    answer = decide(Restarts(most=3, checkpoint=True), began=False, step=0, cause=cause)
    assert answer == Enough("ImportError before any step was done would happen again")


def test_without_checkpoints_only_a_job_that_has_not_trained_begins_again() -> None:
    assert isinstance(decide(Restarts(most=1, checkpoint=False), began=False, step=0), Again)
    answer = decide(Restarts(most=1, checkpoint=False))
    assert answer == Enough("without --checkpoint there is nothing to go on from")


def test_what_is_certain_to_fail_is_left() -> None:
    assert decide(Restarts(most=0, checkpoint=True)) == Enough("")
    assert isinstance(decide(Restarts(most=1, checkpoint=True), twice=True), Enough)
    complete = decide(Restarts(most=1, checkpoint=True), over=True)
    assert complete == Enough("its training was complete")


def test_restarts_are_on_where_there_are_checkpoints() -> None:
    assert JobSpec(script="a").restarts == 0
    assert JobSpec(script="a", checkpoint="c").restarts == 3
    assert JobSpec(script="a", checkpoint="c", max_restarts=0).restarts == 0
    assert JobSpec(script="a", max_restarts=2).restarts == 2


# -- history ---------------------------------------------------------------------------------


def test_numbers_grow_over_leaders_and_restarts(folder: JobFolder) -> None:
    history = History(folder)
    for seq in (1, 2):
        history.add(told(seq, "leader.changed"))
    history.note("job.restarting", step=5, restart=1)
    history.add(told(1, "job.started"))
    history.close()
    lines = [json.loads(line) for line in folder.events_file.read_text().splitlines()]
    assert [line["seq"] for line in lines] == [1, 2, 3, 4]
    assert lines[2]["what"] == "job.restarting"
    assert lines[2]["fields"] == {"restart": 1}
    assert lines[2]["generation"] == 3


def told(seq: int, what: str) -> Happened:
    return Happened(seq=seq, what=what, request_id="", generation=3, step=1, fields={})


# -- files that cannot be read or written ----------------------------------------------------


def test_result_is_given_whatever_the_failure_file_holds(folder: JobFolder, census: Census) -> None:
    ending = Ending(folder, census)
    folder.failure_file(W1).write_bytes(b"caf\xe9")
    folder.failure_file(W2).mkdir()
    folder.log(W2).mkdir()
    for worker in (W0, W1, W2):
        ending.lose(lost(worker))
    tracebacks = [failure.traceback for failure in ending.result(1.0).failures]
    assert tracebacks == ["", "caf\ufffd", ""]


def test_end_of_a_huge_log_is_read_without_reading_the_log(
    folder: JobFolder, census: Census
) -> None:
    ending = Ending(folder, census)
    with open(folder.log(W0), "wb") as file:
        file.seek(64 << 30)  # a sparse file: reading it whole takes minutes
        file.write(b"\nthe last line\n")
    ending.lose(lost(W0, -9))
    (failure,) = ending.result(1.0).failures
    assert failure.traceback.endswith("the last line\n")
    assert len(failure.traceback) < 1 << 20


def test_history_of_a_full_disk_is_closed_without_an_error(folder: JobFolder) -> None:
    folder.events_file.symlink_to("/dev/full")
    history = History(folder)
    history.add(told(1, "job.started"))
    history.close()
    assert history.told.get_nowait()


def test_line_that_was_cut_off_spoils_no_other_line(folder: JobFolder) -> None:
    history = History(folder)
    history.add(told(1, "job.started"))
    size = folder.events_file.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        history.add(told(2, "leader.changed"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    history.add(told(3, "job.finished"))
    history.close()
    whole = [line for line in folder.events_file.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["seq"] for line in whole] == [1, 3]
