"""torch's real rendezvous values, and groups that are built from tables of them."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed

from edl.collective.rank_value import IDENTIFIER_BYTES, own_key, split
from tests.integration.rings import build_ring, in_threads

dist: Any = torch.distributed
Gloo: Any = dist.ProcessGroupGloo


class _Recorder(dist.Store):  # type: ignore[misc]
    """A store of one process that keeps all that was published in it."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: Any) -> None:
        with self._changed:
            self.values[key] = bytes(value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, 30)
            return self.values[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)


@pytest.mark.parametrize("size", [2, 3, 16])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_this_torch_publishes_one_value_a_rank_of_the_layout_that_is_split(
    size: int, host: str
) -> None:
    """If this fails, groups are still built: but each table holds n whole values."""
    store = _Recorder()

    def build(rank: int) -> Any:
        options = Gloo._Options()
        options._devices = [Gloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=30)
        return Gloo(dist.PrefixStore("data", store), rank, size, options)

    in_threads([partial(build, rank) for rank in range(size)])
    assert set(store.values) == {own_key("data", rank) for rank in range(size)}
    for value in store.values.values():
        common, parts = split(value, size)
        assert common + parts == value
        assert len(parts) == IDENTIFIER_BYTES * size
        assert len(common) < 160 + 64


@pytest.mark.parametrize(
    "value",
    [b"", b"short", b"\xff" * 200, bytes(8), (3).to_bytes(8, "little") + b"abc" + bytes(7)],
)
def test_a_value_of_another_layout_is_all_common(value: bytes) -> None:
    assert split(value, 3) == (value, b"")


@pytest.mark.parametrize(("count", "newcomers"), [(2, 0), (5, 2)])
def test_groups_are_built_from_tables_and_reduce(count: int, newcomers: int) -> None:
    groups: list[Any] = build_ring(count, newcomers=newcomers)
    tensors = [torch.full((3,), float(rank)) for rank in range(count)]

    def reduce(rank: int) -> list[list[int]]:
        groups[rank].all_reduce(tensors[rank]).wait()
        rows: list[list[int]] = groups[rank].exchange([rank, 7]).result()
        return rows

    rows = in_threads([partial(reduce, rank) for rank in range(count)])
    assert all(row == [[rank, 7] for rank in range(count)] for row in rows)
    assert all(tensor.tolist() == [sum(range(count))] * 3 for tensor in tensors)
    for group in groups:
        group.drop()


def test_groups_are_built_from_values_of_an_unknown_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edl.collective.gloo.split", lambda value, size: (value, b""))
    groups: list[Any] = build_ring(3)

    def exchange(group: Any) -> list[list[int]]:
        rows: list[list[int]] = group.exchange([group.rank]).result()
        return rows

    sums = in_threads([partial(exchange, group) for group in groups])
    assert sums == [[[0], [1], [2]]] * 3
    for group in groups:
        group.drop()
