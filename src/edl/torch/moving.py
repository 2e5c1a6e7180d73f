"""Batches on the device where the worker computes, copied there before they are wanted.

Owns: the batches that were copied ahead, and the stream that copies run on, beside the one that
computes. Holds: a batch is handed out only if it is the one that the step's plan names; whoever
computes with it waits for its copy; and its memory is not used again before that work is done.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.utils.rnn import PackedSequence

from edl.errors import UsageError
from edl.plugin.ahead import Ahead

__all__ = ["Moving", "OnDevice", "Side", "chosen_device", "each_tensor", "pinned", "side_of"]

Change = Callable[[torch.Tensor], torch.Tensor]


class Side(Protocol):
    """Where copies run: beside the computation, if the device can do two things at once."""

    def beside(self) -> AbstractContextManager[Any]:
        """What is begun inside runs on the side."""
        ...

    def mark(self) -> Any:
        """The point on the side where all that was begun is done."""
        ...

    def wait_for(self, mark: Any) -> None:
        """What is computed from now on runs after that point."""
        ...

    def lend(self, tensor: torch.Tensor) -> None:
        """The computation uses this: its memory stays until that is done, too."""
        ...


class _Cuda:
    """A stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def beside(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def mark(self) -> Any:
        return self._stream.record_event()

    def wait_for(self, mark: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def lend(self, tensor: torch.Tensor) -> None:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self._device))


class _Plain:
    """No streams: a copy is done when it returns."""

    def beside(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self) -> None:
        return None

    def wait_for(self, mark: None) -> None:
        return None

    def lend(self, tensor: torch.Tensor) -> None:
        return None


def chosen_device(device: torch.device | str) -> torch.device:
    """The device that a user names; UsageError if it is not there."""
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device={device!r} is no device of torch: {error}") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device={device!r}, but torch sees no GPU; device=edl.device() fits both")
    return chosen


def side_of(device: torch.device) -> Side:
    return _Cuda(device) if device.type == "cuda" else _Plain()


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch on its way, or why there is none."""

    key: Hashable
    step: int
    batch: Any
    mark: Any
    error: Exception | None = None


class Moving:
    """Copies of batches, and their handing over."""

    def __init__(self, device: torch.device, side: Side) -> None:
        self._device = device
        self._side = side

    def begin(self, batch: Any) -> tuple[Any, Any]:
        """The batch on the device, and the point from which it can be used."""
        with self._side.beside():
            moved = each_tensor(batch, lambda t: t.to(self._device, non_blocking=True))
        return moved, self._side.mark()

    def hand_over(self, moved: Any, mark: Any) -> Any:
        self._side.wait_for(mark)
        each_tensor(moved, self._lend)
        return moved

    def _lend(self, tensor: torch.Tensor) -> torch.Tensor:
        self._side.lend(tensor)
        return tensor


class OnDevice:
    """Batches that another one fetches; the next `depth` of them are copied as soon as they come.

    It never waits for a batch that is not wanted yet.
    """

    def __init__(self, fetched: Ahead, moving: Moving, depth: int) -> None:
        self._fetched = fetched
        self._moving = moving
        self._depth = depth
        self._sent: deque[_Sent] = deque()

    def steps_beyond(self, step: int) -> int:
        last = self._sent[-1].step - step if self._sent else 0
        return max(0, last, self._fetched.steps_beyond(step))

    def next_come(self) -> tuple[Hashable, int] | None:
        return (self._sent[0].key, self._sent[0].step) if self._sent else self._fetched.next_come()

    def get(self, key: Hashable) -> Any:
        # What was copied for a step that does not come is dropped.
        while self._sent and self._sent[0].key != key:
            self._sent.popleft()
        if self._sent:
            sent = self._sent.popleft()
        else:
            sent = _Sent(key, 0, *self._moving.begin(self._fetched.get(key)))
        if sent.error is not None:
            raise sent.error
        batch = self._moving.hand_over(sent.batch, sent.mark)
        self._send_ahead()
        return batch

    def _send_ahead(self) -> None:
        while len(self._sent) < self._depth and (come := self._fetched.next_come()) is not None:
            key, step = come
            try:
                moved, mark = self._moving.begin(self._fetched.get(key))
                self._sent.append(_Sent(key, step, moved, mark))
            except Exception as error:
                # It matters in the step that the batch is for, and nowhere else.
                self._sent.append(_Sent(key, step, None, None, error))


def pinned(batch: Any) -> Any:
    """In memory that a GPU copies from by itself."""
    return each_tensor(batch, lambda t: t.pin_memory() if t.device.type == "cpu" else t)


def each_tensor(value: Any, change: Change) -> Any:
    """The same structure with every tensor changed; what has none in it stays as it is.

    Looks into tuples, lists, dictionaries and dataclasses, and into nothing else.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, MutableMapping):
        return _with_items(value, dict(value), change)
    if isinstance(value, list):
        return _with_items(value, dict(enumerate(value)), change)
    if isinstance(value, tuple):
        return _rebuilt(value, change)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with_fields(value, change)
    return value


def _with_items(value: Any, items: dict[Any, Any], change: Change) -> Any:
    changed = _changed(items, change)
    if not changed:
        return value
    clone = copy.copy(value)
    for place, new in changed.items():
        clone[place] = new
    return clone


def _with_fields(value: Any, change: Change) -> Any:
    fields = [field.name for field in dataclasses.fields(value)]
    changed = _changed({name: getattr(value, name, None) for name in fields}, change)
    if not changed:
        return value
    clone = copy.copy(value)
    for name, new in changed.items():
        # Past the guard of a frozen one; it is not anybody's yet.
        object.__setattr__(clone, name, new)
    return clone


def _rebuilt(value: tuple[Any, ...], change: Change) -> Any:
    items = dict(enumerate(value))
    if isinstance(value, PackedSequence):
        # torch wants the batch sizes, its second field, on the CPU.
        del items[1]
    changed = _changed(items, change)
    if not changed:
        return value
    elements = [changed.get(index, item) for index, item in enumerate(value)]
    return type(value)(*elements) if hasattr(value, "_fields") else tuple(elements)


def _changed(items: dict[Any, Any], change: Change) -> dict[Any, Any]:
    """What is no longer the same object."""
    after = {place: each_tensor(item, change) for place, item in items.items()}
    return {place: new for place, new in after.items() if new is not items[place]}
