"""Tensors as bytes: packed into rows on one side, landed in place on the other.

Small tensors travel together in one row, a large one from its own memory. Holds: both sides cut
the same list of tensors into the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from edl.errors import UsageError

__all__ = ["bytes_of", "describe", "fits", "packed", "room_for", "unpacked"]

# Below this a tensor is packed with others; above, it travels from its own memory.
_SMALL = 1 << 20
_CHUNK = 4 << 20


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()) if _dense(tensor) else [],
        "device": tensor.device.type,
    }


def fits(described: dict[str, Any], place: torch.Tensor) -> bool:
    """Whether this tensor is what was described, so that it can be received in it."""
    return describe(place) == described


def room_for(described: dict[str, Any], place: torch.Tensor | None) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, described["dtype"])
    shape, stride = tuple(described["shape"]), tuple(described["stride"])
    if place is not None:
        if place.dtype != dtype or tuple(place.shape) != shape:
            raise UsageError(
                f"the job has a parameter of {dtype} {shape}, this worker one of "
                f"{place.dtype} {tuple(place.shape)} in its place"
            )
        if _dense(place) and (not stride or tuple(place.stride()) == stride):
            return place
    device = place.device if place is not None else torch.device(described["device"])
    if stride:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)
    return torch.empty(shape, dtype=dtype, device=device)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is its elements, each once, in some order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's memory as a flat row of bytes."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8)


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _batches(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Runs of small tensors of one device; a large one stands alone. Same on both sides."""
    run: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        amount = bytes_of(tensor)
        if not amount:
            continue
        alone = amount >= _SMALL
        if run and (alone or size + amount > _CHUNK or run[0].device != tensor.device):
            yield run
            run, size = [], 0
        if alone:
            yield [tensor]
        else:
            run.append(tensor)
            size += amount
    if run:
        yield run


def packed(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What the sender broadcasts, one flat row of bytes after another."""
    for run in _batches(tensors):
        ready = [_raw(t if _dense(t) else t.contiguous()) for t in run]
        flat = ready[0] if len(ready) == 1 else torch.cat(ready)
        yield from flat.split(_CHUNK)


def unpacked(
    tensors: list[torch.Tensor],
) -> Iterator[tuple[torch.Tensor, Callable[[], None]]]:
    """Where the receiver takes it, and what to do once it has landed."""
    for run in _batches(tensors):
        if len(run) == 1:
            for piece in _raw(run[0]).split(_CHUNK):
                yield piece, _nothing
            continue
        flat = torch.empty(sum(bytes_of(t) for t in run), dtype=torch.uint8, device=run[0].device)
        pieces = flat.split(_CHUNK)
        for piece in pieces[:-1]:
            yield piece, _nothing
        yield pieces[-1], lambda run=run, flat=flat: _scatter(run, flat)  # type: ignore[misc]


def _nothing() -> None:
    return


def _scatter(run: list[torch.Tensor], flat: torch.Tensor) -> None:
    start = 0
    for tensor in run:
        end = start + bytes_of(tensor)
        _raw(tensor).copy_(flat[start:end])
        start = end
