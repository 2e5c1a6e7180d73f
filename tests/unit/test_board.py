"""The notice board: values by key, whichever way they came."""

from __future__ import annotations

import pytest

from edl.errors import GroupBroken
from edl.runtime.board import Board, Entry

MINE = Entry(group="data", rank=1, size=3, key="data/0/1", common=b"me", parts=b"aabbcc")


def test_an_entry_is_published_as_one() -> None:
    keys: list[str] = []
    entries: list[Entry] = []
    board = Board(lambda key, value: keys.append(key), entries.append)
    board.pin_entry(MINE)
    assert (keys, entries) == ([], [MINE])
    assert board.read("data/0/1", 0.0) == b"meaabbcc"


def test_an_entry_that_nobody_collects_is_published_as_a_key() -> None:
    keys: dict[str, bytes] = {}
    Board(keys.__setitem__).pin_entry(MINE)
    assert keys == {"data/0/1": b"meaabbcc"}


def test_a_row_of_a_table_reads_as_a_value_of_full_length_with_the_readers_part_in_place() -> None:
    board = Board(lambda key, value: None, lambda entry: None)
    board.pin_entry(MINE)
    rows = [("data/0/0", b"he", b"xx"), ("data/0/1", b"me", b"bb"), ("data/0/2", b"she", b"zz")]
    board.offer_table(rows, rank=1, size=3)
    assert board.read("data/0/0", 0.0) == b"he\0\0xx\0\0"
    assert board.read("data/0/1", 0.0) == b"meaabbcc"
    assert board.read("data/0/2", 0.0) == b"she\0\0zz\0\0"
    board.wait([key for key, _, _ in rows], 0.0)


def test_a_row_without_parts_is_its_common_part() -> None:
    board = Board(lambda key, value: None)
    board.offer_table([("k", b"all of it", b"")], rank=2, size=5)
    assert board.read("k", 0.0) == b"all of it"


def test_a_key_that_is_missing_is_named() -> None:
    with pytest.raises(GroupBroken, match="data/0/2"):
        Board(lambda key, value: None).read("data/0/2", 0.01)
