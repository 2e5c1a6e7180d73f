"""Ctrl-C while a client waits: nothing half done is left behind, and it says what stands."""

from __future__ import annotations

import pytest

from edl.errors import PeerError, Refused, TimedOut
from edl.launch.messages import StartWorkers
from edl.protocol import messages as m
from edl.types import WorkerId
from tests.unit.test_client import ACCEPTED, ADJUSTED, PARTED, FakeWorld, scale_in, waiting


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (m.Undone(request_id="4f2", reason="its requester gave up"), "was undone"),
        (ADJUSTED, "was complete before it could be taken back: 3 workers"),
        (PeerError("it went away"), "is not undone yet"),
    ],
)
def test_ctrl_c_withdraws_what_was_accepted_and_tells_what_became_of_it(
    answer: object, told: str
) -> None:
    world = FakeWorld(ACCEPTED, KeyboardInterrupt(), answer)
    with pytest.raises(KeyboardInterrupt, match=told):
        world.adjuster().scale_out(1, (), for_s=0.0)
    assert world.names()[3:5] == ["Withdraw", "Release"]
    assert world.names().count("ScaleOut") == 1


def test_ctrl_c_withdraws_a_scale_in_too() -> None:
    undone = m.Undone(request_id="4f2", reason="its requester gave up")
    world = FakeWorld(ACCEPTED, KeyboardInterrupt(), undone)
    with pytest.raises(KeyboardInterrupt, match="scale_in of job mnist was undone"):
        world.adjuster().scale_in(scale_in())
    assert world.names() == ["AskOutcome", "ScaleIn", "Withdraw"]


def test_ctrl_c_while_progress_is_told_withdraws_too() -> None:
    def pressed(line: str) -> None:
        if "waiting for new workers" in line:
            raise KeyboardInterrupt

    undone = m.Undone(request_id="4f2", reason="its requester gave up")
    world = FakeWorld(ACCEPTED, waiting("4f2"), undone)
    with pytest.raises(KeyboardInterrupt, match="migrate of job mnist was undone"):
        world.adjuster(progress=pressed).migrate((WorkerId("w1"),), (), 1, ())
    assert "Withdraw" in world.names()


def test_ctrl_c_between_two_messages_says_what_stands() -> None:
    def pressed(line: str) -> None:
        if "accepted" in line:
            raise KeyboardInterrupt

    world = FakeWorld(ACCEPTED, ADJUSTED)
    told = "migrate of job mnist is interrupted; accepted, but not complete; it is withdrawn now"
    with pytest.raises(KeyboardInterrupt, match=told):
        world.adjuster(progress=pressed).migrate((WorkerId("w1"),), (), 1, ())
    assert world.names()[-1] == "Release"


def test_newcomers_that_are_never_started_are_not_waited_for() -> None:
    world = FakeWorld(ACCEPTED)
    world.launcher_says[StartWorkers] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt, match="it is withdrawn now"):
        world.adjuster().scale_out(1, (), for_s=0.0)
    assert world.names() == ["Reserve", "ScaleOut", "StartWorkers", "Withdraw", "Release"]

    world = FakeWorld(ACCEPTED)
    world.launcher_says[StartWorkers] = m.Refusal(request_id="4f2", reason="there is no memory")
    with pytest.raises(Refused, match="there is no memory"):
        world.adjuster().scale_out(1, (), for_s=0.0)
    assert world.names() == ["Reserve", "ScaleOut", "StartWorkers", "Withdraw", "Release"]


def test_a_launcher_that_is_silent_is_asked_again_and_nothing_is_withdrawn() -> None:
    world = FakeWorld(ACCEPTED)
    world.launcher_says[StartWorkers] = PeerError("silence")
    with pytest.raises(TimedOut):
        world.adjuster(timeout_s=0.15).scale_out(1, (), for_s=0.0)
    assert "Withdraw" not in world.names()


def test_ctrl_c_while_leavers_end_says_that_it_is_complete() -> None:
    def pressed(line: str) -> None:
        if "waiting for the end of w1" in line:
            raise KeyboardInterrupt

    world = FakeWorld(ACCEPTED, PARTED)
    with pytest.raises(KeyboardInterrupt, match="migrate of job mnist is complete: 3 workers"):
        world.adjuster(progress=pressed).migrate((WorkerId("w1"),), (), 1, ())
    assert "Withdraw" not in world.names()
