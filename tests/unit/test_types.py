"""Addresses and slots: parsed and printed."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.types import Address, Gpu


@pytest.mark.parametrize("text", ["127.0.0.1:7007", "[::1]:80", "10.0.0.9:65535"])
def test_an_address_prints_as_it_was_given(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize("text", ["", "host", ":80", "host:", "host:0", "host:65536", "host:x"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:7007"):
        Address.parse(text)


def test_a_slot_prints_as_it_was_given() -> None:
    assert Gpu.parse("node2:3") == Gpu("node2", 3)
    assert str(Gpu("node2", 3)) == "node2:3"


@pytest.mark.parametrize("text", ["", "node", ":1", "node:", "node:-1", "node:x"])
def test_what_is_no_slot_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="localhost:0"):
        Gpu.parse(text)
