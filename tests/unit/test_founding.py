"""The first generation: drawn when all are ready, recorded when all have built."""

from __future__ import annotations

from edl.protocol.founding import Founding
from tests.seeded.cast import member, names, w


def gathered() -> Founding:
    founding = Founding(leader=w(1), founders=2, token=4)
    founding.on_registered(member(0))
    founding.on_registered(member(1))
    return founding


def test_the_generation_is_drawn_when_the_last_founder_is_ready() -> None:
    founding = gathered()
    assert founding.on_ready(w(0), number=1) is None
    drawn = founding.on_ready(w(1), number=1)
    assert drawn is not None
    assert drawn.workers() == names(0, 1)
    assert (drawn.number, drawn.token, drawn.leader) == (1, 4, w(1))


def test_a_founder_that_is_ready_twice_counts_once() -> None:
    founding = gathered()
    founding.on_ready(w(0), number=1)
    assert founding.on_ready(w(0), number=1) is None
    assert founding.on_ready(w(1), number=1) is not None
    assert founding.on_ready(w(1), number=1) is None


def test_it_is_complete_once_when_all_have_built() -> None:
    founding = gathered()
    founding.on_ready(w(0), number=1)
    founding.on_ready(w(1), number=1)
    assert not founding.on_built(w(0))
    assert not founding.on_built(w(0))
    assert founding.on_built(w(1))
    assert not founding.on_built(w(1))


def test_nothing_is_complete_before_it_is_drawn() -> None:
    assert not gathered().on_built(w(0))
