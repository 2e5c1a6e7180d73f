"""The book: who holds what, what was used, and the order in which jobs stand."""

from __future__ import annotations

import pytest

from edl.policy.book import Book
from edl.policy.decisions import Migrate, Preempt, Requeue, ScaleIn, ScaleOut, Start, Where
from edl.policy.view import Job
from tests.unit.clusters import FALLING


def submit(book: Book, gpus: int = 4, *, now: float = 0.0, elastic: bool = True) -> Job:
    return book.submit(now, "j", gpus=gpus, curve=FALLING, elastic=elastic, least=2, most=6)


def test_gpus_are_held_and_given_back() -> None:
    book = Book(nodes=2, gpus_per_node=4)
    job = submit(book)
    assert book.view.free == 8
    book.apply(0.0, Start(job.key, 4, "x"))
    assert (job.held, book.view.free) == (4, 4)
    book.apply(1.0, ScaleOut(job.key, 6, "x"))
    assert (job.held, book.view.free) == (6, 2)
    book.apply(2.0, ScaleIn(job.key, 3, "x"))
    assert (job.held, book.view.free) == (3, 5)
    book.apply(3.0, Preempt(job.key, "x"))
    assert (job.held, book.view.free) == (0, 8)
    book.check()


def test_service_is_what_was_held_over_time() -> None:
    book = Book(nodes=1, gpus_per_node=8)
    job = submit(book)
    book.apply(10.0, Start(job.key, 4, "x"))
    assert (job.waited_at(10.0), job.service_at(15.0), job.ran_at(15.0)) == (0.0, 20.0, 5.0)
    book.apply(20.0, ScaleOut(job.key, 6, "x"))
    assert job.total_at(21.0) == 46.0
    book.apply(30.0, Preempt(job.key, "x"))
    assert (job.service_at(50.0), job.ran_at(50.0), job.waited_at(50.0)) == (100.0, 20.0, 20.0)
    book.apply(50.0, Requeue(job.key, 0, "x", fresh=True))
    assert (job.service_at(50.0), job.ran_at(50.0), job.waited_at(50.0)) == (0.0, 0.0, 0.0)
    assert job.total_at(50.0) == 100.0


def test_the_time_before_the_first_start_is_no_waiting_of_tiresias() -> None:
    book = Book(nodes=1, gpus_per_node=8)
    assert submit(book).waited_at(100.0) == 0.0


def test_bounds_of_a_job() -> None:
    book = Book(nodes=1, gpus_per_node=8)
    # Not elastic: exactly what was asked for. FALLING has speeds up to 8 GPUs.
    assert [(job.least, job.most) for job in [submit(book, elastic=False)]] == [(4, 4)]
    assert [(job.least, job.most) for job in [submit(book), submit(book, 1)]] == [(2, 6), (1, 6)]
    unbounded = book.submit(0.0, "j", gpus=4, curve=FALLING)
    assert (unbounded.least, unbounded.most) == (1, 8)
    # What a user asked for is lawful, beyond `most` too.
    assert book.submit(0.0, "j", gpus=8, curve=FALLING, most=6).most == 8


@pytest.mark.parametrize(
    "decision",
    [
        Start(0, 7, "more than its most"),
        Start(0, 1, "fewer than its least"),
        Start(1, 3, "not what was asked for"),
        Start(2, 6, "more than are free"),
        ScaleOut(0, 4, "it does not run"),
        Preempt(0, "it does not run"),
    ],
)
def test_an_unlawful_decision_is_refused(decision: Start | ScaleOut | Preempt) -> None:
    book = Book(nodes=1, gpus_per_node=8)
    submit(book)
    submit(book, elastic=False)
    submit(book, 6)
    filler = submit(book, 3)
    book.apply(0.0, Start(filler.key, 3, "x"))
    with pytest.raises(AssertionError):
        book.apply(0.0, decision)


def test_a_running_job_is_not_started() -> None:
    book = Book(nodes=1, gpus_per_node=8)
    job = submit(book)
    book.apply(0.0, Start(job.key, 4, "x"))
    with pytest.raises(AssertionError):
        book.apply(0.0, Start(job.key, 4, "x"))


# -- places ----------------------------------------------------------------------------------------


def test_places_are_taken_and_given_back() -> None:
    book = Book(nodes=2, gpus_per_node=4, together=True)
    job = submit(book)
    book.apply(0.0, Start(job.key, 4, "x", ((0, 3), (1, 1))))
    assert book.view.free_on == [1, 3]
    book.apply(0.0, Migrate(job.key, 4, "x", ((1, 4),)))
    assert book.view.free_on == [4, 0]
    book.apply(0.0, ScaleIn(job.key, 2, "x", ((1, 2),)))
    assert book.view.free_on == [4, 2]
    book.check()
    book.finish(1.0, job.key)
    assert (book.view.free_on, book.view.free, job.where) == ([4, 4], 8, ())


@pytest.mark.parametrize(
    "where", [(), ((0, 3),), ((0, 5),), ((0, 4), (1, 0)), ((0, 2), (1, 2), (1, 1))]
)
def test_an_unlawful_place_is_refused(where: Where) -> None:
    book = Book(nodes=2, gpus_per_node=4, together=True)
    job = submit(book)
    with pytest.raises(AssertionError):
        book.apply(0.0, Start(job.key, 4, "x", where))


def test_a_place_that_is_taken_is_refused() -> None:
    book = Book(nodes=2, gpus_per_node=4, together=True)
    first, second = submit(book), submit(book)
    book.apply(0.0, Start(first.key, 4, "x", ((0, 4),)))
    with pytest.raises(AssertionError):
        book.apply(0.0, Start(second.key, 4, "x", ((0, 1), (1, 3))))


# -- order -----------------------------------------------------------------------------------------


def waiting(book: Book) -> list[int]:
    jobs = [job for job in book.view.jobs.values() if not job.held]
    return [job.key for job in sorted(jobs, key=lambda job: (-job.front, job.turn))]


def test_those_that_had_to_stop_stand_before_those_that_never_ran() -> None:
    book = Book(nodes=1, gpus_per_node=16)
    for _ in range(4):
        submit(book)
    for key in (2, 1, 3):
        book.apply(0.0, Start(key, 4, "x"))
    assert waiting(book) == [0]
    # Both stop at one moment: as they began to run.
    book.apply(5.0, Preempt(1, "x"))
    book.apply(5.0, Preempt(2, "x"))
    assert waiting(book) == [2, 1, 0]
    # Later: before them.
    book.apply(6.0, Preempt(3, "x"))
    assert waiting(book) == [3, 2, 1, 0]


def test_whoever_goes_to_another_queue_stands_at_its_end() -> None:
    book = Book(nodes=1, gpus_per_node=16)
    first, second = submit(book), submit(book)
    book.apply(0.0, Requeue(first.key, 1, "x"))
    book.apply(0.0, Requeue(second.key, 1, "x"))
    assert waiting(book) == [0, 1]
    book.apply(0.0, Requeue(first.key, 0, "x", fresh=True))
    assert (first.queue, second.queue) == (0, 1)
    assert waiting(book) == [1, 0]


def test_whoever_stops_as_it_goes_there_stays_at_the_end() -> None:
    book = Book(nodes=1, gpus_per_node=16)
    first, second = submit(book), submit(book)
    book.apply(0.0, Start(first.key, 4, "x"))
    book.apply(0.0, Requeue(second.key, 1, "x"))
    book.apply(5.0, Requeue(first.key, 1, "x"))
    book.apply(5.0, Preempt(first.key, "x"))
    assert waiting(book) == [1, 0]


# -- news ------------------------------------------------------------------------------------------


def test_news_names_whoever_changed() -> None:
    book = Book(nodes=1, gpus_per_node=16)
    first, second = submit(book), submit(book)
    assert book.view.take_news() == [first, second]
    assert book.view.take_news() == []
    book.apply(0.0, Start(second.key, 4, "x"))
    assert book.view.take_news() == [second]
    book.finish(1.0, second.key)
    assert book.view.take_news() == [second]
    assert second.over
    assert list(book.view.jobs) == [first.key]


def test_progress_as_the_leader_tells_it() -> None:
    book = Book(nodes=1, gpus_per_node=8)
    job = submit(book)
    assert job.left_at(5.0) is None
    book.tell(10.0, job, 100.0, 4.0)
    assert [job.left_at(now) for now in (5.0, 10.0, 20.0, 99.0)] == [100.0, 100.0, 60.0, 0.0]
