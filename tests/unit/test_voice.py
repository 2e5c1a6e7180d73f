"""The leader's voice: who hears what, over which connection."""

from __future__ import annotations

from edl.protocol.effects import Publish, Send
from edl.protocol.messages import (
    Accepted,
    Events,
    Founded,
    Happened,
    Prepare,
    RendezvousKey,
    Retry,
    Undone,
)
from edl.protocol.rendezvous import Rendezvous
from edl.protocol.voice import Voice
from tests.seeded.cast import first, names, w


def voice() -> Voice:
    made = Voice()
    made.peers = {w(0): 0, w(1): 4, w(2): 5}
    return made


def key(number: int) -> RendezvousKey:
    return RendezvousKey(generation=1, worker=w(number), key=f"k{number}", value=b"v")


def of_keys(*numbers: int) -> Rendezvous:
    known = Rendezvous()
    for number in numbers:
        known.add_key(key(number))
    return known


def test_connected_workers_hear_in_a_fixed_order() -> None:
    word = Founded(generation=1)
    told = voice().to([w(2), w(9), w(1)], word)
    assert told == [Send(peer=4, message=word), Send(peer=5, message=word)]


def test_news_reach_the_log_and_every_subscriber() -> None:
    made = voice()
    made.generation, made.step = 2, 7
    made.chronicle.subscribe(8, "s")
    happened = Happened(
        seq=1, what="x", request_id="r", generation=2, step=7, fields={"worker": "w1"}
    )
    assert made.tell("x", "r", worker="w1") == [
        Publish(happened=happened),
        Send(peer=8, message=Events(request_id="s", events=(happened,))),
    ]


def test_a_subscriber_hears_what_it_missed_first() -> None:
    made = voice()
    made.tell("a")
    made.tell("b")
    (told,) = made.subscribe(8, "s", since=1)
    assert isinstance(told, Send)
    assert isinstance(told.message, Events)
    assert [happened.what for happened in told.message.events] == ["b"]
    assert made.chronicle.subscribers() == [(8, "s")]


def test_an_accepted_requester_waits_for_the_final_answer() -> None:
    made = voice()
    assert made.accept("r", 8) == [Send(peer=8, message=Accepted(request_id="r"))]
    answer = Undone(request_id="r", reason="x")
    assert made.final(answer) == [Send(peer=8, message=answer)]
    assert made.final(answer) == []


def test_a_final_answer_also_goes_to_whoever_just_asked() -> None:
    made = voice()
    made.accept("r", 8)
    answer = Undone(request_id="r", reason="x")
    assert made.final(answer, 9) == [
        Send(peer=8, message=answer),
        Send(peer=9, message=answer),
    ]


def test_a_retry_says_when() -> None:
    assert voice().retry("r", 8, "busy", 0.5) == [
        Send(peer=8, message=Retry(request_id="r", reason="busy", after_s=0.5))
    ]


def test_a_key_is_relayed_once_and_not_to_its_maker() -> None:
    made = voice()
    known = Rendezvous()
    relayed = made.relay(key(1), known, first(0, 1, 2))
    assert relayed == [Send(peer=0, message=key(1)), Send(peer=5, message=key(1))]
    assert made.relay(key(1), known, first(0, 1, 2)) == []
    assert known.known_to(w(0)) == [key(1)]


def test_a_worker_that_comes_back_hears_everything_but_its_own_keys() -> None:
    made, target = voice(), first(0, 1, 2)
    known = of_keys(1, 2)
    assert made.brief(w(1), target, known) == [
        Send(peer=4, message=Prepare(generation=target)),
        Send(peer=4, message=key(2)),
    ]


def test_a_leaver_hears_no_keys() -> None:
    made, target = voice(), first(0, 1)
    assert made.brief(w(2), target, of_keys(1)) == [
        Send(peer=5, message=Prepare(generation=target))
    ]


def test_a_closed_connection_is_told_by_its_worker() -> None:
    made = voice()
    assert made.on_closed(5) == w(2)
    assert made.on_closed(5) is None
    assert set(made.peers) == set(names(0, 1))
