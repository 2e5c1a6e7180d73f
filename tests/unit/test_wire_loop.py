"""The hub's thread: posted functions, timers and ticks. No socket but its own wake-up pair."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from edl.wire.loop import Loop

PATIENCE_S = 10.0


@pytest.fixture
def loops() -> Iterator[Callable[..., Loop]]:
    """Makes running loops that are ended when the test is over."""
    made: list[Loop] = []

    def make(
        *,
        on_error: Callable[[BaseException], None] | None = None,
        on_tick: Callable[[], None] | None = None,
    ) -> Loop:
        made.append(Loop(name="test-loop", on_error=on_error, on_tick=on_tick, tick_s=0.001))
        made[-1].start()
        return made[-1]

    yield make
    for loop in made:
        loop.post(loop.end)
        loop.join()


def fail(error: BaseException) -> None:
    raise error


def test_posts_of_many_threads_all_run_in_the_one_thread(loops: Callable[..., Loop]) -> None:
    loop = loops()
    ran: list[tuple[int, int, int]] = []
    done = threading.Event()

    def run(sender: int, number: int) -> None:
        ran.append((sender, number, threading.get_ident()))

    def post(sender: int) -> None:
        for number in range(500):
            loop.post(partial(run, sender, number))

    threads = [threading.Thread(target=post, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loop.post(done.set)
    assert done.wait(PATIENCE_S)
    assert {ident for _, _, ident in ran} == {loop.thread_ident}
    # Of one sender they run in order, and none is lost.
    for sender in range(4):
        assert [number for who, number, _ in ran if who == sender] == list(range(500))


def test_each_post_wakes_a_loop_that_waits_for_ever(loops: Callable[..., Loop]) -> None:
    loop = loops()
    for _ in range(200):
        ran = threading.Event()
        loop.post(ran.set)
        assert ran.wait(PATIENCE_S)


def test_a_loop_without_tick_and_timers_waits_for_ever(loops: Callable[..., Loop]) -> None:
    idle, ticking = loops(), loops(on_tick=lambda: None)
    assert idle._patience() is None
    assert ticking._patience() is not None


def test_timers_run_in_the_order_of_their_times(loops: Callable[..., Loop]) -> None:
    loop = loops()
    order: list[str] = []
    done = threading.Event()

    def set_timers() -> None:
        loop.call_later(0.02, done.set)
        loop.call_later(0.01, partial(order.append, "late"))
        loop.call_later(0.0, partial(order.append, "soon"))
        loop.call_later(0.0, partial(order.append, "then"))

    loop.post(set_timers)
    assert done.wait(PATIENCE_S)
    assert order == ["soon", "then", "late"]


def test_ticks_come(loops: Callable[..., Loop]) -> None:
    ticks = threading.Semaphore(0)
    loops(on_tick=ticks.release)
    for _ in range(3):
        assert ticks.acquire(timeout=PATIENCE_S)


def test_a_function_that_posts_itself_again_starves_no_timer(loops: Callable[..., Loop]) -> None:
    loop = loops()
    fired = threading.Event()

    def again() -> None:
        if not fired.is_set():
            loop.post(again)

    loop.post(again)
    loop.post(lambda: loop.call_later(0.0, fired.set))
    assert fired.wait(PATIENCE_S)


def test_what_fails_is_reported_and_the_loop_goes_on(loops: Callable[..., Loop]) -> None:
    errors: list[BaseException] = []
    loop = loops(on_error=errors.append)
    done = threading.Event()
    wanted = [RuntimeError("one"), SystemExit(3), KeyboardInterrupt()]
    for error in wanted:
        loop.post(partial(fail, error))
    loop.post(done.set)
    assert done.wait(PATIENCE_S)
    assert errors == wanted


def test_a_reporter_that_fails_itself_is_logged(
    loops: Callable[..., Loop], caplog: pytest.LogCaptureFixture
) -> None:
    loop = loops(on_error=fail)
    done = threading.Event()
    loop.post(partial(fail, RuntimeError("seen")))
    loop.post(done.set)
    assert done.wait(PATIENCE_S)
    assert "seen" in caplog.text


def test_without_a_reporter_the_failure_is_logged(
    loops: Callable[..., Loop], caplog: pytest.LogCaptureFixture
) -> None:
    loop = loops()
    done = threading.Event()
    loop.post(partial(fail, RuntimeError("to be seen")))
    loop.post(done.set)
    assert done.wait(PATIENCE_S)
    assert "to be seen" in caplog.text
