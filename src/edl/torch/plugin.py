"""The framework port filled by torch: what the session asks of a plug-in.

Owns: this process's state, reducer and session. One plug-in a process, made by `edl.init()`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from edl.collective.gloo import build_group
from edl.errors import UsageError
from edl.protocol.topology import Generation
from edl.runtime.board import Board
from edl.runtime.framework import Group, Relay, StatePath, Transfer
from edl.runtime.identity import Identity
from edl.runtime.session import Session
from edl.runtime.tensorfile import Tensors
from edl.torch.reducer import Reducer, Reduction
from edl.torch.snapshot import capture, install
from edl.torch.state import Holder, State
from edl.types import WorkerId

__all__ = ["Plugin"]

_OPS = ("mean", "sum", "max", "min")
# Registered objects up to so many bytes of tensors are remembered at every step.
_LIGHT = 64 << 10


class Plugin:
    """torch as the session knows it."""

    def __init__(self, identity: Identity | None, reduction: Reduction) -> None:
        self.state = State(reduction=str(reduction))
        self.state_makers: list[Callable[[], None]] = []
        self._held: dict[int, dict[str, Any]] = {}
        self._light: dict[int, bool] = {}
        self._rates: list[dict[str, Any]] = []
        self.session = Session(self, identity)
        self.reducer = Reducer(self.session, reduction)
        use_gpu = identity is not None and torch.cuda.is_available()
        self.device = torch.device("cuda", 0) if use_gpu else torch.device("cpu")

    # -- the port --------------------------------------------------------------------------

    def build_group(
        self, generation: Generation, me: WorkerId, board: Board, bind: str, timeout_s: float
    ) -> Group:
        group = build_group(generation, me, board, bind, timeout_s)
        if group.relay is not None and group.relay.hands:
            self.reducer.prepare(group.relay)
        return group

    def start_sending(
        self, path: StatePath, snapshot: dict[str, Any], *, extra: Any = None, bare: bool = False
    ) -> Callable[[], Transfer]:
        return self.state.start_sending(path, snapshot, extra=extra, bare=bare)

    def start_receiving(
        self, path: StatePath, *, aside: bool = False
    ) -> tuple[dict[str, Any], Callable[[], Transfer]]:
        return self.state.start_receiving(path, aside=aside)

    def capture(self) -> tuple[Tensors, dict[str, Any]]:
        return capture(self.state)

    def install(self, tensors: Tensors, skeleton: dict[str, Any]) -> None:
        install(self.state, tensors, skeleton)

    def warm_up(self) -> Iterator[None]:
        # A GPU's memory is soon full, and soon touched.
        early, late = self.state_makers, self.state_makers[:0]
        if self.reducer.on_cpu:
            early, late = late, early
        for make_state in early:
            make_state()
        yield
        yield from self.reducer.touch_buckets()
        for make_state in late:
            make_state()
            yield
        yield from self.reducer.touch_spare()

    def even_out(self, group: Group, root: int, relay: Relay | None) -> None:
        """Everyone takes the root's buffers, in one message per dtype."""
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for buffer in self.state.buffers():
            kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer)
        with torch.no_grad():
            for buffers in kinds.values():
                flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
                if relay is None:
                    group.broadcast(flat, root).wait()
                elif not relay.takes:
                    relay.broadcast(flat).wait()
                if relay is not None and (relay.hands or relay.takes):
                    relay.pass_on(flat)
                parts = flat.split([buffer.numel() for buffer in buffers])
                for buffer, part in zip(buffers, parts, strict=True):
                    buffer.copy_(part.view(buffer.shape))

    def hold(self, *, heavy: bool) -> None:
        registered = self.state.registered
        if not registered:
            return
        if not heavy:
            self._held = {}
        for index, holder in enumerate(registered):
            if index not in self._held and (heavy or self._is_light(index, holder)):
                self._held[index] = copy.deepcopy(holder.state_dict())
        if not heavy or not self._rates:
            # Schedules write into the optimizer's groups, so these are held too.
            self._rates = [_options(group) for group in self._groups()]

    def put_back(self) -> None:
        self.reducer.accumulator.open_all()
        if not self.state.registered:
            return
        for index, held in self._held.items():
            self.state.registered[index].load_state_dict(copy.deepcopy(held))
        for group, rates in zip(self._groups(), self._rates, strict=False):
            group.update(copy.deepcopy(rates))

    def broke(self) -> None:
        self.reducer.abandon()

    def _is_light(self, index: int, holder: Holder) -> bool:
        """Whether it can be copied at every step without anybody noticing."""
        known = self._light.get(index)
        if known is None:
            # To read a scaler on a GPU waits for the GPU.
            slow = isinstance(holder, torch.amp.GradScaler) and self.device.type != "cpu"
            known = self._light[index] = not slow and weight_of(holder.state_dict()) <= _LIGHT
        return known

    def _groups(self) -> list[dict[str, Any]]:
        return [g for optimizer in self.state.optimizers for g in optimizer.param_groups]

    def void_step(self, group: Group, relay: Relay | None) -> None:
        self.reducer.void_step(group, relay)

    # -- what scripts call -----------------------------------------------------------------

    def all_reduce(self, tensor: torch.Tensor, op: str) -> torch.Tensor:
        """The same tensor on every worker: mean, sum, max or min of everyone's."""
        if op not in _OPS:
            raise UsageError(f"op={op!r} is not one of {', '.join(_OPS)}")
        text = f"{op}/{tensor.dtype}/{tuple(tensor.shape)}".encode()
        detail = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")

        def reduce(group: Group) -> torch.Tensor:
            result = tensor.detach().clone().contiguous()
            if group.size == 1:
                return result
            group.all_reduce(result, "sum" if op == "mean" else op).wait()
            if op != "mean":
                return result
            return result / group.size if result.is_floating_point() else result // group.size

        reduced = self.session.reduce(detail, reduce)
        if reduced is None:
            return tensor.detach().clone().contiguous()
        assert isinstance(reduced, torch.Tensor)
        return reduced


def _options(group: dict[str, Any]) -> dict[str, Any]:
    plain = (int, float, bool, str, type(None))
    return {
        key: value if isinstance(value, plain) else copy.deepcopy(value)
        for key, value in group.items()
        if key != "params"
    }


def weight_of(value: object) -> int:
    """Bytes of all tensors in a state_dict."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(weight_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(weight_of, value))
    return 0
