"""A request's id stands for that request and no other."""

from __future__ import annotations

from edl.protocol import messages as m
from edl.protocol.effects import Send
from edl.protocol.tale import Parts
from tests.seeded.cast import w
from tests.unit.test_leader import OUT, answers, founded


def test_the_id_of_another_request_is_refused() -> None:
    """Its requester would think that what it asked for was done."""
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    less = m.ScaleIn(request_id="out", workers=(), gpus=(), count=1)
    moves = m.Migrate(request_id="out", workers=(w(1),), gpus=(), joiners=OUT.joiners)
    for message in (less, moves):
        (refusal,) = answers(leader.on_message(21, message, 2.0))
        assert isinstance(refusal, m.Refusal)
        assert refusal.reason.startswith("out is the id of a scale_out that was asked for before")
    # It goes on, and its own requester hears of it as if nothing had been.
    assert leader.on_message(22, OUT, 3.0) == [Send(peer=22, message=m.Accepted(request_id="out"))]


def test_the_id_of_another_request_is_refused_when_that_one_is_complete() -> None:
    leader = founded()
    record = m.AdjustmentRecord(
        request_id="less",
        kind="scale_in",
        joined=(),
        left=(w(1),),
        generation=2,
        step=9,
        size=1,
        total_s=1.0,
        transfer_bytes=0,
        parts=Parts(),
    )
    leader.voice.final(m.Adjusted(request_id="less", record=record))
    more = m.ScaleOut(request_id="less", joiners=OUT.joiners)
    (refusal,) = answers(leader.on_message(21, more, 4.0))
    assert isinstance(refusal, m.Refusal)
    less = m.ScaleIn(request_id="less", workers=(w(1),), gpus=(), count=0)
    assert answers(leader.on_message(22, less, 5.0)) == [
        m.Adjusted(request_id="less", record=record)
    ]
