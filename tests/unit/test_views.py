"""Datasets as the loader sees them: what is refused, and how options are checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from edl.data import Partition, Shard, Source
from edl.errors import UsageError
from edl.plugin.views import View, view_of
from edl.torch.dataset import Options


class Stream(IterableDataset[int]):
    def __init__(self, length: int, says: int) -> None:
        self.length = length
        self.says = says

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10**9))


def viewed(dataset: Any, *, shuffle: bool = True, drop_last: bool = False) -> View:
    return view_of(
        dataset,
        batch=4,
        seed=0,
        shuffle=shuffle,
        drop_last=drop_last,
        epochs=1,
        stream=isinstance(dataset, IterableDataset),
    )


@pytest.mark.parametrize(
    "dataset", [[], torch.empty(0, 3), Stream(0, 0)], ids=["list", "tensor", "stream"]
)
def test_an_empty_dataset_is_refused(dataset: Any) -> None:
    with pytest.raises(UsageError, match="a dataset of 0 samples gives no step"):
        viewed(dataset, shuffle=False)


def test_a_dataset_smaller_than_the_batch_gives_one_step_unless_that_is_dropped() -> None:
    view = viewed([1, 2, 3])
    assert view.ledger.step_size() == 3
    with pytest.raises(UsageError, match="3 samples gives no step with batch_size=4 and drop_last"):
        viewed([1, 2, 3], drop_last=True)


def test_a_dataset_without_a_length_is_refused() -> None:
    with pytest.raises(UsageError, match=r"needs a map-style dataset, .*; object has no length"):
        viewed(object())
    with pytest.raises(UsageError, match="give Endless a __len__"):
        viewed(Endless(), shuffle=False)


def test_a_stream_that_is_shorter_than_it_says_is_told() -> None:
    view = viewed(Stream(2, 3), shuffle=False)
    assert view.dataset.__getitems__([(0, 0), (0, 1)]) == [0, 1]
    with pytest.raises(UsageError, match="says that it has 3 samples, but ends before sample 2"):
        view.dataset.__getitems__([(0, 2)])


class Zeros(Source):
    def read(self, shard: Shard) -> list[int]:
        return [0] * shard.length


def test_partitions_are_used_whole() -> None:
    with pytest.raises(UsageError, match="drop_last with Zeros"):
        viewed(Zeros([Partition("a", 0, 5)]), drop_last=True)


def test_a_source_that_cannot_read_is_refused_when_it_is_made() -> None:
    class Mute(Source):
        """Forgot to say how it reads."""

    with pytest.raises(TypeError, match="read"):
        Mute([Partition("a", 0, 5)])  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"num_workers": -1}, "num_workers=-1: give a whole number, at least 0"),
        ({"num_workers": 1.0}, "num_workers=1.0: give a whole number"),
        ({"num_workers": True}, "num_workers=True: give a whole number"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor=0: give a whole number"),
        ({"prefetch_factor": 2}, "prefetch_factor=2 without worker processes"),
        ({"device_prefetch": -1}, "device_prefetch=-1: give a whole number, at least 0"),
        ({"timeout": -1.0, "num_workers": 1}, "timeout=-1.0: give seconds, or 0 for none"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why.replace(".", r"\.")):
        Options(**options).check()
