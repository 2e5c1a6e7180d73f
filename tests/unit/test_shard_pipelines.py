"""What a pipeline draws ahead of the steps, and what comes out of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from edl.errors import UsageError
from edl.protocol.drawing import DrawnLedger
from edl.protocol.progress import Progress
from edl.protocol.shards import Piece
from edl.protocol.topology import draw_first
from edl.runtime.drawing import Drawing
from edl.runtime.partitions import Partition, Shard
from edl.runtime.producer import Producer
from edl.types import Address, Gpu, Member, WorkerId

PARTITIONS = [Partition("a", 0, 10), Partition("b", 100, 10)]


def drawing(*, ahead: int = 0) -> Drawing:
    return Drawing(PARTITIONS, ahead=ahead)


def lengths(drawn: Drawing, count: int) -> list[int]:
    return [shard.length for _ in range(count) if (shard := drawn.draw()) is not None]


def test_what_is_drawn_is_the_queue_in_its_order() -> None:
    drawn = drawing()
    drawn.tell(3, [Piece(1, 2, 5), Piece(0, 0, 10)])
    first = drawn.draw()
    assert first == Shard(path="b", offset=102, length=5, epoch=3, index=1)
    second = drawn.draw(4)
    assert second == Shard(path="a", offset=0, length=4, epoch=3, index=0)


def test_what_is_in_line_is_not_drawn_again() -> None:
    drawn = drawing()
    drawn.tell(0, [Piece(0, 0, 10)])
    drawn.draw(4)
    drawn.tell(0, [Piece(0, 0, 10), Piece(1, 0, 10)])
    assert lengths(drawn, 2) == [6, 10]


def test_what_the_loop_holds_is_not_drawn_again() -> None:
    drawn = drawing()
    drawn.tell(0, [Piece(0, 0, 10)])
    drawn.draw(4)
    assert drawn.flowed(3) == ([Piece(0, 0, 3)], [])
    drawn.tell(0, [Piece(0, 3, 7)])
    assert drawn.draw() == Shard(path="a", offset=4, length=6, epoch=0, index=0)


def test_what_a_lost_step_had_handed_out_is_nobodys_any_more() -> None:
    drawn = drawing()
    drawn.tell(0, [Piece(0, 0, 2), Piece(1, 0, 3)])
    lengths(drawn, 2)
    drawn.tell(0, [Piece(0, 0, 2), Piece(1, 5, 2)])
    assert drawn.draw() == Shard(path="b", offset=105, length=2, epoch=0, index=1)
    assert drawn.flowed(7) == ([Piece(0, 0, 2)], [Piece(1, 5, 2)])


def test_samples_of_an_earlier_epoch_are_nobodys() -> None:
    drawn = drawing()
    drawn.tell(0, [Piece(0, 0, 10)])
    drawn.draw(4)
    drawn.tell(1, [Piece(1, 0, 10)])
    drawn.draw(4)
    assert drawn.flowed(6) == ([], [Piece(1, 0, 2)])


def test_more_samples_than_were_drawn_are_refused() -> None:
    drawn = drawing()
    drawn.tell(0, [Piece(0, 0, 4)])
    drawn.draw()
    with pytest.raises(UsageError, match="5 samples came out of a pipeline that was given 4"):
        drawn.flowed(5)


def test_the_training_thread_never_waits_for_its_own_next_step() -> None:
    with pytest.raises(UsageError, match="asks for more samples than this step has"):
        drawing().draw()


def test_another_thread_waits_until_it_is_told() -> None:
    drawn = drawing()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(drawn.draw)
        drawn.tell(0, [Piece(0, 0, 4)])
        assert waiting.result() == Shard(path="a", offset=0, length=4, epoch=0, index=0)
        last = thread.submit(drawn.draw)
        drawn.finish()
        assert last.result() is None


def progress_of(*queue: Piece, usual: int) -> Progress:
    """A job of one worker whose queue this is, and nothing is free."""
    me = WorkerId("w0")
    member = Member(worker=me, address=Address("", 0), host="", slot=Gpu("", 0), pid=0)
    ledger = DrawnLedger.prepared([10, 10], batch=0, seed=0, epochs=1, shuffle=False, ahead=100)
    ledger = replace(ledger, queues=((me, queue),), handed=2, untouched=0, usual=usual)
    return Progress(
        me=me, generation=draw_first([member], number=1, leader=me, token=1), ledger=ledger
    )


def test_stand_ins_fill_up_a_batch_and_no_more() -> None:
    drawn = drawing(ahead=100)
    drawn.foresee(progress_of(Piece(0, 0, 3), usual=8))
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(lengths, drawn, 2).result() == [3, 5]
        beyond = thread.submit(drawn.draw)
        assert drawn.flowed(8) == ([Piece(0, 0, 3)], [])
        stand_in = beyond.result()
        assert stand_in is not None
        assert stand_in.length == 8


def test_a_step_counts_up_to_the_first_stand_in() -> None:
    drawn = drawing(ahead=100)
    drawn.foresee(progress_of(Piece(0, 0, 3), usual=5))
    lengths(drawn, 2)
    progress = progress_of(Piece(0, 0, 3), Piece(1, 0, 10), usual=5)
    plan = progress.plan()
    assert plan.count == 13
    assert drawn.opened(plan, progress).count == 3
    drawn.draw()
    assert drawn.flowed(9) == ([Piece(0, 0, 3)], [Piece(1, 0, 4)])


def test_two_ranges_are_wanted_beside_the_one_that_is_read() -> None:
    drawn = drawing()
    assert drawn.want() == 2
    drawn.tell(0, [Piece(0, 0, 3), Piece(1, 0, 10)])
    assert drawn.want() == 0
    drawn.draw()
    assert drawn.want() == 1


def shards(count: int) -> Iterator[Shard]:
    for number in range(count):
        yield Shard(path="a", offset=number, length=1, epoch=0, index=0)


def test_a_producer_reads_two_buffers_ahead_and_no_more() -> None:
    coming, read = shards(9), []
    full = threading.Event()

    def reader(shard: Shard) -> list[int]:
        read.append(shard.offset)
        if len(read) == 3:
            full.set()
        return [shard.offset]

    producer = iter(Producer(lambda: next(coming, None), reader))
    assert full.wait(5)
    assert read == [0, 1, 2]
    assert list(producer) == list(range(9))


def test_a_producers_error_comes_where_its_samples_would() -> None:
    coming = shards(3)

    def reader(shard: Shard) -> list[int]:
        if shard.offset == 1:
            raise OSError("gone")
        return [shard.offset]

    producer = iter(Producer(lambda: next(coming, None), reader))
    assert next(producer) == 0
    with pytest.raises(OSError, match="gone"):
        next(producer)


def test_a_reader_that_gives_too_few_samples_is_refused() -> None:
    coming = shards(1)
    producer = iter(Producer(lambda: next(coming, None), lambda shard: []))
    with pytest.raises(UsageError, match=r"gave 0 samples of a shard of 1 \('a', from 0 on\)"):
        next(producer)
