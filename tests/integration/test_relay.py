"""The first step with newcomers: elders reduce it alone, and everybody makes the same update."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from edl.collective import memory
from edl.collective.relay import Relay
from edl.errors import GroupBroken
from edl.protocol.topology import Generation, draw_next
from edl.runtime.framework import Group
from edl.types import WorkerId
from tests.integration import rings
from tests.integration.conftest import Start
from tests.integration.rings import (
    build_members,
    generation_of,
    in_threads,
    members,
    memory_files,
)
from tests.integration.test_requests import await_event

pytestmark = pytest.mark.paired

ROWS = [3 << 20, 7, 1 << 20]


def rows_of(seed: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    wide = [torch.randn(n, generator=made) for n in ROWS]
    return [*wide, wide[1].to(torch.bfloat16), wide[1].double()]


Build = Callable[[Generation], list[Group]]


@pytest.fixture
def build() -> Iterator[Build]:
    """Groups of a generation in this process, dropped when the test is over."""
    built: list[Group] = []

    def begin(generation: Generation) -> list[Group]:
        groups = build_members(generation)
        built.extend(groups)
        return groups

    yield begin
    for group in built:
        group.drop()


def joined(elders: int, newcomers: int) -> Generation:
    return generation_of(members(elders + newcomers), newcomers=newcomers)


def relay_of(group: Group) -> Relay:
    assert isinstance(group.relay, Relay)
    return group.relay


def relayed(groups: list[Group], *, rounds: int = 2) -> list[list[torch.Tensor]]:
    """Each member's rows after the elders have reduced theirs and handed them over."""

    def member(index: int) -> Callable[[], list[torch.Tensor]]:
        group = groups[index]
        relay = relay_of(group)

        def run() -> list[torch.Tensor]:
            rows: list[torch.Tensor] = []
            for again in range(rounds):
                rows = rows_of(index + 10 * again)
                work = [] if relay.takes else [relay.all_reduce(row) for row in rows]
                # As between two backward passes: newcomers have taken the last ones by now.
                group.all_reduce(torch.zeros(1), "max").wait()
                for pending in work:
                    pending.wait()
                if relay.hands:
                    relay.reserve([row.nbytes for row in rows])
                    relay.hand(rows)
                    # The script may change its gradients at once.
                    rows = [row.clone() for row in rows]
                elif relay.takes:
                    relay.take(rows)
            return rows

        return run

    return in_threads([member(index) for index in range(len(groups))])


def assert_equal_sums(found: list[list[torch.Tensor]], elders: int) -> None:
    for mine in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(mine, found[0], strict=True))
    if elders > 0:
        summed = sum((rows_of(index + 10)[0] for index in range(elders)), torch.zeros(ROWS[0]))
        assert torch.allclose(found[0][0], summed, atol=1e-6)


def test_a_room_that_was_made_before_the_step_is_the_one_used(build: Build) -> None:
    before = memory_files()
    groups = build(joined(2, 1))
    sizes = [row.nbytes for row in rows_of(0)]
    (source,) = (relay_of(group) for group in groups if relay_of(group).hands)
    source.prepare(sizes)
    assert memory_files() - before
    assert_equal_sums(relayed(groups), 2)
    assert source._room is not None
    assert source._room.number == 0
    for group in groups:
        group.drop()
    assert not memory_files() - before


def test_a_room_is_touched_beside_and_given_back_at_once(build: Build) -> None:
    """Also one that is far from touched: nobody waits for memory that is not used."""
    before = memory_files()
    groups = build(joined(2, 1))
    (source,) = (relay_of(group) for group in groups if relay_of(group).hands)
    source.prepare([1 << 30])
    assert [each.name for each in threading.enumerate()].count("edl-touch") == 1
    for group in groups:
        group.drop()
    assert [each.name for each in threading.enumerate()].count("edl-touch") == 0
    assert not memory_files() - before


@pytest.mark.parametrize(("elders", "newcomers"), [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_newcomers_get_what_the_elders_reduced(build: Build, elders: int, newcomers: int) -> None:
    before = memory_files()
    groups = build(joined(elders, newcomers))
    assert_equal_sums(relayed(groups), elders)
    for group in groups:
        group.drop()
    assert not memory_files() - before


def test_elders_reduce_without_a_newcomer_doing_anything(build: Build) -> None:
    groups = build(joined(2, 3))
    relays = [relay_of(group) for group in groups[:2]]
    rows = [torch.full((1 << 20,), float(rank + 1)) for rank in range(2)]
    in_threads([relay.all_reduce(row).wait for relay, row in zip(relays, rows, strict=True)])
    assert all(bool((row == 3.0).all()) for row in rows)


def test_an_elder_goes_on_while_newcomers_are_behind(build: Build) -> None:
    """Handing over waits for nobody: it ends before any newcomer asks for it."""
    groups = build(joined(2, 2))
    source, row = relay_of(groups[0]), torch.randn(1 << 20)
    source.reserve([row.nbytes])
    source.hand([row])
    expected = row.clone()
    row.zero_()
    found = [torch.empty(1 << 20) for _ in range(2)]
    takers = [relay_of(group) for group in groups[2:]]
    in_threads([partial(r.take, [f]) for r, f in zip(takers, found, strict=True)])
    assert all(torch.equal(mine, expected) for mine in found)


def test_a_migration_has_its_elders_too(build: Build) -> None:
    """w0 goes and w3 comes in one generation: w1 and w2 reduce, w1 hands over."""
    everyone = members(4)
    old = generation_of(everyone[:3], newcomers=0)
    new = draw_next(
        old,
        number=2,
        joiners=[everyone[3]],
        leavers=[everyone[0].worker],
        token=1,
        request_id="r",
    )
    assert new.elders() == (WorkerId("w1"), WorkerId("w2"))
    groups = build(new)
    relays = [relay_of(group) for group in groups]
    assert [(relay.hands, relay.takes) for relay in relays] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert_equal_sums(relayed(groups), elders=2)


def test_members_on_several_machines_go_by_tcp(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: Any) -> None:
        raise AssertionError("this is for one machine only")

    monkeypatch.setattr("edl.collective.relay.create_memory", never)
    monkeypatch.setattr(rings, "HOSTS", ["one", "two"])
    assert_equal_sums(relayed(build(joined(2, 2))), elders=2)


def test_who_cannot_open_the_memory_makes_everybody_go_by_tcp(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def sometimes(pid: int, file: int, size: int, nonce: int) -> Any:
        asked.append(file)
        return None if len(asked) == 2 else memory.open_memory(pid, file, size, nonce)

    monkeypatch.setattr("edl.collective.relay.open_memory", sometimes)
    assert_equal_sums(relayed(build(joined(2, 3))), elders=2)
    assert len(asked) == 3


def test_a_larger_room_is_made_when_there_is_more_to_hand_over(build: Build) -> None:
    groups = build(joined(1, 1))
    source, taker = (relay_of(group) for group in groups)
    for size in (10, 100, 50):
        row, found = torch.randn(size), torch.empty(size)
        source.reserve([row.nbytes])
        source.hand([row])
        taker.take([found])
        assert torch.equal(row, found)


def test_buffers_go_to_elders_and_newcomers(build: Build) -> None:
    groups = build(joined(2, 2))
    found = [torch.full((5,), float(rank)) for rank in range(4)]

    def member(index: int) -> Callable[[], None]:
        relay = relay_of(groups[index])

        def run() -> None:
            if not relay.takes:
                relay.broadcast(found[index]).wait()
            if relay.hands or relay.takes:
                relay.pass_on(found[index])

        return run

    in_threads([member(index) for index in range(4)])
    assert all(torch.equal(mine, torch.zeros(5)) for mine in found)


def test_a_newcomer_hears_of_a_source_that_is_gone(build: Build) -> None:
    groups = build(joined(1, 1))
    waiting = threading.Thread(target=groups[0].drop)
    waiting.start()
    with pytest.raises(GroupBroken):
        relay_of(groups[1]).take([torch.empty(4)])
    waiting.join()


def test_founders_and_leavers_need_no_relay(build: Build) -> None:
    assert all(group.relay is None for group in build(joined(2, 0)))
    everyone = members(2)
    founding = Generation(
        number=1,
        members=everyone,
        newcomers=(everyone[1].worker,),
        source=everyone[0].worker,
        leader=everyone[0].worker,
        founding=True,
        mended=False,
        token=1,
        request_id="",
    )
    assert all(group.relay is None for group in build(founding))


# -- whole jobs --------------------------------------------------------------------------------


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in log.glob("*.jsonl") for line in path.read_text().splitlines()
    ]


def await_steps_of_four(log: Path) -> None:
    """Until some steps have been done among four workers."""
    until = time.monotonic() + 60.0
    while len({x["step"] for x in lines_of(log) if x.get("size") == 4}) < 6:
        assert time.monotonic() < until, "no steps among four workers"
        threading.Event().wait(0.1)


@pytest.mark.parametrize("compression", [None, "bf16"])
def test_a_join_of_two_is_reduced_by_the_elders_alone(
    start: Start, log: Path, tmp_path: Path, compression: str | None
) -> None:
    end = tmp_path / "end"
    more = ("--compression", compression) if compression else ()
    job = start("relay.py", "--log", str(log), "--until", str(end), *more)
    await_event(job, "job.started")
    assert job.scale_out(2) is not None
    await_steps_of_four(log)
    end.touch()
    result = job.wait(100)
    assert result.state == "finished", result.first_failure

    steps: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in lines_of(log):
        steps[line["step"]].append(line)
    switch = min(step for step, lines in steps.items() if any(x["size"] == 4 for x in lines))
    usual = max(line["whole"] for line in steps[switch + 1])
    assert usual > 5000 // (2 if compression else 1)
    elders = [line for line in steps[switch] if line["rows"]]
    newcomers = [line for line in steps[switch] if not line["rows"]]
    assert (len(elders), len(newcomers)) == (2, 2)
    # Beyond the vote on whether the step counts, four bytes, the whole group reduces nothing.
    assert all((line["whole"], line["apart"]) == (4, usual) for line in elders)
    assert all((line["whole"], line["apart"]) == (4, 0) for line in newcomers)
    for step in range(switch, switch + 4):
        lines = steps[step]
        assert len(lines) == 4
        assert all(line["committed"] for line in lines)
        # A weight and a bias of the layer that nobody uses; none of the layer that elders used.
        assert [line["unused"] for line in lines] == [2] * 4
        assert len({line["gradients"] for line in lines}) == 1
        assert len({line["seen"] for line in lines}) == 1
        assert step == switch or all(line["apart"] == 0 for line in lines)
    assert len({line["buffers"] for line in steps[switch]}) == 1


def test_a_newcomer_that_leaves_its_loop_in_its_first_step_voids_it_for_all(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = start("relay.py", "--log", str(log), "--until", str(end), "--leave-first")
    await_event(job, "job.started")
    assert job.scale_out(2) is not None
    await_steps_of_four(log)
    end.touch()
    result = job.wait(100)
    assert result.state == "finished", result.first_failure
    lines = lines_of(log)
    left = {line["left"] for line in lines if "left" in line}
    assert len(left) == 1
    (step,) = left
    voided = [x for x in lines if x.get("step") == step and not x["committed"] and x["size"] == 4]
    assert len(voided) == 2  # both elders; nobody's update counted
    again = [x for x in lines if x.get("step") == step and x["committed"]]
    assert len(again) == 4
    assert len({line["seen"] for line in again}) == 1
    later = [x for x in lines if x.get("step") == step + 1]
    assert len({line["seen"] for line in later}) == 1
