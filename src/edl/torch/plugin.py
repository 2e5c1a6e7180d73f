"""The framework port filled by torch: what the session asks of a plug-in.

Owns: this process's state, reducer and session. One plug-in a process, made by `edl.init()`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from edl.collective.gloo import build_group
from edl.plugin.base import BasePlugin
from edl.plugin.combining import combine
from edl.plugin.holding import Holding
from edl.plugin.reducing import Reduction
from edl.protocol.topology import Generation
from edl.runtime.board import Board
from edl.runtime.framework import BuildOptions, Group, Relay
from edl.runtime.identity import Identity
from edl.runtime.session import Session
from edl.runtime.tensorfile import Tensors
from edl.torch.digests import StateDigests, compared, hyperparameters, scalar
from edl.torch.reducer import Reducer
from edl.torch.snapshot import capture, install
from edl.torch.state import State
from edl.types import WorkerId

__all__ = ["Plugin"]


class Plugin(BasePlugin):
    """torch as the session knows it."""

    state: State
    reducer: Reducer

    def __init__(self, identity: Identity | None, reduction: Reduction) -> None:
        self.state = State(reduction=str(reduction))
        self.state_makers: list[Callable[[], None]] = []
        self._holding = Holding(
            self.state.registered,
            take=self._rates,
            give=self._set_rates,
            slow=lambda h: isinstance(h, torch.amp.GradScaler) and self.device.type != "cpu",
            compared=compared,
        )
        self._digests = StateDigests(self.state)
        self.session = Session(self, identity)
        self.reducer = Reducer(self.session, reduction)
        use_gpu = identity is not None and torch.cuda.is_available()
        self.device = torch.device("cuda", 0) if use_gpu else torch.device("cpu")

    # -- the port --------------------------------------------------------------------------

    def _build(
        self, generation: Generation, me: WorkerId, board: Board, options: BuildOptions
    ) -> Group:
        return build_group(generation, me, board, options)

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

    def put_back(self) -> None:
        self.reducer.accumulator.open_all()
        super().put_back()

    def settings(self) -> list[tuple[str, str]]:
        return [*hyperparameters(self.state.optimizers), *self._holding.settings(scalar)]

    def digests(self, part: int, parts: int) -> Callable[[], list[tuple[str, str]]]:
        return self._digests.digests(part, parts)

    def _rates(self) -> list[dict[str, Any]]:
        """Schedules write into the optimizer's groups, so these are held with them."""
        return [_options(group) for group in self._groups()] if self.state.registered else []

    def _set_rates(self, held: list[dict[str, Any]]) -> None:
        for group, rates in zip(self._groups(), held, strict=False):
            group.update(copy.deepcopy(rates))

    def _groups(self) -> list[dict[str, Any]]:
        return [g for optimizer in self.state.optimizers for g in optimizer.param_groups]

    # -- what the face calls ---------------------------------------------------------------

    def before_commit(self) -> None:
        """Whatever changes the model is an optimizer's step, which is complete when it returns."""

    def all_reduce(self, tensor: torch.Tensor, op: str) -> torch.Tensor:
        """The same tensor on every worker: mean, sum, max or min of everyone's."""
        kept = tensor.detach()

        def copied() -> torch.Tensor:
            return kept.clone().contiguous()

        def divided(total: torch.Tensor, by: int) -> torch.Tensor:
            return total / by if total.is_floating_point() else total // by

        about = f"{tensor.dtype}/{tuple(tensor.shape)}"
        reduced = combine(self.session, op, about, copied, lambda copy: copy, divided)
        assert isinstance(reduced, torch.Tensor)
        return reduced


def _options(group: dict[str, Any]) -> dict[str, Any]:
    plain = (int, float, bool, str, type(None))
    return {
        key: value if isinstance(value, plain) else copy.deepcopy(value)
        for key, value in group.items()
        if key != "params"
    }
