"""The job's recent past: numbered without gaps, also under the next leader."""

from __future__ import annotations

from edl.protocol.chronicle import KEPT_RECORDS, Chronicle
from edl.protocol.messages import AdjustmentRecord, Happened, Parts


def adjusted(request_id: str) -> AdjustmentRecord:
    return AdjustmentRecord(
        request_id=request_id,
        kind="scale_in",
        joined=(),
        left=(),
        generation=2,
        step=1,
        size=1,
        total_s=0.0,
        transfer_bytes=0,
        parts=Parts(),
    )


def write(chronicle: Chronicle, what: str) -> Happened:
    return chronicle.write(what=what, request_id="r", generation=1, step=2, fields={"a": 1})


def test_events_are_numbered_one_after_another() -> None:
    chronicle = Chronicle()
    assert [write(chronicle, what).seq for what in "abc"] == [1, 2, 3]


def test_a_listener_asks_for_what_it_missed() -> None:
    chronicle = Chronicle()
    for what in "abcd":
        write(chronicle, what)
    assert [happened.what for happened in chronicle.since(2)] == ["c", "d"]
    assert chronicle.since(4) == ()


def test_only_the_recent_past_is_kept() -> None:
    chronicle = Chronicle()
    for _ in range(1500):
        write(chronicle, "x")
    assert len(chronicle.since(0)) == 1000
    assert chronicle.since(0)[-1].seq == 1500


def test_only_the_latest_adjustments_are_kept() -> None:
    """All of them travel in a hand-over."""
    chronicle = Chronicle()
    records = [adjusted(f"r{number}") for number in range(600)]
    for record in records:
        chronicle.records.append(record)
    assert tuple(chronicle.records) == tuple(records[-KEPT_RECORDS:])
    chronicle.restore(0, (), records)
    assert len(chronicle.records) == KEPT_RECORDS


def test_the_next_leader_goes_on_counting() -> None:
    old, new = Chronicle(), Chronicle()
    write(old, "a")
    write(old, "b")
    new.restore(old.seq, old.since(0), ())
    assert write(new, "c").seq == 3
    assert [happened.what for happened in new.since(0)] == ["a", "b", "c"]


def test_a_closed_connection_listens_no_more() -> None:
    chronicle = Chronicle()
    chronicle.subscribe(4, "s1")
    chronicle.subscribe(5, "s2")
    chronicle.unsubscribe(4)
    chronicle.unsubscribe(9)
    assert chronicle.subscribers() == [(5, "s2")]


def test_what_is_told_does_not_change_afterwards() -> None:
    fields: dict[str, str | int | float] = {"a": 1}
    happened = Chronicle().write(what="x", request_id="", generation=0, step=0, fields=fields)
    fields["a"] = 2
    assert happened.fields == {"a": 1}
