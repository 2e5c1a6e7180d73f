"""Each checker catches the bug it is there for, and none of the others cries out with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.conductor import GENERATION_KEY, Conductor
from edl.protocol.effects import Effect, MayGo, Send
from edl.protocol.events import Swapped
from edl.protocol.ledger import MapLedger, Slice
from edl.protocol.node import Node
from edl.protocol.position import Comparison, Position, compare
from edl.protocol.progress import Progress, Verdict
from edl.protocol.record import StepRecord
from edl.protocol.recorded import Recorded
from edl.protocol.requests import Final, Requests
from edl.protocol.standing import Standing
from edl.protocol.topology import Generation
from edl.protocol.voice import Voice
from edl.protocol.worker import Worker
from edl.store.base import Swap, Versioned
from edl.store.memory import StoreCore
from tests.seeded.cast import w
from tests.seeded.checkers import CHECKERS, check
from tests.seeded.collective import Exchange
from tests.seeded.endings import ENDINGS
from tests.seeded.history import Answered
from tests.seeded.plan import Ask, Fault, Plan
from tests.seeded.shelf import Shelf
from tests.seeded.trainer import Trainer
from tests.seeded.world import run

Patch = pytest.MonkeyPatch


def ask(time: float, kind: str, *fates: str, again: bool = False) -> Ask:
    return Ask(time=time, kind=kind, count=len(fates) or 1, twice=False, again=again, fates=fates)


def calm(*asks: Ask) -> Plan:
    """Two workers, forty steps of a fifth of a second, and nothing goes wrong."""
    return Plan(
        seed=1, founders=2, samples=78, batch=4, epochs=2, step_s=0.2, context_s=0.5, asks=[*asks]
    )


def failing(plan: Plan) -> set[str]:
    return set(check(run(plan)))


def test_nothing_cries_out_where_nothing_is_wrong() -> None:
    plan = calm(ask(1.0, "out", "lives"), ask(4.0, "in-leader"), ask(6.0, "bad", again=True))
    history = run(plan)
    assert check(history) == {}
    kinds = {r.request_id: {kind for _, kind in r.finals} for r in history.requests}
    assert kinds == {"r0": {"Adjusted"}, "r1": {"Adjusted"}, "r2": {"Refusal"}}


def test_a_sample_used_twice_is_caught(monkeypatch: Patch) -> None:
    right = MapLedger.indexes

    def wrong(self: MapLedger, part: Slice) -> list[int]:
        found = right(self, part)
        return [found[0], *found[:-1]] if self.position == 8 else found

    monkeypatch.setattr(MapLedger, "indexes", wrong)
    assert failing(calm()) == {"once_per_epoch"}


def test_a_batch_of_another_size_is_caught(monkeypatch: Patch) -> None:
    right = MapLedger.step_size

    def wrong(self: MapLedger) -> int:
        return right(self) - (2 if self.position == 8 else 0)

    monkeypatch.setattr(MapLedger, "step_size", wrong)
    assert failing(calm()) == {"same_batch"}


def test_a_newcomer_without_the_optimizers_state_is_caught(monkeypatch: Patch) -> None:
    right = Trainer._take_state

    def wrong(self: Trainer, launched: Exchange) -> None:
        right(self, launched)
        self.model = (self.model[0], 0)

    monkeypatch.setattr(Trainer, "_take_state", wrong)
    assert failing(calm(ask(1.0, "out", "lives"))) == {"same_replicas"}


def test_a_worker_that_misses_the_switch_is_caught(monkeypatch: Patch) -> None:
    right = Progress.verdict

    def wrong(self: Progress, records: tuple[StepRecord, ...]) -> Verdict:
        found = right(self, records)
        return found if self.me != "w1" else Verdict()

    monkeypatch.setattr(Progress, "verdict", wrong)
    assert failing(calm(ask(1.0, "out", "lives"))) == {"same_switch"}


def test_a_second_announcer_is_caught(monkeypatch: Patch) -> None:
    right = Trainer._launch

    def wrong(self: Trainer, *arguments: Any) -> Exchange:
        host: Any = self.host
        for process in host.world.processes.values():
            if process.word.generation:
                host.word = process.word
        return right(self, *arguments)

    monkeypatch.setattr(Trainer, "_launch", wrong)
    assert failing(calm(ask(1.0, "out", "lives"))) == {"one_leader"}


def test_an_announcement_that_is_not_in_the_store_is_caught(monkeypatch: Patch) -> None:
    right = Shelf.swap

    def wrong(self: Shelf, key: str, **what: Any) -> None:
        if key != "generation":
            right(self, key, **what)
            return
        pretended = Swap(True, Versioned(what["value"], 99))
        self.schedule.after(self.delay(), what["answer"], pretended)

    monkeypatch.setattr(Shelf, "swap", wrong)
    assert failing(calm(ask(1.0, "out", "lives"))) == {"recorded_first", "one_history"}


def test_a_forgotten_answer_is_caught(monkeypatch: Patch) -> None:
    def wrong(self: Requests, request_id: str) -> Final | None:
        return None

    monkeypatch.setattr(Requests, "answered", wrong)
    assert failing(calm(ask(1.0, "out", "lives", again=True))) == {"one_answer"}


def test_a_joiner_that_is_never_told_of_the_undo_is_caught(monkeypatch: Patch) -> None:
    right = Voice.to

    def wrong(self: Voice, workers: Any, message: m.Message) -> list[Effect]:
        joiners = isinstance(message, m.Undo)
        return right(self, [w for w in workers if not (joiners and w.startswith("j"))], message)

    monkeypatch.setattr(Voice, "to", wrong)
    plan = calm(ask(1.0, "out", "lives", "never becomes ready"))
    plan.epochs = 12
    assert failing(plan) == {"undone_is_harmless"}


def test_nothing_cries_out_where_a_joiner_dies_in_the_first_step_and_others_were_through() -> None:
    for seed in (14, 96, 106):
        plan = calm(ask(1.0, "out", "lives", "lives", "dies registered"))
        plan.seed, plan.epochs, plan.spread_s = seed, 6, 0.1
        plan.step_s, plan.context_s = 0.05, 0.1
        plan.settings = replace(plan.settings, switch_allowance_s=0.01)
        history = run(plan)
        assert check(history) == {}
        (request,) = history.requests
        assert {kind for _, kind in request.finals} == {"Undone"}
        assert set(request.joiners) & {commit.worker for commit in history.commits}


def test_an_undo_before_the_records_confirm_it_is_caught(monkeypatch: Patch) -> None:
    right = Conductor.undo

    def wrong(self: Conductor, why: str, now: float) -> list[Effect]:
        told = right(self, why, now)
        if self.adjustment is not None:
            self.adjustment.why = why
            told += self.undone(now)
        return told

    monkeypatch.setattr(Conductor, "undo", wrong)
    found = set()
    for delay in range(40):
        plan = calm(ask(1.0, "in-named"), ask(1.2 + delay * 0.02, "stop"))
        found |= failing(plan)
    assert found == {"no_crash"}


def test_a_process_that_is_never_let_go_is_caught(monkeypatch: Patch) -> None:
    right = Node._on_job_over

    def wrong(self: Node, now: float) -> list[Effect]:
        return [effect for effect in right(self, now) if not isinstance(effect, MayGo)]

    monkeypatch.setattr(Node, "_on_job_over", wrong)
    assert "everything_ends" in failing(calm())


def test_only_a_leader_that_is_in_office_anew_may_answer_otherwise_after_a_crash() -> None:
    history = run(calm())
    history.faulty = True
    finished = Answered(1.0, w(0), m.Finished(request_id="r", reason="the job is stopping"), 1)
    undone = m.Undone(request_id="r", reason="a worker went away")
    history.answers["r"] = [finished, Answered(2.0, w(0), undone, 2)]
    assert check(history) == {}
    history.answers["r"] = [finished, Answered(2.0, w(0), undone, 1)]
    assert set(check(history)) == {"one_answer"}


def test_an_unanswered_request_is_caught(monkeypatch: Patch) -> None:
    right = Voice.final

    def wrong(self: Voice, answer: Final, peer: int | None = None) -> list[Effect]:
        right(self, answer, peer)
        return []

    monkeypatch.setattr(Voice, "final", wrong)
    monkeypatch.setattr("tests.seeded.client.Client._final", lambda self, kind: None)
    monkeypatch.setattr("tests.seeded.world.World.perhaps_over", over_without_clients)
    assert failing(calm(ask(1.0, "bad"))) == {"every_request_is_answered"}


def over_without_clients(self: Any) -> None:
    alive = any(process.alive for process in self.processes.values())
    self.over = not self._pending and not alive


def test_a_joiner_that_fails_for_no_fault_of_its_own_is_caught(monkeypatch: Patch) -> None:
    right: Callable[..., list[Effect]] = Worker._dismiss

    def wrong(self: Worker, why: str, *, failed: bool) -> list[Effect]:
        return right(self, why, failed=True)

    monkeypatch.setattr(Worker, "_dismiss", wrong)
    plan = calm(ask(1.0, "out", "lives", "dies registered"))
    assert failing(plan) == {"right_exits"}


def crash(*faults: Fault, **changes: Any) -> Plan:
    """Three workers of a calm job, of which some go."""
    plan = calm()
    plan.founders, plan.faults, plan.spread_s = 3, [*faults], 0.05
    for name, value in changes.items():
        setattr(plan, name, value)
    return plan


def kill(point: str, nth: int, who: str = "actor") -> Fault:
    return Fault(kind="kill", who=who, time=0.0, point=point, nth=nth)


def found_in(plans: Iterable[Plan]) -> set[str]:
    return {name for plan in plans for name in failing(plan)}


def deaths_in_a_step() -> list[Plan]:
    """Deaths after some have completed a step, and before others have."""
    return [crash(kill("done reduce", nth)) for nth in range(4, 40)]


def test_nothing_cries_out_where_workers_die_and_all_is_well() -> None:
    assert found_in(deaths_in_a_step()) == set()
    assert found_in([crash(kill("done value", nth), reduces=2) for nth in range(1, 8)]) == set()


def test_the_least_advanced_as_truth_is_caught(monkeypatch: Patch) -> None:
    def wrong(positions: Sequence[Position]) -> Comparison:
        worst = min(positions)
        behind = tuple(rank for rank, p in enumerate(positions) if p != worst)
        return Comparison(source=positions.index(worst), behind=behind, late=())

    monkeypatch.setattr("tests.seeded.trainer.compare", wrong)
    assert "nobody_rolls_back" in found_in(deaths_in_a_step())


def test_survivors_that_do_not_take_the_state_are_caught(monkeypatch: Patch) -> None:
    def wrong(positions: Sequence[Position]) -> Comparison:
        right = compare(positions)
        return Comparison(source=right.source, behind=(), late=right.late)

    monkeypatch.setattr("tests.seeded.trainer.compare", wrong)
    assert found_in(deaths_in_a_step()) & {"no_crash", "same_replicas", "once_per_epoch"}


def test_a_reduction_that_is_done_again_though_one_has_its_result_is_caught(
    monkeypatch: Patch,
) -> None:
    def wrong(positions: Sequence[Position]) -> Comparison:
        right = compare(positions)
        return Comparison(source=right.source, behind=right.behind, late=())

    monkeypatch.setattr("tests.seeded.trainer.compare", wrong)
    plans = [crash(kill("done value", nth), reduces=2) for nth in range(1, 8)]
    assert found_in(plans) & {"same_result", "no_crash"}


def test_a_pause_that_counts_as_death_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Worker, "on_message", deaf(Worker.on_message))
    plan = calm()
    plan.pauses = {3: (1, 30.0)}
    assert "nobody_blamed" in failing(plan)


def deaf(right: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    """A worker whose agent answers no pings."""

    def wrong(self: Worker, message: m.Message) -> list[Effect]:
        return [] if isinstance(message, m.Ping) else right(self, message)

    return wrong


def leaders_cut_off() -> list[Plan]:
    """A leader loses the others and the store, and gets both back when others have gone on."""
    return [
        crash(
            Fault(kind="cut off", who="leader", time=1.5 + nth * 0.037, span_s=6.0),
            epochs=6,
            settings=QUICK,
        )
        for nth in range(12)
    ]


def sleepers_that_wake_alone() -> list[Plan]:
    """A worker sleeps while the job goes on without it; when it wakes, all the others are dead."""
    return [
        crash(
            Fault(kind="freeze", who="actor", time=0.0, span_s=12.0, point="done round", nth=nth),
            Fault(kind="kill", who="all", time=9.0, point="struck", nth=1),
            epochs=12,
            settings=QUICK,
        )
        for nth in range(7, 13)
    ]


QUICK = Settings(lease_s=0.8, silence_s=2.0, reconnect_s=0.6, build_timeout_s=1.0)


def test_nothing_cries_out_where_a_leader_is_cut_off_or_wakes_alone() -> None:
    assert found_in(leaders_cut_off()) == set()
    assert found_in(sleepers_that_wake_alone()) == set()


def test_a_number_stands_for_what_the_store_has_under_it_whatever_one_alone_has_drawn() -> None:
    for plan in leaders_cut_off():
        history = run(plan)
        for generation in history.recorded:
            known = history.generations[generation.number]
            assert generation in (known, known.settled())


def test_two_jobs_of_one_by_a_record_without_comparison_are_caught(monkeypatch: Patch) -> None:
    right = StoreCore.compare_and_swap

    def wrong(self: StoreCore, key: str, *, expected: int, **what: Any) -> Swap:
        if key == GENERATION_KEY:
            expected = self.get(key).revision
        return right(self, key, expected=expected, **what)

    monkeypatch.setattr(StoreCore, "compare_and_swap", wrong)
    assert "one_history" in found_in(leaders_cut_off())


def test_two_jobs_of_one_by_a_refusal_that_counts_as_a_record_are_caught(
    monkeypatch: Patch,
) -> None:
    right = Conductor.answered

    def wrong(self: Conductor, event: Swapped) -> Generation | None:
        return right(self, replace(event, done=True))

    monkeypatch.setattr(Conductor, "answered", wrong)
    assert "one_history" in found_in(leaders_cut_off())


def test_two_jobs_of_one_by_an_absent_worker_that_leads_are_caught(monkeypatch: Patch) -> None:
    def own(self: Standing) -> tuple[Recorded, int]:
        """Whoever was left behind builds on what it was in, not on what the store says."""
        assert self.worker.generation is not None
        assert self.recorded is not None
        return Recorded(generation=self.worker.generation, deeds=()), self.recorded[1]

    monkeypatch.setattr(Standing, "is_eligible", lambda self: True)
    monkeypatch.setattr(Standing, "base", own)
    assert "one_history" in found_in(sleepers_that_wake_alone())


def test_a_setting_that_legitimately_differs_between_workers_is_caught(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(Trainer, "settings", lambda self: [("name", str(self.host.me))])
    assert failing(calm()) == {"no_false_divergence"}


def test_a_new_leader_that_begins_at_step_0_is_caught(monkeypatch: Patch) -> None:
    right = Voice.tell

    def wrong(self: Voice, what: str, *more: str, **fields: Any) -> list[Effect]:
        if what == "leader.changed":
            self.step = 0
        return right(self, what, *more, **fields)

    monkeypatch.setattr(Voice, "tell", wrong)
    plan = calm(ask(1.0, "in-leader"))
    plan.faults = [Fault(kind="kill", who="leader", time=1.5)]
    assert "new_leaders_know_the_step" in failing(plan)


def test_every_checker_is_shown_to_catch_something() -> None:
    shown = {
        "no_crash", "once_per_epoch", "same_batch", "same_replicas", "same_switch", "one_leader",
        "recorded_first", "one_answer", "undone_is_harmless", "everything_ends",
        "every_request_is_answered", "right_exits", "one_history", "nobody_rolls_back",
        "same_result", "nobody_blamed", "no_false_divergence", "new_leaders_know_the_step",
    }  # fmt: skip
    assert shown == {*CHECKERS, *ENDINGS}


def test_a_message_that_vanishes_on_a_healthy_connection_is_caught(monkeypatch: Patch) -> None:
    lost: list[m.Message] = []
    right = Node.step

    def wrong(self: Node, event: Any, now: float) -> list[Effect]:
        kept = []
        for effect in right(self, event, now):
            if not lost and isinstance(effect, Send) and isinstance(effect.message, m.Founded):
                lost.append(effect.message)
            else:
                kept.append(effect)
        return kept

    monkeypatch.setattr(Node, "step", wrong)
    assert failing(calm()) == {"everything_ends", "right_exits"}
