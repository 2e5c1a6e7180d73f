"""What a leader does about stragglers, by each policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from edl.config import Settings
from edl.protocol.adjustment import Phase
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Announce, Effect, Publish
from edl.protocol.messages import Switched
from edl.protocol.mitigation import Mitigation
from edl.protocol.record import Weighing
from edl.protocol.recovery import Recovery
from edl.protocol.tale import Happened
from edl.protocol.topology import FULL
from edl.protocol.voice import Voice
from edl.types import WorkerId
from tests.seeded.cast import committed, first, joiner, names, record, w

STEPS = 3
EVEN = {0: 100, 1: 100, 2: 100, 3: 100}
SLOW = EVEN | {2: 200}


class Office:
    """A leader's rooms that have to do with stragglers; w0 leads four workers."""

    def __init__(self, policy: str, *, least: int = 1) -> None:
        settings = Settings(stragglers=policy, straggler_steps=STEPS, min_workers=least)
        self.voice = Voice()
        self.voice.peers = {w(number): number for number in range(4)}
        self.conductor = Conductor(me=w(0), token=3, settings=settings, voice=self.voice)
        self.conductor.enter(first(0, 1, 2, 3))
        self.conductor.last_number = 1
        self.recovery = Recovery(me=w(0), conductor=self.conductor, voice=self.voice)
        self.mitigation = Mitigation(
            settings=settings,
            conductor=self.conductor,
            recovery=self.recovery,
            voice=self.voice,
        )
        self.step = 0
        self.weights: dict[WorkerId, int] = {}

    def settle(self) -> None:
        """What is in flight is over, one way or another."""
        self.conductor.adjustment = None

    def run(self, steps: int, ms: Mapping[int, int]) -> list[Effect]:
        effects: list[Effect] = []
        assert self.conductor.generation is not None
        workers = self.conductor.generation.workers()
        for _ in range(steps):
            self.step += 1
            records = [
                replace(record(samples=16), compute_us=16_000 * ms[int(worker[1:])])
                for worker in workers
            ]
            event = replace(committed(self.step, *records), weights=dict(self.weights))
            effects += self.mitigation.on_step_committed(event, float(self.step))
        return effects


def told(effects: list[Effect]) -> list[Happened]:
    events = [effect.happened for effect in effects if isinstance(effect, Publish)]
    return [event for event in events if event.what.startswith("straggler.")]


def whats(effects: list[Effect]) -> list[tuple[str, object]]:
    return [(event.what, event.fields["worker"]) for event in told(effects)]


def words(effects: list[Effect]) -> list[Announce]:
    return [effect for effect in effects if isinstance(effect, Announce)]


def weighing(rank: int, weight: int) -> int:
    return Weighing(generation=1, rank=rank, weight=weight).pack()


# -- warn and off ----------------------------------------------------------------------------


def test_a_warning_says_who_how_slow_and_for_how_long_and_does_no_more() -> None:
    office = Office("warn")
    effects = office.run(30, SLOW)
    (event,) = told(effects)
    assert event.what == "straggler.found"
    assert event.fields == {"worker": "w2", "times": 2.0, "steps": STEPS, "policy": "warn"}
    assert len(effects) == 1
    assert office.conductor.adjustment is None


def test_a_straggler_that_keeps_up_again_is_told_of() -> None:
    office = Office("warn")
    office.run(30, SLOW)
    assert whats(office.run(30, EVEN)) == [("straggler.gone", "w2")]


@pytest.mark.parametrize("policy", ["off", "warn", "remove", "replace", "rebalance"])
def test_nothing_is_said_of_workers_that_are_alike(policy: str) -> None:
    assert Office(policy).run(60, EVEN) == []


def test_nothing_is_said_when_it_is_off() -> None:
    assert Office("off").run(60, SLOW) == []


# -- remove ----------------------------------------------------------------------------------


def test_the_leader_scales_a_straggler_in_by_itself() -> None:
    office = Office("remove")
    office.run(30, SLOW)
    adjustment = office.conductor.adjustment
    assert adjustment is not None
    assert (adjustment.kind, adjustment.leavers) == ("scale_in", (w(2),))


def test_several_stragglers_leave_together() -> None:
    office = Office("remove")
    office.run(30, EVEN | {1: 200, 3: 300})
    adjustment = office.conductor.adjustment
    assert adjustment is not None
    assert adjustment.leavers == (w(3), w(1))


def test_the_least_number_of_workers_is_kept_and_that_is_told_once() -> None:
    office = Office("remove", least=4)
    assert whats(office.run(40, SLOW)) == [("straggler.found", "w2"), ("straggler.kept", "w2")]
    assert office.conductor.adjustment is None


def test_an_adjustment_in_flight_is_let_finish_first() -> None:
    office = Office("remove")
    office.conductor.open(20, "out", kind="scale_out", joiners=(joiner(5),), leavers=(), now=0.0)
    office.run(30, SLOW)
    assert office.conductor.adjustment is not None
    assert office.conductor.adjustment.request_id == "out"
    office.settle()
    office.run(1, SLOW)
    removal = office.conductor.adjustment
    assert removal is not None
    assert removal.leavers == names(2)


def test_a_removal_that_was_undone_is_tried_again_later_under_another_name() -> None:
    office = Office("remove")
    office.run(30, SLOW)
    assert office.conductor.adjustment is not None
    before = office.conductor.adjustment.request_id
    office.settle()
    office.run(1, SLOW)
    office.run(STEPS, SLOW)
    assert office.conductor.adjustment is not None
    assert office.conductor.adjustment.request_id != before


def test_one_that_keeps_up_again_after_an_undone_removal_is_told_of() -> None:
    office = Office("remove")
    office.run(20, SLOW)
    assert office.conductor.adjustment is not None
    office.settle()
    assert whats(office.run(30, EVEN)) == [("straggler.gone", "w2")]


def test_a_job_that_stops_removes_nobody() -> None:
    office = Office("remove")
    office.conductor.stopping = "enough"
    office.run(30, SLOW)
    assert office.conductor.adjustment is None


def completed(office: Office, *stay: int) -> list[Effect]:
    """The adjustment in flight, with those that are there then."""
    adjustment = office.conductor.adjustment
    assert adjustment is not None
    assert adjustment.generation is not None
    adjustment.phase = Phase.ANNOUNCED
    office.conductor.on_switch_decided(2, 30, 30.0)
    effects: list[Effect] = []
    for number in stay:
        said = Switched(
            generation=2,
            worker=w(number),
            step=31,
            transfer_s=0.0,
            transfer_bytes=0,
            stop_s=0.0,
        )
        effects += office.conductor.on_switched(said, 31.0)
    return effects


def test_a_completed_removal_says_who_was_removed() -> None:
    office = Office("remove")
    office.run(30, SLOW)
    assert whats(completed(office, 0, 1, 3)) == [("straggler.removed", "w2")]
    assert whats(office.run(30, EVEN)) == []


def test_a_straggler_that_was_scaled_in_by_somebody_else_is_gone() -> None:
    office = Office("warn")
    office.run(30, SLOW)
    office.conductor.open(20, "in", kind="scale_in", joiners=(), leavers=names(2), now=0.0)
    assert whats(completed(office, 0, 1, 3)) == []
    assert whats(office.run(1, EVEN)) == [("straggler.gone", "w2")]


# -- rebalance -------------------------------------------------------------------------------


def test_a_straggler_is_announced_a_smaller_share_until_everybody_has_it() -> None:
    office = Office("rebalance")
    effects = office.run(30, SLOW)
    assert whats(effects) == [("straggler.found", "w2"), ("straggler.weighed", "w2")]
    assert [word.weighing for word in words(effects)] == [weighing(2, FULL // 2)]
    office.weights = {w(2): FULL // 2}
    assert [word.weighing for word in words(office.run(30, SLOW))] == [0]


def test_several_shares_are_announced_one_after_another() -> None:
    office = Office("rebalance")
    both = EVEN | {2: 200, 3: 400}
    assert words(office.run(30, both))[-1].weighing == weighing(2, FULL // 2)
    office.weights = {w(2): FULL // 2}
    assert words(office.run(1, both))[-1].weighing == weighing(3, FULL // 4)
    office.weights |= {w(3): FULL // 4}
    assert words(office.run(1, both))[-1].weighing == 0


def test_shares_that_are_nearly_right_are_left_alone() -> None:
    office = Office("rebalance")
    office.weights = {w(2): FULL // 2 + 50}
    assert words(office.run(60, SLOW)) == []


def test_a_full_share_comes_back_when_the_straggler_is_gone() -> None:
    office = Office("rebalance")
    office.run(30, SLOW)
    office.weights = {w(2): FULL // 2}
    office.run(10, SLOW)
    effects = office.run(30, EVEN)
    assert words(effects)[-1].weighing == weighing(2, FULL)


def test_a_new_leader_first_looks_whether_smaller_shares_are_still_due() -> None:
    office = Office("rebalance")
    office.weights = {w(2): FULL // 2}
    assert office.run(60, SLOW) == []
    office = Office("rebalance")
    office.weights = {w(2): FULL // 2}
    assert words(office.run(60, EVEN))[-1].weighing == weighing(2, FULL)


def test_smaller_shares_of_an_earlier_policy_end() -> None:
    office = Office("warn")
    office.weights = {w(2): FULL // 2}
    assert words(office.run(60, EVEN))[-1].weighing == weighing(2, FULL)
