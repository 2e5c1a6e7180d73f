"""Everything a training consists of, copied out of torch for a checkpoint, and put back.

Models lie in files of their own under the names of `state_dict()`, so that torch and safetensors
load them without EDL; optimizers, registered objects and random generators share a second file. A
JSON skeleton says what goes where. Holds: what `install` puts back equals what `capture` saw bit
for bit, strides and dtypes included; `install` refuses before it has changed anything if the
script's models or optimizers are not those of the checkpoint.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from edl.collective.cargo import bytes_of, describe, room_for
from edl.errors import CheckpointError, UsageError
from edl.runtime.tensorfile import NAMES, Array, Tensors
from edl.torch.state import State, load_optimizer, module_tensors
from edl.torch.tree import flatten, from_json, labels, shifted, to_json, unflatten

__all__ = ["capture", "install"]

_REST = "state"
_NAMES: dict[torch.dtype, str] = {getattr(torch, known): name for known, name in NAMES.items()}


# -- out of torch ------------------------------------------------------------------------------


def capture(state: State) -> tuple[dict[str, dict[str, Array]], dict[str, Any]]:
    """Copies of all tensors by file and name, and the skeleton as plain JSON values.

    The skeleton is what `install` needs beside the tensors. Nothing in either is shared with the
    training, which may go on at once.
    """
    out = _Outgoing()
    models = []
    for index, model in enumerate(state.models):
        file = "model" if len(state.models) == 1 else f"model-{index}"
        models.append(out.add_model(model, file, f"model.{index}"))
    optimizers = [
        {
            "state": out.add(optimizer.state_dict(), f"optimizer.{index}"),
            "kind": _kind(optimizer),
            "groups": _group_sizes(optimizer),
            "homes": [p.device.type for p in _parameters(optimizer)],
        }
        for index, optimizer in enumerate(state.optimizers)
    ]
    registered = [
        out.add(holder.state_dict(), f"registered.{index}.{type(holder).__name__}")
        for index, holder in enumerate(state.registered)
    ]
    skeleton = {
        "models": models,
        "optimizers": optimizers,
        "registered": registered,
        "random": out.add(_random_states(), "random"),
        "tensors": out.described,
    }
    return out.files, skeleton


class _Outgoing:
    """Copies of tensors, under names that are readable and taken once."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, Array]] = {_REST: {}}
        self.described: list[dict[str, Any]] = []
        # With the tensor, so that its memory is not given to another one meanwhile.
        self._copies: dict[Any, tuple[torch.Tensor, Array]] = {}

    def add_model(self, model: torch.nn.Module, file: str, path: str) -> dict[str, Any]:
        """A model's own file, and what of it the file cannot hold beside the rest."""
        names: dict[Any, str] = {}
        shelf = self.files.setdefault(file, {})
        for name, value in model.state_dict().items():
            if isinstance(value, torch.Tensor) and value.dtype in _NAMES:
                names.setdefault(_memory(value), name)
                # A tied tensor lies under each of its names, so that a strict load finds them all.
                shelf[name] = self._copy(value, name)
        tensors: list[torch.Tensor] = []
        skeleton = flatten(module_tensors(model, live=True), path, tensors)
        named = dict(labels(skeleton, path))
        at = len(self.described)
        for index, tensor in enumerate(tensors):
            known = names.get(_memory(tensor))
            if known is None:
                self._shelve(tensor, named[index])
            else:
                self.described.append({**describe(tensor), "file": file, "name": known})
        extra = {
            name: self.add(module.get_extra_state(), f"{path}.{name}.extra")
            for name, module in model.named_modules()
            if _has_extra_state(module)
        }
        return {"file": file, "tensors": to_json(shifted(skeleton, at)), "extra": extra}

    def add(self, value: object, path: str) -> Any:
        """The skeleton of any state_dict; its tensors go to the common file."""
        tensors: list[torch.Tensor] = []
        skeleton = flatten(value, path, tensors)
        named = dict(labels(skeleton, path))
        at = len(self.described)
        for index, tensor in enumerate(tensors):
            self._shelve(tensor, named[index])
        return to_json(shifted(skeleton, at))

    def _shelve(self, tensor: torch.Tensor, label: str) -> None:
        shelf = self.files[_REST]
        name = label
        # Two keys may look alike in print, as 1 and "1" do.
        while name in shelf:
            name = f"{label}.{len(self.described)}"
        shelf[name] = self._copy(tensor, label)
        self.described.append({**describe(tensor), "file": _REST, "name": name})

    def _copy(self, tensor: torch.Tensor, label: str) -> Array:
        """The tensor's elements in C order, in memory of this process; one copy of what is tied."""
        memory = _memory(tensor)
        if memory not in self._copies:
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
                raise UsageError(
                    f"{label} is a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}; "
                    "a checkpoint holds dense tensors with elements of their own"
                )
            self._copies[memory] = tensor, _array(tensor)
        return self._copies[memory][1]


def _array(tensor: torch.Tensor) -> Array:
    with torch.no_grad():
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)
    shape = tuple(copy.shape)
    name = _NAMES.get(copy.dtype)
    if name is None:
        # The format has no name for it, complex128 for one: its bytes, to be read by us alone.
        name, shape = "U8", (bytes_of(copy),)
    if not copy.numel():
        return Array(name, shape, b"")
    flat: Any = copy.reshape(-1).view(torch.uint8).numpy()
    return Array(name, shape, memoryview(flat))


def _memory(tensor: torch.Tensor) -> Any:
    """Equal for two tensors that are the same elements of the same memory."""
    kind = tensor.layout, tensor.device, tensor.dtype, tuple(tensor.shape)
    if not tensor.numel():
        return kind
    if tensor.layout != torch.strided:
        return *kind, id(tensor)
    return *kind, tensor.data_ptr(), tensor.stride()


def _has_extra_state(module: torch.nn.Module) -> bool:
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """The class that the script chose, beneath the one that makes it elastic."""
    kind = type(optimizer)
    return kind.__mro__[1].__name__ if getattr(kind, "edl_elastic", False) else kind.__name__


def _group_sizes(optimizer: torch.optim.Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def _random_states() -> dict[str, Any]:
    """The generators that scripts draw from without naming one."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if cuda else [],
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
    }


# -- back into torch ---------------------------------------------------------------------------


def install(
    state: State, tensors: Tensors, skeleton: dict[str, Any], *, randomness: bool = True
) -> None:
    """Make models, optimizers and registered objects what they were when they were captured.

    Without `randomness` this process's random generators stay as they are; the workers of one job
    must not all draw the same numbers.
    """
    try:
        incoming = _Incoming(tensors, skeleton)
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the checkpoint's state makes no sense to this plug-in ({error!r}): it was written "
            "by another framework's plug-in, or by hand; go on with the script that wrote it, or "
            "give another --checkpoint folder"
        ) from None
    incoming.check(state)
    for model, mine in zip(state.models, incoming.models, strict=True):
        live = module_tensors(model, live=True)
        for key, tensor in mine.items():
            live[key].data.copy_(tensor)
    for model, extra in zip(state.models, incoming.extra, strict=True):
        modules = dict(model.named_modules())
        for name, value in extra.items():
            modules[name].set_extra_state(value)
    for optimizer, values, homes in zip(
        state.optimizers, incoming.optimizers, incoming.homes, strict=True
    ):
        _move_home(values, homes, _parameters(optimizer))
        load_optimizer(optimizer, values)
    for holder, values in zip(state.registered, incoming.registered, strict=True):
        holder.load_state_dict(values)
    if randomness:
        _set_random_states(incoming.random)


class _Incoming:
    """The values of a checkpoint, with tensors in them, before anything is changed by them."""

    def __init__(self, tensors: Tensors, skeleton: dict[str, Any]) -> None:
        views = [_view(tensors[d["file"]][d["name"]], d) for d in skeleton["tensors"]]
        # Models are copied into their own memory; all else keeps what it is given, so it gets
        # tensors of its own, which do not hold the whole file in memory.
        models = [unflatten(from_json(m["tensors"]), views) for m in skeleton["models"]]
        used = {id(tensor) for model in models for tensor in model.values()}
        own = [
            view if id(view) in used else _own(view, described)
            for view, described in zip(views, skeleton["tensors"], strict=True)
        ]

        def whole(part: Any) -> Any:
            return unflatten(from_json(part), own)

        self.models: list[dict[str, torch.Tensor]] = models
        self.extra = [
            {name: whole(part) for name, part in m["extra"].items()} for m in skeleton["models"]
        ]
        self.optimizers = [whole(part["state"]) for part in skeleton["optimizers"]]
        # One that an older EDL wrote does not say.
        self.kinds = [str(part.get("kind", "")) for part in skeleton["optimizers"]]
        self.groups = [list(part["groups"]) for part in skeleton["optimizers"]]
        self.homes: list[list[str]] = [list(part["homes"]) for part in skeleton["optimizers"]]
        self.registered = [whole(part) for part in skeleton["registered"]]
        self.random = whole(skeleton["random"])

    def check(self, state: State) -> None:
        """Refuse what is not of this script."""
        for name, theirs, mine in (
            ("models", self.models, state.models),
            ("optimizers", self.optimizers, state.optimizers),
            ("registered objects", self.registered, state.registered),
        ):
            if len(theirs) != len(mine):
                raise UsageError(
                    f"the checkpoint has {len(theirs)} {name}, this script {len(mine)}; resume "
                    "with the script that wrote it, or give the job another checkpoint folder"
                )
        for model, tensors in zip(state.models, self.models, strict=True):
            _check_model(module_tensors(model, live=True), tensors)
        for optimizer, kind in zip(state.optimizers, self.kinds, strict=True):
            if kind and kind != _kind(optimizer):
                raise UsageError(
                    f"the checkpoint's optimizer is a {kind}, this script's a {_kind(optimizer)}; "
                    "resume with the optimizer that it is of, or give another --checkpoint folder"
                )
        for optimizer, groups in zip(state.optimizers, self.groups, strict=True):
            if groups != _group_sizes(optimizer):
                raise UsageError(
                    f"the checkpoint's optimizer has groups of {groups} parameters, this script's "
                    f"of {_group_sizes(optimizer)}; resume with the optimizer that it is of"
                )
        for model, extra in zip(state.models, self.extra, strict=True):
            names = [name for name, module in model.named_modules() if _has_extra_state(module)]
            if sorted(extra) != sorted(names):
                raise UsageError(
                    f"the checkpoint has extra state for {sorted(extra)}, this model for "
                    f"{sorted(names)}; resume with the model that it is of"
                )


def _check_model(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    for name in sorted(mine.keys() ^ theirs.keys()):
        has, lacks = ("script's", "checkpoint's") if name in mine else ("checkpoint's", "script's")
        raise UsageError(
            f"the {has} model has {name!r}, the {lacks} has not; resume with the model that the "
            "checkpoint is of, or give the job another checkpoint folder"
        )
    for name, tensor in theirs.items():
        if (tensor.dtype, tensor.shape) != (mine[name].dtype, mine[name].shape):
            raise UsageError(
                f"{name!r} is {tensor.dtype} {tuple(tensor.shape)} in the checkpoint and "
                f"{mine[name].dtype} {tuple(mine[name].shape)} in this script's model"
            )


def _view(array: Array, described: dict[str, Any]) -> torch.Tensor:
    """The tensor in a file's bytes, in C order and without a copy."""
    dtype: Any = getattr(torch, described["dtype"])
    shape = tuple(described["shape"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{described['dtype']!r} is no dtype")
    if not len(array.data):
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(array.data, dtype=torch.uint8)
    if dtype not in _NAMES:
        # Its bytes lie wherever they fell, and torch wants elements at multiples of their size.
        flat = flat.clone()
    return flat.view(dtype).reshape(shape)


def _own(view: torch.Tensor, described: dict[str, Any]) -> torch.Tensor:
    """The same values in memory of their own, laid out and placed as they were."""
    device = described["device"]
    there = device == "cpu" or (device == "cuda" and torch.cuda.is_available())
    room = room_for({**described, "device": device if there else "cpu"}, None)
    return room.copy_(view)


def _move_home(values: dict[str, Any], homes: list[str], parameters: list[torch.Tensor]) -> None:
    """State lives with its parameter, also where that is on another kind of device than it was.

    A step count is a single number, which torch keeps where it likes; it stays there.
    """
    for index, entry in values.get("state", {}).items():
        if not isinstance(index, int) or not isinstance(entry, dict):
            continue
        home = parameters[index].device
        for key, value in entry.items():
            if isinstance(value, torch.Tensor) and value.dim() and home.type != homes[index]:
                entry[key] = value.to(home)


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        for index, generator in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(generator, index)
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
