"""Real Gloo groups inside one process: one thread a member, boards pinned to each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from edl.collective.gloo import build_group
from edl.protocol.messages import RendezvousEntry
from edl.protocol.rendezvous import Rendezvous, rows_of
from edl.protocol.topology import Generation
from edl.runtime.board import Board, Entry
from edl.runtime.framework import BuildOptions, Group
from edl.types import Address, Gpu, Member, WorkerId

_Result = TypeVar("_Result")

__all__ = [
    "HOSTS",
    "build_members",
    "build_ring",
    "builders",
    "generation_of",
    "in_threads",
    "members",
    "memory_files",
]

HOSTS = ["localhost"]  # members are on these, in turn


def members(count: int) -> tuple[Member, ...]:
    return tuple(
        Member(
            worker=WorkerId(f"w{i}"),
            address=Address("127.0.0.1", 1),
            host=HOSTS[i % len(HOSTS)],
            slot=Gpu("localhost", i),
            pid=1,
        )
        for i in range(count)
    )


def in_threads(jobs: list[Callable[[], _Result]]) -> list[_Result]:
    """Run one function a thread; the first error is raised here."""
    results: dict[int, _Result] = {}
    errors: list[BaseException] = []

    def call(index: int) -> None:
        try:
            results[index] = jobs[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return [results[i] for i in range(len(jobs))]


def generation_of(everyone: tuple[Member, ...], *, newcomers: int) -> Generation:
    """A generation of these, the last `newcomers` of them new."""
    return Generation(
        number=1,
        members=everyone,
        newcomers=tuple(m.worker for m in everyone[len(everyone) - newcomers :]),
        source=everyone[0].worker,
        leader=everyone[0].worker,
        founding=False,
        mended=False,
        token=1,
        request_id="r",
    )


def build_ring(count: int, *, newcomers: int = 0) -> list[Group]:
    """The ends of one generation; the last `newcomers` of them are new."""
    return build_members(generation_of(members(count), newcomers=newcomers))


def build_members(generation: Generation) -> list[Group]:
    """Every member's end of a generation."""
    return in_threads(builders(generation))


def builders(
    generation: Generation,
    *,
    before_publish: Callable[[int, str, bytes], None] | None = None,
    secrets: Sequence[bytes] = (),
    timeout_s: float = 10.0,
    proof_timeout_s: float = 10.0,
) -> list[Callable[[], Group]]:
    """One function a member, in rank order, that builds its end; they must run in parallel.

    `before_publish` sees a member's rank, key and rendezvous value before any other member does.
    `secrets` are the members' own, for tests in which they differ.
    """
    boards: list[Board] = []

    def publish_from(index: int) -> Callable[[str, bytes], None]:
        def publish(key: str, value: bytes) -> None:
            if before_publish is not None:
                before_publish(index, key, value)
            for other, board in enumerate(boards):
                if other != index:
                    board.offer(key, value)

        return publish

    def collect_from(index: int) -> Callable[[Entry], None]:
        def collect(entry: Entry) -> None:
            if before_publish is not None:
                before_publish(index, f"{entry.group}/{entry.rank}", entry.common + entry.parts)
            with collecting:
                tables = known.add_entry(
                    RendezvousEntry(
                        generation=generation.number, worker=workers[index], **asdict(entry)
                    ),
                    generation,
                )
            for worker, table in tables.items():
                board = boards[workers.index(worker)]
                board.offer_table(rows_of(table), rank=table.rank, size=table.size)

        return collect

    known, collecting, workers = Rendezvous(), threading.Lock(), generation.workers()
    boards.extend(Board(publish_from(i), collect_from(i)) for i in range(generation.size))

    def member_of(index: int) -> Callable[[], Group]:
        options = BuildOptions(
            bind="127.0.0.1",
            timeout_s=timeout_s,
            proof_timeout_s=proof_timeout_s,
            secret=secrets[index] if secrets else b"a secret of the tests",
        )
        me, board = generation.workers()[index], boards[index]
        return lambda: build_group(generation, me, board, options)

    return [member_of(index) for index in range(generation.size)]


def memory_files() -> set[int]:
    """What this process holds of shared memory, by its number in the system.

    Groups of earlier tests may hold theirs until somebody collects them.
    """
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        try:
            if "edl-state" in os.readlink(path):
                found.add(path.stat().st_ino)
        except FileNotFoundError:
            continue  # the one that lists them, or one that was closed meanwhile
    return found
