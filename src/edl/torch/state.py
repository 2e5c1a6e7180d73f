"""Model, optimizer and registered state as named tensors, sent and received in chunks.

A manifest comes first, since optimizer state may not exist yet on either side; then the tensors'
bytes, small ones packed together, large ones straight from their own memory and into it. Both
sides stream in the background: the sender computes its step meanwhile, the receiver runs its
first, weightless one. What the sender's script changed behind the stream's back (`_version`
tells) is sent again before anybody updates the model. Holds: when `finish` returns on both sides,
the receiver's parameters, buffers, optimizer state and registered objects equal the sender's bit
for bit, as of the moment `start_sending` was called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from edl.collective.cargo import bytes_of, describe, fits, room_for
from edl.collective.streaming import Arrival, send, take_manifest
from edl.errors import UsageError
from edl.plugin.holding import Holder
from edl.runtime.framework import StatePath, Transfer
from edl.torch.tree import decode, encode, flatten, matched, unflatten

__all__ = ["Holder", "State", "load_optimizer", "module_tensors"]

# Registered objects up to this size are there when the newcomer's first step begins.
_EARLY = 4 << 20


@dataclass(slots=True)
class State:
    """Everything that makes two workers replicas of each other."""

    models: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    registered: list[Holder] = field(default_factory=list)
    reduction: str = ""  # how gradients are reduced, in words; the same on every worker

    def buffers(self) -> list[torch.Tensor]:
        """Every buffer of every model, once, in the same order on every worker."""
        found: dict[int, torch.Tensor] = {}
        for model in self.models:
            for _, buffer in model.named_buffers():
                found.setdefault(id(buffer), buffer)
        return list(found.values())

    # -- sending ---------------------------------------------------------------------------

    def start_sending(
        self, group: StatePath, snapshot: dict[str, Any], *, extra: Any = None, bare: bool = False
    ) -> Callable[[], Transfer]:
        """Read what changes during a step now; stream the bytes in the background."""
        manifest, tensors = self._capture(snapshot, extra, bare=bare)
        versions = [tensor._version for tensor in tensors]

        def changed() -> list[tuple[int, torch.Tensor]]:
            return [(i, t.clone()) for i, t in enumerate(tensors) if t._version != versions[i]]

        return send(group, encode(manifest), tensors, early=manifest["early"], changed=changed)

    def _capture(
        self, snapshot: dict[str, Any], extra: Any, *, bare: bool
    ) -> tuple[dict[str, Any], list[torch.Tensor]]:
        tensors: list[torch.Tensor] = []
        if bare:
            more = flatten(extra, "extra", tensors)
            described = [describe(tensor) for tensor in tensors]
            return {
                "snapshot": snapshot, "extra": more, "bare": True, "early": 0, "tensors": described
            }, tensors  # fmt: skip
        registered = [
            flatten(holder.state_dict(), f"{type(holder).__name__}.state_dict()", tensors)
            for holder in self.registered
        ]
        light = sum(bytes_of(tensor) for tensor in tensors) <= _EARLY
        early = len(tensors) if light else 0
        # Early ones are used while they travel: a copy stays as it was.
        tensors[:early] = [tensor.detach().clone() for tensor in tensors[:early]]
        models = [
            flatten(module_tensors(model), f"model {i}", tensors)
            for i, model in enumerate(self.models)
        ]
        optimizers = [
            flatten(optimizer.state_dict(), f"optimizer {i}", tensors)
            for i, optimizer in enumerate(self.optimizers)
        ]
        manifest = {
            "snapshot": snapshot,
            "extra": flatten(extra, "extra", tensors),
            "bare": False,
            "reduction": self.reduction,
            "models": models,
            "optimizers": optimizers,
            "registered": registered,
            "light": light,
            "early": early,
            "tensors": [describe(tensor) for tensor in tensors],
        }
        # Detached views share the version counter, so a change behind our back still shows.
        return manifest, [tensor.detach() for tensor in tensors]

    # -- receiving -------------------------------------------------------------------------

    def start_receiving(
        self, group: StatePath, *, aside: bool = False
    ) -> tuple[dict[str, Any], Callable[[], Transfer]]:
        """The source's snapshot now; its state once the result has been called."""
        blob = take_manifest(group)
        manifest = decode(blob)
        self._check(manifest)
        tensors = self._places(manifest, aside=aside)
        arrival = Arrival(group, blob, tensors, early=manifest["early"])
        if not aside:
            self._install_early(manifest, tensors)
        arrived = arrival.begin()

        def finish() -> Transfer:
            moved = arrived()
            if not manifest["bare"]:
                if aside:
                    self._install_early(manifest, tensors)
                self._install_late(manifest, tensors)
            if manifest["extra"] is not None:
                manifest["snapshot"]["extra"] = unflatten(manifest["extra"], tensors)
            return moved

        return manifest["snapshot"], finish

    def _check(self, manifest: dict[str, Any]) -> None:
        if manifest["bare"]:
            return
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
        if manifest["reduction"] != self.reduction:
            raise UsageError(
                f"the job reduces gradients with {manifest['reduction']}, this worker with "
                f"{self.reduction}; every worker must call edl.init the same way"
            )

    def _places(self, manifest: dict[str, Any], *, aside: bool) -> list[torch.Tensor]:
        """Where each tensor of the manifest goes: the model's own memory, or the optimizer's if
        it has some already, or new memory."""
        places: list[torch.Tensor | None] = [None] * len(manifest["tensors"])
        if aside:
            return [room_for(d, None) for d in manifest["tensors"]]
        for index, model in enumerate(self.models):
            mine = module_tensors(model, live=True)
            for key, entry in manifest["models"][index]["pairs"]:
                if key not in mine:
                    raise UsageError(f"the job's model has {key!r}, this worker's has not")
                # `.data` has a version counter of its own: the newcomer's first, weightless
                # backward must not mind that the weights changed under it.
                places[entry["at"]] = mine[key].data
        described = manifest["tensors"]
        for index, optimizer in enumerate(self.optimizers):
            made: list[torch.Tensor] = []
            skeleton = flatten(optimizer.state_dict(), f"optimizer {index}", made)
            for theirs, mine_at in matched(manifest["optimizers"][index], skeleton):
                if fits(described[theirs], made[mine_at]):
                    places[theirs] = made[mine_at].detach()
        return [room_for(d, place) for d, place in zip(described, places, strict=True)]

    def _install_early(self, manifest: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        """What the newcomer's first step may use: schedulers, scalers, learning rates."""
        if manifest["light"]:
            self._install_registered(manifest, tensors)
        for optimizer, skeleton in zip(self.optimizers, manifest["optimizers"], strict=True):
            _load_rates(optimizer, skeleton)

    def _install_late(self, manifest: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        for index, model in enumerate(self.models):
            mine = module_tensors(model, live=True)
            for key, entry in manifest["models"][index]["pairs"]:
                arrived = tensors[entry["at"]]
                if arrived.data_ptr() != mine[key].data_ptr():
                    mine[key].data.copy_(arrived)
        for optimizer, skeleton in zip(self.optimizers, manifest["optimizers"], strict=True):
            # Rates came early, and the script may have set them for its first step since.
            rates = [_plain_options(group) for group in optimizer.param_groups]
            load_optimizer(optimizer, unflatten(skeleton, tensors))
            for group, mine in zip(optimizer.param_groups, rates, strict=False):
                group.update({key: v for key, v in mine.items() if _is_rate(group.get(key))})
        if not manifest["light"]:
            self._install_registered(manifest, tensors)

    def _install_registered(self, manifest: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        for holder, skeleton in zip(self.registered, manifest["registered"], strict=True):
            holder.load_state_dict(unflatten(skeleton, tensors))


def module_tensors(model: torch.nn.Module, *, live: bool = False) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name. Buffers change in forward, so a sender copies them."""
    found: dict[str, torch.Tensor] = dict(model.named_parameters())
    for name, buffer in model.named_buffers():
        found[f"buffer:{name}"] = buffer if live else buffer.detach().clone()
    return found


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
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


def _is_rate(value: object) -> bool:
    """A plain number among a group's options, which a script may set at every step."""
    return isinstance(value, (bool, int, float))


def _plain_options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if _is_rate(value)}


def _load_rates(optimizer: torch.optim.Optimizer, skeleton: Any) -> None:
    """The groups' plain numbers, ahead of the state; a tensor among them comes with the rest."""
    plain: list[torch.Tensor] = []
    values = dict(skeleton["pairs"]).get("param_groups")
    if values is None:
        return
    for mine, theirs in zip(optimizer.param_groups, values["rows"], strict=False):
        for key, value in theirs["pairs"]:
            if key in mine and key != "params" and _is_rate(value):
                mine[key] = unflatten(value, plain)
