"""Messages to bytes and back.

A payload is one byte with the length of the class name, the name, and the fields as msgpack.
The receiver decodes into a class that it registered itself, field by field with types checked, so
a stranger's bytes can neither name code to run (no pickle) nor make an object of the wrong shape.

Owns: which classes may travel. Holds: `decode` returns an instance of a registered class or raises
`PeerError`, whatever the bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec

from edl.errors import PeerError

__all__ = ["PROTOCOL_VERSION", "Codec"]

PROTOCOL_VERSION = 2


class Codec:
    """A closed set of message classes and the two directions between them and bytes."""

    def __init__(self, types: Iterable[type]) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._prefixes: dict[type, bytes] = {}
        self._decoders: dict[bytes, msgspec.msgpack.Decoder[Any]] = {}
        for cls in types:
            self._register(cls)

    def _register(self, cls: type) -> None:
        if cls in self._prefixes:
            return
        name = cls.__name__
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"{name} cannot travel: a message must be a dataclass")
        if not name.isascii() or len(name) > 255:
            raise TypeError(f"{name} cannot travel: the name must be ascii, at most 255 letters")
        # Two classes of one name would be decoded into each other.
        if name.encode() in self._decoders:
            raise TypeError(f"two message classes are both called {name}; rename one")
        self._prefixes[cls] = bytes([len(name)]) + name.encode()
        self._decoders[name.encode()] = msgspec.msgpack.Decoder(cls)

    def extended(self, types: Iterable[type]) -> Codec:
        """A new codec that knows these classes too, so that two services can share one port."""
        return Codec([*self._prefixes, *types])

    def encode(self, message: object) -> bytes:
        prefix = self._prefixes.get(type(message))
        if prefix is None:
            raise TypeError(f"{type(message).__name__} is not registered with this codec")
        return prefix + self._encoder.encode(message)

    def decode(self, payload: bytes | memoryview) -> object:
        view = memoryview(payload)
        if not view:
            raise PeerError("an empty payload arrived; expected a message name and its fields")
        end = 1 + view[0]
        name = bytes(view[1:end])
        decoder = self._decoders.get(name)
        if decoder is None:
            raise PeerError(
                f"unknown message {name[:64]!r} arrived; is the other side's EDL newer?"
            )
        try:
            message: object = decoder.decode(view[end:])
        # Not only msgspec's own errors: a deep nesting, a bad text or a huge count end in others.
        except Exception as error:
            raise PeerError(f"a malformed {name.decode()} arrived: {error}") from error
        return message
