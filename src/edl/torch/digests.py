"""Digests of torch replicas: hyperparameters, and parameters with their optimizer state.

The model is cut into parts by its parameters' elements; what an optimizer keeps for a parameter is
digested with it. So the cut does not depend on which optimizer state exists yet. On the CPU bytes
are hashed where they lie. On a GPU a weighted sum of them is computed there, in order with the
training's own work, and only the sum comes to the host, when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

import torch

from edl.plugin.holding import Holder
from edl.runtime.digests import digest_bytes, flat_settings, part_of, slices_of
from edl.torch.state import State

__all__ = ["StateDigests", "compared", "hyperparameters", "scalar", "weighted_sum"]

_BY_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BLOCK = 4096
# An odd multiplier of 62 bits (of splitmix64): its powers are the weights of a sum.
_FACTOR = 0x1E3779B97F4A7C15

Sums = Callable[[], list[tuple[str, str]]]


def scalar(value: Any) -> object:
    """A number in host memory; a GPU is not asked at every step."""
    if isinstance(value, torch.Tensor):
        one = value.numel() == 1 and value.device.type == "cpu" and not value.is_complex()
        return value.item() if one else None
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    return None


def hyperparameters(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[tuple[str, str]]:
    """Every option of every parameter group."""
    for number, optimizer in enumerate(optimizers):
        for index, group in enumerate(optimizer.param_groups):
            for key in sorted(key for key in group if key != "params"):
                name = f"optimizer {number} group {index} {key}"
                yield from flat_settings(name, group[key], scalar)


def compared(holder: Holder) -> object:
    """The part of a registered object's state that must be equal on all workers.

    A module's buffers, such as BatchNorm's `num_batches_tracked`, and what else it adds to its
    `state_dict` come from its own worker's samples.
    """
    if isinstance(holder, torch.nn.Module):
        return dict(holder.named_parameters())
    return holder.state_dict()


class StateDigests:
    """The parameters of a state, in an order that is the same on every worker."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: tuple[int, int] = (-1, -1)
        self._names: list[str] = []
        self._parameters: list[torch.Tensor] = []
        self._starts: list[int] = []

    def digests(self, part: int, parts: int) -> Sums:
        """See `Framework.digests`."""
        self._look()
        begin, end = part_of(self._starts[-1], part, parts)
        found: list[tuple[str, object]] = []
        for index, low, high in slices_of(self._starts, begin, end):
            parameter, name = self._parameters[index], self._names[index]
            found.append((name, _digest(parameter, low, high)))
            found += (
                (f"{name} ({key})", _digest(value, *where))
                for key, value, where in self._kept(parameter, low, high)
            )
        return lambda: [(name, str(digest)) for name, digest in found]

    def _kept(
        self, parameter: torch.Tensor, low: int, high: int
    ) -> Iterator[tuple[str, torch.Tensor, tuple[int, int]]]:
        """What optimizers keep for these elements; what has another size goes with the first."""
        for optimizer in self._state.optimizers:
            kept = optimizer.state.get(parameter)
            if not isinstance(kept, dict):
                continue
            for key in sorted(kept, key=str):
                value = kept[key]
                if not isinstance(value, torch.Tensor):
                    continue
                if value.numel() == parameter.numel():
                    yield str(key), value, (low, high)
                elif low == 0:
                    yield str(key), value, (0, value.numel())

    def _look(self) -> None:
        """List the parameters again if there may be others."""
        owned = [p for o in self._state.optimizers for g in o.param_groups for p in g["params"]]
        known = (len(self._state.models), len(owned))
        if known == self._known:
            return
        self._known = known
        names: dict[int, tuple[str, torch.Tensor]] = {}
        for number, model in enumerate(self._state.models):
            before = f"model {number} " if len(self._state.models) > 1 else ""
            for name, parameter in model.named_parameters():
                names.setdefault(id(parameter), (before + name, parameter))
        for index, parameter in enumerate(owned):
            names.setdefault(id(parameter), (f"parameter {index} of the optimizers", parameter))
        self._names = [name for name, _ in names.values()]
        self._parameters = [parameter for _, parameter in names.values()]
        self._starts = list(accumulate((p.numel() for p in self._parameters), initial=0))


def _digest(tensor: torch.Tensor, low: int, high: int) -> str | _OnItsWay:
    """In host memory: the digest itself. Elsewhere: what will be it."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "0"
    flat = tensor.detach().reshape(-1)[low:high]
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    if flat.device.type == "cpu":
        row = flat.contiguous().view(_BY_SIZE[flat.element_size()]).numpy()
        return f"{digest_bytes(row):x}" if flat.numel() else "0"
    with torch.no_grad():
        return _OnItsWay(weighted_sum(flat))


class _OnItsWay:
    """A number that a device computes and copies to the host, behind the work it has already."""

    def __init__(self, value: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if value.device.type != "cuda":
            self._host = value.cpu()
            return
        # Only a copy into pinned memory does not make the host wait.
        self._host = torch.empty((), dtype=value.dtype, pin_memory=True)
        self._host.copy_(value, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(value.device))

    def __str__(self) -> str:
        if self._event is not None:
            self._event.synchronize()
        return f"{int(self._host.item()) & 0x7FFF_FFFF_FFFF_FFFF:x}"


def weighted_sum(flat: torch.Tensor) -> torch.Tensor:
    """A sum of all elements' bits, each times a weight that depends on where it is; on the device
    that they are on. Integer arithmetic wraps around, so the order of addition does not matter."""
    bits = flat.contiguous().view(_BY_SIZE[flat.element_size()]).to(torch.int64)
    rest = -bits.numel() % _BLOCK
    rows = torch.nn.functional.pad(bits, (0, rest)).view(-1, _BLOCK)
    inner = _weights(_BLOCK, flat.device)
    outer = torch.arange(1, len(rows) + 1, dtype=torch.int64, device=flat.device)
    mixed = (rows * inner).sum(1)
    # Without this a block of zeros would weigh nothing wherever it is, and two could be swapped.
    mixed = (mixed ^ (mixed >> 29)) * (outer * _FACTOR | 1)
    return mixed.sum() + flat.numel()


def _weights(count: int, device: torch.device) -> torch.Tensor:
    numbers = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _FACTOR
    return (numbers ^ (numbers >> 31)) | 1
