"""Nobody waits in a broken group for ever, not even for an operation that Gloo has forgotten."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from edl.collective.gloo import GlooGroup
from edl.errors import GroupBroken
from tests.integration.rings import build_members, generation_of, members

pytestmark = pytest.mark.paired


@pytest.fixture
def pair() -> Iterator[list[GlooGroup]]:
    """Two members of one group, which are dropped on a thread, as workers do."""
    built = build_members(generation_of(members(2), newcomers=0))
    groups = [group for group in built if isinstance(group, GlooGroup)]
    assert len(groups) == 2
    yield groups
    for group in groups:
        dropping = threading.Thread(target=group.drop)
        dropping.start()
        dropping.join(20)
        assert not dropping.is_alive()


def operations(group: GlooGroup) -> dict[str, Any]:
    """Each of them needs the other member, which does not come."""
    return {
        "reduction": group.all_reduce(torch.ones(4)),
        "exchange": group.exchange([1, 2]),
        "message": group.move(torch.zeros(8, dtype=torch.uint8), 1, 0),
    }


@pytest.mark.parametrize("name", ["reduction", "exchange", "message"])
def test_an_operation_that_never_ends_is_given_up_when_its_group_breaks(
    pair: list[GlooGroup], name: str
) -> None:
    work = operations(pair[0])[name]
    raised: list[str] = []

    def wait() -> None:
        try:
            work.wait()
        except GroupBroken as error:
            raised.append(str(error))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(0.7)
    assert waiting.is_alive()
    # Told without a single connection being touched: as if Gloo had lost the operation.
    pair[0]._fate.broken = "a peer was lost"
    waiting.join(20)
    assert raised == ["a peer was lost"]


def test_a_slow_peer_is_waited_for(pair: list[GlooGroup]) -> None:
    mine, theirs = torch.ones(4), torch.full((4,), 2.0)
    work = pair[0].all_reduce(mine)
    waiting = threading.Thread(target=work.wait, daemon=True)
    waiting.start()
    waiting.join(0.7)
    assert waiting.is_alive()
    pair[1].all_reduce(theirs).wait()
    waiting.join(20)
    assert mine.tolist() == [3.0] * 4


def test_an_operation_that_failed_says_so_every_time(pair: list[GlooGroup]) -> None:
    work = pair[0].all_reduce(torch.ones(4))
    pair[1].break_("on purpose")
    for _ in range(2):
        with pytest.raises(GroupBroken, match="a collective failed") as caught:
            work.wait()
        # The events of the job repeat this text: no places in Gloo's source, no greetings.
        assert re.fullmatch(r"a collective failed: [ -~]{1,120}", str(caught.value))
        assert ".cc:" not in str(caught.value)
