"""A launcher that has served many requests holds no more than one that has served a thousand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edl.launch.base import Ended
from edl.launch.census import KEPT_RECORDS, Census
from edl.launch.history import KEPT_TOLD, History
from edl.launch.jobs import JobFolder
from edl.launch.messages import Reserve, Reserved, Started
from edl.launch.service import KEPT_REQUESTS, KEPT_SEATS, LaunchService
from edl.launch.slots import SlotBook
from edl.protocol.messages import Happened, Joiner, Refusal
from edl.types import WorkerId
from tests.unit.test_keeping import Launcher

MANY = 3 * KEPT_REQUESTS


@dataclass
class Machine(Launcher):
    """Runs whatever is started."""

    running: dict[WorkerId, None] = field(default_factory=dict)

    def start(self, joiners: object, request_id: str) -> None:
        assert isinstance(joiners, tuple)
        for joiner in joiners:
            assert isinstance(joiner, Joiner)
            self.running[joiner.worker] = None

    def alive(self) -> tuple[WorkerId, ...]:
        return tuple(self.running)


def entries(service: LaunchService) -> int:
    """Of all tables that it keeps."""
    tables = [each for each in vars(service).values() if isinstance(each, dict | set | list)]
    return sum(map(len, tables))


def test_service_remembers_the_latest_requests_and_forgets_the_rest() -> None:
    machine = Machine()
    service = LaunchService(machine, SlotBook({}), lambda peer, message: None)
    founders = service.found(2)
    service._floor.start(founders, "")
    answers = {}
    for number in range(MANY):
        request_id = f"r{number}"
        wish = Reserve(request_id=request_id, count=1, gpus=(), for_s=60.0 if number % 2 else 0.0)
        answers[request_id] = reserved = service.reserve(wish, float(number))
        assert isinstance(reserved, Reserved)
        assert service.start_reserved(request_id) == Started(request_id=request_id)
        service.on_settled(request_id, float(number))
        (joiner,) = reserved.joiners
        del machine.running[joiner.worker]
        service.on_process_ended(joiner.worker, float(number))
    assert entries(service) <= 3 * KEPT_REQUESTS + KEPT_SEATS + len(founders)
    # The same request id still has the same answer.
    for number in (MANY - 1, MANY - KEPT_REQUESTS):
        wish = Reserve(request_id=f"r{number}", count=1, gpus=(), for_s=0.0)
        assert service.reserve(wish, float(MANY)) == answers[f"r{number}"]
    # Those that run keep their slots for a restart, however long ago they began.
    slots = [each.slot for each in founders]
    for each in founders:
        del machine.running[each.worker]
        service.on_process_ended(each.worker, float(MANY))
    service.forget()
    again = service.found(2, [each.worker for each in reversed(founders)])
    assert [each.slot for each in again] == slots[::-1]


def test_reservation_that_waits_is_not_forgotten_for_later_ones() -> None:
    service = LaunchService(Machine(), SlotBook({}), lambda peer, message: None)
    first = service.reserve(Reserve(request_id="first", count=1, gpus=(), for_s=0.0), 0.0)
    assert isinstance(first, Reserved)
    for number in range(MANY):
        service.reserve(Reserve(request_id=f"r{number}", count=1, gpus=(), for_s=0.0), 0.0)
    assert service.start_reserved("first") == Started(request_id="first")


def test_requests_that_were_never_started_leave_nothing_behind() -> None:
    service = LaunchService(Machine(), SlotBook({}), lambda peer, message: None)
    for number in range(MANY):
        now = 100.0 * number
        service.reserve(Reserve(request_id=f"r{number}", count=1, gpus=(), for_s=60.0), now)
        service.on_tick(now + 99.0)
    assert entries(service) <= 2 * KEPT_REQUESTS
    assert isinstance(service.start_reserved(f"r{MANY - 1}"), Refusal)


def completed(number: int) -> Happened:
    return Happened(
        seq=number,
        what="adjust.complete",
        request_id=f"r{number}",
        generation=number,
        step=number,
        fields={"kind": "scale_in", "left": f"w{number}", "workers": 2},
    )


def test_result_lists_the_latest_adjustments() -> None:
    census = Census([WorkerId("w0")])
    for number in range(2 * KEPT_RECORDS):
        census.on_event(completed(number))
    assert len(census.records) == KEPT_RECORDS
    assert census.records[-1].request_id == f"r{2 * KEPT_RECORDS - 1}"
    census.on_ended(Ended(worker=WorkerId("w0"), status=0, at=0.0), 0.0)
    assert Census([], records=census.records).records == census.records


def test_events_that_no_user_reads_are_kept_in_the_file_alone(tmp_path: Path) -> None:
    history = History(JobFolder(tmp_path))
    count = KEPT_TOLD + 500
    for number in range(count):
        history.add(completed(number))
        if number % 100 == 0:
            history.say("a line")
    assert history.told.qsize() == KEPT_TOLD
    last: object = None
    while not history.told.empty():
        last = history.told.get()
    assert isinstance(last, Happened)
    assert last.seq == count
    history.close()
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == count
