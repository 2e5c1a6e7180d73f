"""The leader collects one entry from each member and sends one table to each member."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from edl.protocol.effects import OfferTable, Send
from edl.protocol.messages import Prepare, RendezvousEntry, RendezvousKey, RendezvousTable
from edl.protocol.rendezvous import Rendezvous, pack, rows_of, unpack
from edl.protocol.voice import Voice
from edl.protocol.worker import Worker
from tests.seeded.cast import first, member, w


def part(sender: int, reader: int) -> bytes:
    return bytes((sender, reader, 7))


def entry(rank: int, size: int = 3, *, group: str = "data", parts: bool = True) -> RendezvousEntry:
    return RendezvousEntry(
        generation=1,
        worker=w(rank),
        group=group,
        rank=rank,
        size=size,
        key=f"{group}/0/{rank}",
        common=f"address {rank}".encode(),
        parts=b"".join(part(rank, reader) for reader in range(size)) if parts else b"",
    )


def voice(*connected: int) -> Voice:
    made = Voice()
    made.peers = {w(number): 10 + number for number in connected}
    return made


def test_nobody_hears_anything_before_the_last_entry_and_then_each_member_once() -> None:
    made, known, target = voice(0, 1, 2), Rendezvous(), first(0, 1, 2)
    assert made.relay(entry(2), known, target) == []
    assert made.relay(entry(0), known, target) == []
    sent = made.relay(entry(1), known, target)
    assert [(effect.peer, type(effect.message)) for effect in sent if isinstance(effect, Send)] == [
        (10, RendezvousTable),
        (11, RendezvousTable),
        (12, RendezvousTable),
    ]
    assert made.relay(entry(1), known, target) == []


@pytest.mark.parametrize("parts", [True, False])
def test_a_member_gets_all_common_parts_and_the_parts_for_its_own_rank(parts: bool) -> None:
    known, target = Rendezvous(), first(0, 1, 2)
    for rank in range(2):
        assert known.add_entry(entry(rank, parts=parts), target) == {}
    tables = known.add_entry(entry(2, parts=parts), target)
    for reader in range(3):
        assert rows_of(tables[w(reader)]) == tuple(
            (f"data/0/{rank}", f"address {rank}".encode(), part(rank, reader) if parts else b"")
            for rank in range(3)
        )


def test_groups_are_collected_apart() -> None:
    known, target = Rendezvous(), first(0, 1, 2)
    for rank in range(3):
        known.add_entry(entry(rank, group="control"), target)
    assert known.add_entry(entry(0), target) == {}
    # A group of fewer than all members: its ranks are its own.
    known.add_entry(entry(0, 2, group="state"), target)
    assert set(known.add_entry(entry(1, 2, group="state"), target)) == {w(0), w(1)}


def test_an_entry_that_is_said_again_counts_once() -> None:
    known, target = Rendezvous(), first(0, 1)
    assert known.add_entry(entry(0, 2), target) == {}
    assert known.add_entry(entry(0, 2), target) == {}
    assert len(known.add_entry(entry(1, 2), target)) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        entry(4, 5),  # no member of the target
        entry(1, 2),  # of a group of another size
        entry(1, 3, parts=False),  # parts of another length than the others'
    ],
)
def test_an_entry_that_does_not_fit_is_not_collected(wrong: RendezvousEntry) -> None:
    known, target = Rendezvous(), first(0, 1, 2)
    known.add_entry(entry(0), target)
    known.add_entry(entry(2), target)
    assert known.add_entry(wrong, target) == {}
    assert len(known.add_entry(entry(1), target)) == 3


def test_an_entry_or_a_key_of_another_generation_is_dropped() -> None:
    """A new leader that founds generation 2 hears again what was published for generation 1."""
    made, known, target = voice(0, 1), Rendezvous(), replace(first(0, 1), number=2)
    stale = RendezvousKey(generation=1, worker=w(0), key="k", value=b"old")
    assert made.relay(stale, known, target) == []
    assert made.relay(entry(0, 2), known, target) == []
    assert made.relay(replace(entry(1, 2), generation=2), known, target) == []
    sent = made.relay(replace(entry(0, 2), generation=2), known, target)
    tables = [effect.message for effect in sent if isinstance(effect, Send)]
    assert [table.generation for table in tables if isinstance(table, RendezvousTable)] == [2, 2]
    assert len(made.relay(replace(stale, generation=2), known, target)) == 1


def test_a_member_that_was_away_gets_its_table_when_it_is_back() -> None:
    made, known, target = voice(0, 1), Rendezvous(), first(0, 1, 2)
    for rank in (0, 2):
        made.relay(entry(rank), known, target)
    made.peers[w(2)] = 30
    assert made.brief(w(2), target, known) == [Send(peer=30, message=Prepare(generation=target))]
    del made.peers[w(2)]
    assert len(made.relay(entry(1), known, target)) == 2
    made.peers[w(2)] = 31
    told = [
        effect.message for effect in made.brief(w(2), target, known) if isinstance(effect, Send)
    ]
    assert [type(message) for message in told] == [Prepare, RendezvousTable]
    assert isinstance(told[1], RendezvousTable)
    assert told[1].rank == 2


def test_a_worker_offers_a_table_of_what_it_builds_and_drops_any_other() -> None:
    worker = Worker(me=member(0), request_id="", process_start_s=0.0)
    known, target = Rendezvous(), first(0, 1)
    known.add_entry(entry(0, 2), target)
    table = known.add_entry(entry(1, 2), target)[w(0)]
    assert worker.on_message(table) == []
    worker.on_message(Prepare(generation=target))
    offered = OfferTable(generation=1, rank=0, size=2, entries=rows_of(table))
    assert worker.on_message(table) == [offered]


def test_what_is_packed_is_unpacked() -> None:
    rng = random.Random(1)
    commons = [(f"ключ/{i}", rng.randbytes(rng.randrange(300))) for i in range(50)]
    assert unpack(pack(commons)) == commons
    assert unpack(pack([])) == []


def test_a_malformed_table_is_named() -> None:
    whole = pack([("k", b"v" * 100)])
    for broken in (b"", b"no zlib", whole[:-1], whole[:5], pack([("k", b"")])[:-2]):
        with pytest.raises(ValueError, match="a malformed rendezvous table"):
            unpack(broken)
    short = RendezvousTable(generation=1, group="g", rank=0, size=2, shared=whole, parts=b"")
    with pytest.raises(ValueError, match="for a group of 2"):
        rows_of(short)
