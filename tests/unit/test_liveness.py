"""Silence is judged by answers alone, and never where this worker itself slept."""

from __future__ import annotations

from edl.protocol.liveness import Liveness, Quiet
from tests.seeded.cast import names, w


def test_everybody_is_pinged_sixteen_times_in_the_time_of_silence() -> None:
    liveness = Liveness(8.0)
    assert liveness.look(names(1, 2), 0.0) == (list(names(1, 2)), {})
    assert liveness.look(names(1, 2), 0.4) == ([], {})
    assert liveness.look(names(1, 2), 0.5) == (list(names(1, 2)), {})


def test_whoever_does_not_answer_in_time_is_silent_and_the_others_are_not() -> None:
    liveness = Liveness(4.0)
    for tenth in range(0, 40, 5):
        now = tenth / 10
        assert liveness.look(names(1, 2), now)[1] == {}
        liveness.heard(w(2))
    ping, silent = liveness.look(names(1, 2), 4.0)
    assert (ping, silent) == ([w(2)], {w(1): 4.0})


def test_a_newcomer_has_its_whole_time_from_when_it_is_first_looked_at() -> None:
    liveness = Liveness(4.0)
    for now in (0.0, 1.0, 2.0, 3.0):
        liveness.look(names(1), now)
        liveness.heard(w(1))
    assert liveness.look(names(1, 2), 3.9)[1] == {}
    assert liveness.look(names(1, 2), 5.0)[1] == {}


def test_time_in_which_this_worker_slept_is_nobodys_silence() -> None:
    liveness = Liveness(4.0)
    liveness.look(names(1), 0.0)
    liveness.look(names(1), 1.0)
    assert liveness.look(names(1), 60.0) == ([w(1)], {})
    assert liveness.look(names(1), 61.0)[1] == {}


def test_silence_counts_from_the_first_ping_that_was_not_answered() -> None:
    liveness = Liveness(4.0)
    liveness.look(names(1), 0.0)
    liveness.heard(w(1))
    # It freezes now, a quarter of a second before it is asked again.
    for quarter in range(1, 17):
        assert liveness.look(names(1), quarter / 4)[1] == {}
    assert liveness.look(names(1), 4.25)[1] == {w(1): 4.0}


def test_a_missing_heartbeat_is_told_long_before_it_counts_as_death() -> None:
    liveness = Liveness(8.0)
    for half in range(4):
        liveness.look(names(1, 2), half / 2)
        liveness.heard(w(2))
    assert liveness.quiet(1.9) == {}
    assert liveness.quiet(2.0) == {w(1): Quiet(seconds=2.0, runs=False)}
    liveness.heard(w(1))
    assert liveness.quiet(2.1) == {}


def test_a_worker_whose_watchdog_says_that_it_runs_is_not_silent() -> None:
    liveness = Liveness(4.0)
    for quarter in range(60):
        now = quarter / 4
        if now <= 10:
            liveness.vouch(w(1), now)
        assert liveness.look(names(1), now)[1] == ({w(1): now} if now >= 14 else {})
    assert not liveness.quiet(14.75)[w(1)].runs


def test_a_watchdog_is_heard_for_as_long_as_the_agent_is_not() -> None:
    liveness = Liveness(8.0)
    liveness.look(names(1), 0.0)
    liveness.vouch(w(1), 2.0)
    assert liveness.quiet(3.0) == {w(1): Quiet(seconds=3.0, runs=True)}
    liveness.heard(w(1))
    liveness.look(names(1), 3.5)
    assert not liveness.quiet(6.0)[w(1)].runs
