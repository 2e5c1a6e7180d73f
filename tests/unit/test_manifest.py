"""A manifest is what was written, or it is refused with the reason."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.runtime.manifest import FORMAT, Manifest, Part, Unfit, parse

PART = Part(file="model.safetensors", size=12, checksum="ab")
WHOLE = Manifest(
    step=7, time=1.5, parts={"model": PART}, extra={"job": "né", "list": [1, None, 0.1, -0.0]}
)


def changed(**values: Any) -> bytes:
    return json.dumps({**json.loads(WHOLE.encode()), **values}).encode()


def resealed(**values: Any) -> bytes:
    """Changed, with a checksum that fits: what another program might write."""
    body = {**json.loads(WHOLE.encode()), **values}
    del body["checksum"]
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    checksum = hashlib.blake2b(text, digest_size=32).hexdigest()
    return json.dumps({**body, "checksum": checksum}).encode()


def test_a_manifest_is_read_back() -> None:
    assert parse(WHOLE.encode()) == WHOLE


def test_its_layout_does_not_matter() -> None:
    assert parse(resealed()) == WHOLE
    assert parse(json.dumps(json.loads(WHOLE.encode()), sort_keys=True).encode()) == WHOLE


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "torn or foreign"),
        (WHOLE.encode()[:-20], "torn or foreign"),
        (b"[" * 100_000, "torn or foreign"),
        (b"\xff", "torn or foreign"),
        (b"[]", "foreign file"),
        (b'{"kind": "other"}', "foreign file"),
        (changed(step=8), "corrupt"),
        (changed(extra={}), "corrupt"),
        (changed(checksum=None), "corrupt"),
        (changed(step=float("nan")), "corrupt"),
        (changed(format=FORMAT + 1), "install a newer EDL"),
        (resealed(step="7"), "lacks what format"),
        (resealed(step=True), "lacks what format"),
        (resealed(files=[]), "lacks what format"),
        (resealed(files={"model": {"file": 1}}), "lacks what format"),
        (resealed(extra=None), "lacks what format"),
        (resealed(time=10**400), "lacks what format"),
    ],
)
def test_anything_else_is_unfit(content: bytes, words: str) -> None:
    with pytest.raises(Unfit, match=words):
        parse(content)


@pytest.mark.parametrize(
    "extra",
    [{"x": (1, 2)}, {"x": {1: 2}}, {"x": float("inf")}, {"x": b"bytes"}, {"x": object()}],
)
def test_what_json_would_change_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="extra values"):
        Manifest(step=1, time=0.0, parts={}, extra=extra).encode()


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_changes_nothing_or_is_noticed(at: int, value: int) -> None:
    content = bytearray(WHOLE.encode())
    content[at % len(content)] = value
    with contextlib.suppress(Unfit):
        assert parse(content) == WHOLE
