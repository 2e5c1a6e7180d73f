"""Model, optimizer and registered state as named tensors, sent and received in chunks.

A manifest comes first, since optimizer state may not exist yet on either side; then the tensors'
bytes, small ones packed together, large ones straight from their own memory. Holds: after a
transfer the receiver's parameters, buffers, optimizer state and registered objects equal the
sender's bit for bit, as of the moment `start_sending` was called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from edl.errors import UsageError
from edl.runtime.clock import now
from edl.runtime.framework import Group, Transfer
from edl.torch.tree import decode, encode, flatten, unflatten

__all__ = ["Holder", "State"]

# Below this a tensor is packed with others; above, it travels from its own memory.
_SMALL = 1 << 20
_CHUNK = 16 << 20


class Holder(Protocol):
    """Anything that can be registered."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(slots=True)
class State:
    """Everything that makes two workers replicas of each other."""

    models: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    registered: list[Holder] = field(default_factory=list)

    def buffers(self) -> list[torch.Tensor]:
        """Every buffer of every model, once, in the same order on every worker."""
        found: dict[int, torch.Tensor] = {}
        for model in self.models:
            for _, buffer in model.named_buffers():
                found.setdefault(id(buffer), buffer)
        return list(found.values())

    # -- sending ---------------------------------------------------------------------------

    def start_sending(self, group: Group, snapshot: dict[str, Any]) -> Callable[[], Transfer]:
        """Read what changes during a step now; stream the bytes in the background."""
        began = now()
        manifest, tensors = self._capture(snapshot)
        outcome: list[BaseException | Transfer] = []

        def stream() -> None:
            try:
                blob = torch.frombuffer(bytearray(manifest), dtype=torch.uint8)
                group.broadcast_state(torch.tensor([blob.numel()])).wait()
                group.broadcast_state(blob).wait()
                for flat in _packed(tensors):
                    group.broadcast_state(flat).wait()
                total = sum(_bytes_of(tensor) for tensor in tensors) + len(manifest)
                outcome.append(Transfer(seconds=now() - began, bytes=total))
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=stream, name="edl-send-state", daemon=True)
        thread.start()

        def finish() -> Transfer:
            thread.join()
            result = outcome[0]
            if isinstance(result, BaseException):
                raise result
            return result

        return finish

    def _capture(self, snapshot: dict[str, Any]) -> tuple[bytes, list[torch.Tensor]]:
        tensors: list[torch.Tensor] = []
        models = [
            flatten(_module_tensors(model), f"model {i}", tensors)
            for i, model in enumerate(self.models)
        ]
        optimizers = [
            flatten(optimizer.state_dict(), f"optimizer {i}", tensors)
            for i, optimizer in enumerate(self.optimizers)
        ]
        registered = [
            flatten(holder.state_dict(), f"{type(holder).__name__}.state_dict()", tensors)
            for holder in self.registered
        ]
        plain = [tensor.detach() for tensor in tensors]
        manifest = {
            "snapshot": snapshot,
            "models": models,
            "optimizers": optimizers,
            "registered": registered,
            "tensors": [_describe(tensor) for tensor in plain],
        }
        return encode(manifest), plain

    # -- receiving -------------------------------------------------------------------------

    def receive(self, group: Group) -> tuple[dict[str, Any], Transfer]:
        """Take over the source's state; returns its snapshot."""
        began = now()
        length = torch.zeros(1, dtype=torch.int64)
        group.broadcast_state(length).wait()
        blob = torch.empty(int(length.item()), dtype=torch.uint8)
        group.broadcast_state(blob).wait()
        manifest = decode(blob.numpy().tobytes())
        self._check(manifest)
        tensors = self._places(manifest)
        for flat, landing in _unpacked(tensors):
            group.broadcast_state(flat).wait()
            landing()
        self._install(manifest, tensors)
        total = sum(_bytes_of(tensor) for tensor in tensors) + blob.numel()
        return manifest["snapshot"], Transfer(seconds=now() - began, bytes=total)

    def _check(self, manifest: dict[str, Any]) -> None:
        for name, mine in (
            ("models", len(self.models)),
            ("optimizers", len(self.optimizers)),
            ("registered", len(self.registered)),
        ):
            if len(manifest[name]) != mine:
                raise UsageError(
                    f"the job has {len(manifest[name])} {name}, this worker {mine}; every "
                    "worker must run the same script up to its training loop"
                )

    def _places(self, manifest: dict[str, Any]) -> list[torch.Tensor]:
        """Where each tensor of the manifest goes: the model's own memory, or new memory."""
        places: list[torch.Tensor | None] = [None] * len(manifest["tensors"])
        for index, model in enumerate(self.models):
            mine = _module_tensors(model, live=True)
            for key, entry in manifest["models"][index]["pairs"]:
                if key not in mine or entry is None:
                    raise UsageError(f"the job's model has {key!r}, this worker's has not")
                places[entry["at"]] = mine[key].detach()
        complete: list[torch.Tensor] = []
        for place, described in zip(places, manifest["tensors"], strict=True):
            complete.append(_room_for(described, place))
        return complete

    def _install(self, manifest: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        for index, model in enumerate(self.models):
            mine = _module_tensors(model, live=True)
            for key, entry in manifest["models"][index]["pairs"]:
                arrived = tensors[entry["at"]]
                if arrived.data_ptr() != mine[key].data_ptr():
                    mine[key].detach().copy_(arrived)
        for optimizer, skeleton in zip(self.optimizers, manifest["optimizers"], strict=True):
            _load_optimizer(optimizer, unflatten(skeleton, tensors))
        for holder, skeleton in zip(self.registered, manifest["registered"], strict=True):
            holder.load_state_dict(unflatten(skeleton, tensors))


def _module_tensors(model: torch.nn.Module, *, live: bool = False) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name. Buffers change in forward, so a sender copies them."""
    found: dict[str, torch.Tensor] = dict(model.named_parameters())
    for name, buffer in model.named_buffers():
        found[f"buffer:{name}"] = buffer if live else buffer.detach().clone()
    return found


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Install state as it is. load_state_dict would cast it to the parameters' dtype."""
    kind = type(optimizer)
    plain = torch.optim.Optimizer
    own = any(
        "load_state_dict" in cls.__dict__ or "state_dict" in cls.__dict__
        for cls in kind.__mro__
        if cls not in (plain, object) and issubclass(cls, plain)
    )
    if own or state.keys() != {"state", "param_groups"}:
        optimizer.load_state_dict(state)
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for mine, theirs in zip(optimizer.param_groups, state["param_groups"], strict=True):
        if len(mine["params"]) != len(theirs["params"]):
            raise UsageError(
                f"a parameter group has {len(theirs['params'])} parameters in the job and "
                f"{len(mine['params'])} here; every worker must build the same optimizer"
            )
        mine.update({key: value for key, value in theirs.items() if key != "params"})
    optimizer.state.clear()
    for index, values in state["state"].items():
        optimizer.state[parameters[index]] = values


# -- bytes -----------------------------------------------------------------------------------


def _describe(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()) if _dense(tensor) else [],
        "device": tensor.device.type,
    }


def _room_for(described: dict[str, Any], place: torch.Tensor | None) -> torch.Tensor:
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


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _batches(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Runs of small tensors of one device; a large one stands alone. Same on both sides."""
    run: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        amount = _bytes_of(tensor)
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


def _packed(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What the sender broadcasts, one flat row of bytes after another."""
    for run in _batches(tensors):
        ready = [_raw(t if _dense(t) else t.contiguous()) for t in run]
        flat = ready[0] if len(ready) == 1 else torch.cat(ready)
        yield from flat.split(_CHUNK)


def _unpacked(
    tensors: list[torch.Tensor],
) -> Iterator[tuple[torch.Tensor, Callable[[], None]]]:
    """Where the receiver takes it, and what to do once it has landed."""
    for run in _batches(tensors):
        if len(run) == 1:
            for piece in _raw(run[0]).split(_CHUNK):
                yield piece, _nothing
            continue
        flat = torch.empty(sum(_bytes_of(t) for t in run), dtype=torch.uint8, device=run[0].device)
        pieces = flat.split(_CHUNK)
        for piece in pieces[:-1]:
            yield piece, _nothing
        yield pieces[-1], lambda run=run, flat=flat: _scatter(run, flat)  # type: ignore[misc]


def _nothing() -> None:
    return


def _scatter(run: list[torch.Tensor], flat: torch.Tensor) -> None:
    start = 0
    for tensor in run:
        end = start + _bytes_of(tensor)
        _raw(tensor).copy_(flat[start:end])
        start = end
