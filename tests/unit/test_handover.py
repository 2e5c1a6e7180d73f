"""A leader's state as one value: what the successor finds is what the old leader had."""

from __future__ import annotations

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.adjustment import Adjustment, Phase
from edl.protocol.handover import handed_over, open_switch, reopened
from edl.protocol.leader import Leader
from edl.protocol.messages import Handover
from edl.protocol.recorded import Recorded
from edl.protocol.standing import Knows
from edl.protocol.topology import Generation, draw_next
from edl.wire.codec import Codec
from tests.seeded.cast import SETTINGS, first, names, w


def target() -> Generation:
    return draw_next(
        first(0, 1, 2), number=2, joiners=(), leavers=names(0), token=1, request_id="r"
    )


def switching() -> Adjustment:
    adjustment = Adjustment(
        request_id="r",
        kind="scale_in",
        expected={},
        leavers=names(0),
        opened=100.0,
        settings=SETTINGS,
    )
    adjustment.build(target(), now=100.5)
    adjustment.announce(step=7, now=101.0)
    adjustment.switch(step=7, now=102.0)
    said = m.Switched(
        generation=2, worker=w(0), step=7, transfer_s=0.5, transfer_bytes=90, stop_s=0.2
    )
    adjustment.on_switched(said)
    return adjustment


def leader() -> Leader:
    made = Leader(me=w(0), token=3, settings=SETTINGS, founders=3, peer=0)
    made.conductor.enter(target())
    made.conductor.adjustment = switching()
    made.conductor.generation_revision = 11
    made.conductor.last_number = 2
    made.voice.tell("x")
    return made


def handed() -> Handover:
    made = leader()
    return handed_over(made.conductor, names(5), made.voice, 104.0)


def test_without_an_adjustment_nothing_is_open() -> None:
    assert open_switch(None, 1.0) is None


def test_the_open_switch_goes_on_in_other_hands() -> None:
    past = handed()
    again = reopened(past, SETTINGS, 1000.0)
    assert again is not None
    assert again.phase is Phase.SWITCHING
    assert again.waiting == {w(1), w(2)}
    assert (again.opened, again.step, again.switch_wait_s) == (996.0, 7, 1.0)
    assert (again.request_id, again.leavers) == ("r", names(0))
    assert (again.transfer_bytes, again.transfer_s, again.stop_s) == (90, 0.5, 0.2)


def test_the_successor_counts_on_where_the_old_leader_stopped() -> None:
    past = handed()
    new = Leader(me=w(1), token=8, settings=SETTINGS, founders=3, peer=0)
    new.take_over(past, 1000.0)
    assert new.conductor.generation == target()
    assert (new.conductor.generation_revision, new.conductor.last_number) == (11, 2)
    assert new.token == 8
    assert new.voice.chronicle.seq == past.seq + 1
    assert new.conductor.pace.step == 7
    # It counts on leavers as well, until they have let the others go on.
    assert new.recovery.owing == {w(5)}


def test_a_handover_travels_unchanged() -> None:
    past, codec = handed(), Codec([Handover])
    assert codec.decode(codec.encode(past)) == past


def there() -> Handover:
    made = Leader(me=w(1), token=3, settings=SETTINGS, founders=2, peer=0)
    made.conductor.enter(first(0, 1))
    return handed_over(made.conductor, (), made.voice, 10.0)


def test_whoever_does_not_come_to_a_new_leader_in_time_is_lost() -> None:
    """Also without a connection that could close, and long before silence would tell; but while
    everybody trains, nothing is wrong with one that is only on its way to a successor."""
    settings = Settings(reconnect_s=2.0, silence_s=60.0)
    heir = Leader(me=w(0), token=8, settings=settings, founders=2, peer=0)
    found = Recorded(generation=first(0, 1), deeds=())
    heir.inherit(found, revision=5, last=1, knows=Knows(entered=True), lost=None, now=10.0)
    successor = Leader(me=w(0), token=8, settings=settings, founders=2, peer=0)
    successor.take_over(there(), 10.0)
    for made in (heir, successor):
        for now in (10.5, 11.2, 11.9):
            assert "worker.lost" not in str(made.on_tick(now))
        made.on_tick(12.0)
    assert heir.recovery.lost.keys() == {w(1)}
    assert not successor.recovery.lost
    successor.on_stuck(m.Stuck(generation=1, worker=w(0), why="w1 has gone"), 12.1)
    successor.on_tick(12.2)
    assert successor.recovery.lost.keys() == {w(1)}
