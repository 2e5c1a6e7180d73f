"""The framework port filled for any model of named arrays: what the session asks of a plug-in.

Owns: this process's state, reducer and session. A plug-in gives an adapter, and adds what its
scripts call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from edl.collective.build import load_collectives
from edl.plugin.adapter import Adapter, Array, Kind
from edl.plugin.base import BasePlugin
from edl.plugin.combining import combine
from edl.plugin.holding import Holder, Holding
from edl.plugin.reducer import ArrayReducer
from edl.plugin.reducing import Reduction
from edl.plugin.snapshot import capture, install
from edl.plugin.state import ArrayState
from edl.runtime.digests import digest_bytes, part_of, slices_of
from edl.runtime.framework import Group, Relay
from edl.runtime.identity import Identity
from edl.runtime.session import Session
from edl.runtime.tensorfile import Tensors

__all__ = ["ArrayPlugin"]

# Held variables are learning rates and the like; one with more elements is no setting.
_SMALL = 64


class ArrayPlugin(BasePlugin):
    """A set of named arrays as the session knows it."""

    state: ArrayState
    reducer: ArrayReducer

    def __init__(self, identity: Identity | None, reduction: Reduction, adapter: Adapter) -> None:
        self.adapter = adapter
        self.state = ArrayState(adapter, str(reduction))
        self._holding = Holding(
            self.state.registered,
            take=self._rates,
            give=self._set_rates,
            slow=self._is_slow,
            compared=self._compared,
        )
        if identity is not None and (identity.founders > 1 or identity.request_id):
            # Now, while the context is prepared, and where its absence is told to the script.
            load_collectives()
        self.session = Session(self, identity)
        self.reducer = ArrayReducer(self.session, reduction, adapter)

    # -- the port --------------------------------------------------------------------------

    def capture(self) -> tuple[Tensors, dict[str, Any]]:
        return capture(self.state)

    def install(self, tensors: Tensors, skeleton: dict[str, Any]) -> None:
        install(self.state, tensors, skeleton)

    def warm_up(self) -> Iterator[None]:
        self.adapter.make_slots()
        yield from self.reducer.warm_up()

    def even_out(self, group: Group, root: int, relay: Relay | None) -> None:
        """Everyone takes the root's buffers, in one message."""
        names = [v.name for v in self.adapter.variables() if v.kind is Kind.BUFFER]
        if not names:
            return
        values = [np.array(self.adapter.read(name), order="C") for name in names]
        flat = np.concatenate([value.reshape(-1).view(np.uint8) for value in values])
        # Imported with the group that this comes by.
        from edl.collective.carrying import carried

        row = carried(flat)
        if relay is None:
            group.broadcast(row, root).wait()
        elif not relay.takes:
            relay.broadcast(row).wait()
        if relay is not None and (relay.hands or relay.takes):
            relay.pass_on(row)
        start = 0
        for name, value in zip(names, values, strict=True):
            end = start + value.nbytes
            value.reshape(-1).view(np.uint8)[:] = flat[start:end]
            self.adapter.write(name, value)
            start = end

    def settings(self) -> list[tuple[str, str]]:
        held = {name: self.adapter.read(name) for name in self.adapter.held()}
        rates = [
            (name, repr(value.tolist())) for name, value in held.items() if value.size <= _SMALL
        ]
        return [*rates, *self._holding.settings(_scalar)]

    def digests(self, part: int, parts: int) -> Callable[[], list[tuple[str, str]]]:
        held = set(self.adapter.held())
        variables = [
            v for v in self.adapter.variables() if v.kind is not Kind.BUFFER and v.name not in held
        ]
        starts = list(accumulate((math.prod(v.shape) for v in variables), initial=0))
        begin, end = part_of(starts[-1], part, parts)
        found = []
        for index, low, high in slices_of(starts, begin, end):
            name = variables[index].name
            row = np.ascontiguousarray(self.adapter.read(name)).reshape(-1)[low:high]
            found.append((name, f"{digest_bytes(row.view(np.uint8)):x}"))
        return lambda: found

    def _is_slow(self, holder: Holder) -> bool:
        """Whether it is too much to copy this registered object at every step."""
        return False

    def _compared(self, holder: Holder) -> object:
        """The part of a registered object's state that must be equal on all workers."""
        return holder.state_dict()

    def _rates(self) -> dict[str, Array]:
        """Schedules write into these variables, so they are held with registered objects."""
        return {name: np.array(self.adapter.read(name)) for name in self.adapter.held()}

    def _set_rates(self, held: Mapping[str, Array]) -> None:
        for name, value in held.items():
            self.adapter.write(name, value)

    # -- what the face calls ---------------------------------------------------------------

    def before_commit(self) -> None:
        self.reducer.end_batch()

    def all_reduce(self, array: Array, op: str) -> Array:
        """The same array on every worker: mean, sum, max or min of everyone's."""
        kept = np.array(array, order="C")

        def row(copy: Array) -> Any:
            from edl.collective.carrying import reduced_in_place

            return reduced_in_place(copy)

        def divided(total: Array, by: int) -> Array:
            divide = np.true_divide if total.dtype.kind in "fc" else np.floor_divide
            return np.asarray(divide(total, by, out=total))

        return combine(self.session, op, f"{kept.dtype}/{kept.shape}", kept.copy, row, divided)


def _scalar(value: Any) -> object:
    """The number that an array of one element holds."""
    return value.item() if getattr(value, "size", None) == 1 and hasattr(value, "item") else None
