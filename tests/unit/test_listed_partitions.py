"""Lists of partitions: what is taken, and what is refused, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.errors import UsageError
from edl.runtime.partitions import Partition, listed_partitions, read_manifest


def test_tuples_paths_and_whole_numbers_of_any_kind_are_taken() -> None:
    given: list[Any] = [Partition("a", 0, 5), ("a", 5, 5), [Path("b"), np.int64(3), np.int32(2)]]
    found = listed_partitions(given)
    assert found == [Partition("a", 0, 5), Partition("a", 5, 5), Partition("b", 3, 2)]
    assert {type(part.offset) for part in found} == {int}


@pytest.mark.parametrize(
    "one",
    [
        ("a", 0),
        ("a", 0, 1, 2),
        ("a", 0.0, 1),
        ("a", 0, 1.5),
        ("a", 0, float("nan")),
        ("a", True, 1),
        ("a", 0, True),
        ("a", "0", 1),
        ("a", None, 1),
        (7, 0, 1),
        (b"a", 0, 1),
        (None, 0, 1),
        "abc",
        {"path": "a", "offset": 0, "length": 1},
        None,
        3,
    ],
)
def test_what_is_no_partition_is_told_with_its_number(one: Any) -> None:
    with pytest.raises(UsageError, match=r"partition 1 is .*; expected \(path, offset, length\)"):
        listed_partitions([("a", 5, 1), one])


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (0, -1), (-1, 1)])
def test_offsets_and_lengths_that_name_no_samples(offset: int, length: int) -> None:
    with pytest.raises(UsageError, match=f"partition 0 has offset {offset} and length {length}"):
        listed_partitions([("a", offset, length)])


@pytest.mark.parametrize("other", [("a", 0, 10), ("a", 9, 5), ("a", 0, 1), ("a", 3, 2)], ids=str)
def test_partitions_that_share_samples(other: tuple[str, int, int]) -> None:
    for given in ([("a", 0, 10), ("b", 0, 10), other], [other, ("b", 0, 10), ("a", 0, 10)]):
        with pytest.raises(UsageError, match=r"overlap: some samples would be used twice an epoch"):
            listed_partitions(given)


def test_neighbours_share_nothing() -> None:
    assert len(listed_partitions([("a", 10, 5), ("a", 0, 10), ("b", 0, 10)])) == 3


def test_no_partitions() -> None:
    with pytest.raises(UsageError, match="no partitions"):
        listed_partitions([])


@pytest.mark.parametrize(
    "text",
    [
        '[["a", 0, 5], ["b", 0, 3]]',
        '[{"path": "a", "offset": 0, "length": 5}, {"path": "b", "offset": 0, "length": 3}]',
        '["a", 0, 5]\n["b", 0, 3]\n',
        '{"path": "a", "offset": 0, "length": 5}\n\n{"path": "b", "offset": 0, "length": 3}\n',
        "path,offset,length\na,0,5\nb,0,3\n",
        "a,0,5\nb,0,3",
    ],
)
def test_a_manifest_in_any_form(text: str) -> None:
    assert read_manifest(text, "m") == [Partition("a", 0, 5), Partition("b", 0, 3)]


@pytest.mark.parametrize("number", [1.5, True, None, "x", [1]])
def test_a_manifest_with_what_is_no_whole_number(number: Any) -> None:
    with pytest.raises(UsageError):
        read_manifest(json.dumps([["a", 0, number]]), "m")


def test_a_manifest_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match=r"parts\.csv is no list of partitions"):
        read_manifest("a,b\n", "parts.csv")
