"""A checkpoint's manifest: the one small file that says the others are complete.

It is written last, names every other file with its size and checksum, and carries all that is no
tensor. Holds: a manifest that `parse` accepts is, value for value, the one that was written; its
own checksum says so.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from edl.errors import UsageError

__all__ = ["FORMAT", "MANIFEST", "MANIFEST_MAX", "Manifest", "Part", "Unfit", "digest", "parse"]

MANIFEST = "manifest.json"
# Counted up when an older EDL could no longer make sense of what is written.
FORMAT = 1
# Far above any real one; what is longer is not read at all.
MANIFEST_MAX = 256 << 20
_KIND = "edl-checkpoint"


class Unfit(Exception):
    """This is no checkpoint to go on from; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file of tensors."""

    file: str
    size: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint consists of, and everything in it that is no tensor."""

    step: int
    time: float  # seconds since 1970, when it was written
    parts: dict[str, Part]  # by the file's stem
    extra: dict[str, Any]

    def encode(self) -> bytes:
        """The manifest as JSON text that people can read."""
        body = {
            "kind": _KIND,
            "format": FORMAT,
            "step": self.step,
            "time": self.time,
            "files": {
                stem: {"file": part.file, "bytes": part.size, "blake2b": part.checksum}
                for stem, part in self.parts.items()
            },
            "extra": self.extra,
        }
        try:
            whole = json.dumps({**body, "checksum": _checksum(body)}, indent=1, allow_nan=False)
            kept = json.loads(whole)["extra"] == self.extra
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"a checkpoint's extra values must be plain JSON: {error}") from error
        if not kept:
            raise UsageError(
                "a checkpoint's extra values would come back changed; use lists for tuples and "
                "strings for the keys of dicts"
            )
        return whole.encode() + b"\n"


def digest() -> hashlib.blake2b:
    """A fresh checksum; `b2sum -l 256 FILE` prints the same."""
    return hashlib.blake2b(digest_size=32)


def _checksum(body: dict[str, Any]) -> str:
    """Of the values, not of the text: a reader may lay the file out anew without breaking it."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    fresh = digest()
    fresh.update(text.encode())
    return fresh.hexdigest()


def parse(content: bytes | bytearray) -> Manifest:
    """The manifest in these bytes. Raises Unfit for anything else."""
    try:
        body = json.loads(bytes(content))
    except (ValueError, RecursionError):
        raise Unfit(f"{MANIFEST} is no JSON: torn or foreign") from None
    if not isinstance(body, dict) or body.get("kind") != _KIND:
        raise Unfit(f"{MANIFEST} is not one of EDL's: a foreign file")
    version = body.get("format")
    if type(version) is int and version > FORMAT:
        raise Unfit(f"its format is {version} and this EDL reads {FORMAT}: install a newer EDL")
    checksum = body.pop("checksum", None)
    try:
        intact = checksum == _checksum(body)
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise Unfit(f"{MANIFEST} does not match its checksum: corrupt")
    try:
        return Manifest(
            step=_typed(body["step"], int),
            time=float(_typed(body["time"], (int, float))),
            parts={
                _typed(stem, str): Part(
                    file=_typed(part["file"], str),
                    size=_typed(part["bytes"], int),
                    checksum=_typed(part["blake2b"], str),
                )
                for stem, part in _typed(body["files"], dict).items()
            },
            extra=_typed(body["extra"], dict),
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise Unfit(f"{MANIFEST} lacks what format {FORMAT} has ({error}): foreign") from None


def _typed(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r:.40} is out of place")
    return value
