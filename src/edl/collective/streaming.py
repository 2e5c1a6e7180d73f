"""A state on its way from one worker to others: a manifest, its tensors, and what changed since.

Small tensors travel packed together, large ones straight from their own memory and into it, all in
the background: the sender computes its step meanwhile. What the sender's script changed behind
the stream's back is sent again before anybody updates the model. Holds: when both ends' `finish`
has returned, the receiver's tensors equal the sender's bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from edl.collective.cargo import bytes_of, packed, unpacked
from edl.runtime.framework import StatePath, Transfer

__all__ = ["Arrival", "send", "take_manifest"]


def send(
    path: StatePath,
    manifest: bytes,
    tensors: list[torch.Tensor],
    *,
    early: int,
    changed: Callable[[], list[tuple[int, torch.Tensor]]],
) -> Callable[[], Transfer]:
    """Begin; the result waits until all is sent.

    The first `early` tensors are there before the others. `changed` says, once the step is computed
    and the model is about to be updated, which have changed, with copies of what they are now.
    """
    blob = torch.frombuffer(bytearray(manifest), dtype=torch.uint8)

    def stream() -> None:
        path.broadcast_state(torch.tensor([blob.numel()])).wait()
        path.broadcast_state(blob).wait()
        for part in (tensors[:early], tensors[early:]):
            for flat in packed(part):
                path.broadcast_state(flat).wait()

    sending = path.beside(stream)

    def finish() -> Transfer:
        sending.wait()
        # Copies: the model changes as soon as this returns, and newcomers may be behind.
        again = changed()
        path.beside(lambda: _send_again(path, again))
        total = sum(bytes_of(tensor) for tensor in tensors) + blob.numel()
        return Transfer(seconds=sending.ended - sending.began, bytes=total)

    return finish


def take_manifest(path: StatePath) -> bytes:
    """What the sender begins with; waits for it."""
    length = torch.zeros(1, dtype=torch.int64)
    path.broadcast_state(length).wait()
    blob = torch.empty(int(length.item()), dtype=torch.uint8)
    path.broadcast_state(blob).wait()
    return blob.numpy().tobytes()


class Arrival:
    """The receiver's end. The early tensors have landed when it is made."""

    def __init__(
        self, path: StatePath, manifest: bytes, tensors: list[torch.Tensor], *, early: int
    ) -> None:
        self._path = path
        self._tensors = tensors
        self._early = early
        self._total = sum(bytes_of(tensor) for tensor in tensors) + len(manifest)
        _land(path, tensors[:early])

    def begin(self) -> Callable[[], Transfer]:
        """The others land in the background; the result waits for them, and for what changed."""
        path, tensors, early = self._path, self._tensors, self._early
        receiving = path.beside(lambda: _land(path, tensors[early:]))

        def finish() -> Transfer:
            receiving.wait()
            path.beside(lambda: _land_again(path, tensors)).wait()
            # Up to the last byte: after it the source tells what changed, once it has computed.
            return Transfer(seconds=receiving.ended - receiving.began, bytes=self._total)

        return finish


def _land(path: StatePath, tensors: list[torch.Tensor]) -> None:
    """Take these tensors' bytes from the source, straight into place."""
    for flat, landed in unpacked(tensors):
        path.broadcast_state(flat).wait()
        landed()


def _send_again(path: StatePath, again: list[tuple[int, torch.Tensor]]) -> None:
    path.broadcast_state(torch.tensor([len(again)])).wait()
    if again:
        path.broadcast_state(torch.tensor([index for index, _ in again])).wait()
        for flat in packed([copy for _, copy in again]):
            path.broadcast_state(flat).wait()


def _land_again(path: StatePath, tensors: list[torch.Tensor]) -> None:
    count = torch.zeros(1, dtype=torch.int64)
    path.broadcast_state(count).wait()
    if count.item():
        changed = torch.zeros(int(count.item()), dtype=torch.int64)
        path.broadcast_state(changed).wait()
        _land(path, [tensors[i] for i in changed.tolist()])
