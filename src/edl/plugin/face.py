"""The functions that every plug-in offers to scripts under the same names.

Owns: which plug-in this process runs; there is one, made by that plug-in's `init`. A face imports
these and adds its own: `init`, `DataLoader`, and whatever makes its models elastic. Holds: the same
call means the same under every framework.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from edl.data.listing import Given, list_partitions
from edl.errors import UsageError
from edl.plugin.holding import Holder, checked_holder
from edl.runtime.departure import install_signals
from edl.runtime.identity import Identity, identify
from edl.runtime.session import Session
from edl.runtime.shards import ShardGenerator

__all__ = [
    "Plugin",
    "elastic_shard_generator",
    "epoch",
    "epochs",
    "generation",
    "here",
    "is_leader",
    "job",
    "local_batch_size",
    "notify_batch_end",
    "rank",
    "register",
    "report",
    "shutdown",
    "size",
    "start",
    "step",
]

_log = logging.getLogger("edl")
_Registered = TypeVar("_Registered", bound=Holder)
_Kind = TypeVar("_Kind", bound="Plugin")


class Plugin(Protocol):
    """A plug-in as its face knows it; the session knows it as a `runtime.framework.Framework`."""

    @property
    def session(self) -> Session: ...

    def register(self, holder: Holder, *, same: bool) -> None:
        """`same`: the values of this object are equal on all workers."""
        ...

    @property
    def reduced(self) -> bool:
        """Whether gradients were exchanged in the present step."""
        ...

    def begin_step(self) -> None:
        """A step was opened; its batch comes next."""
        ...

    def before_commit(self) -> None:
        """The script says that its batch is over; what it did to the model, it has done."""
        ...


_SILENT_STEPS = 3
_silent: int | None = 0  # steps in which nothing was exchanged; None: something was
_plugin: Plugin | None = None


def start(make: Callable[[Identity | None], Plugin]) -> None:
    """What every `init` does: make the one plug-in of this process, as whoever launched it says."""
    global _plugin
    if _plugin is not None:
        raise UsageError("edl.init() was called before; call it once, at the script's start")
    _plugin = make(identify())
    install_signals(_plugin.session)
    atexit.register(_at_exit)


def here(kind: type[_Kind]) -> _Kind:
    """This process's plug-in, for the face that it is of."""
    plugin = _here()
    if not isinstance(plugin, kind):
        raise UsageError(
            f"edl.init() was that of {_face_of(type(plugin))}, this call is {_face_of(kind)}'s; "
            "a script uses one of them"
        )
    return plugin


def _face_of(kind: type) -> str:
    return ".".join(kind.__module__.split(".")[:2])


def shutdown() -> None:
    """End this worker's part in the job. Also happens by itself when the script ends."""
    _here().session.shutdown()


def register(holder: _Registered, *, same: bool = True) -> _Registered:
    """Let new workers receive this too: an LR scheduler, GradScaler, EMA, your own counters.

    Its numbers are compared between workers at every step. `same=False`: they may differ, as those
    of a metric of each worker's own samples or of a random generator do, and are not compared.
    """
    checked_holder(holder)
    _here().register(holder, same=same)
    return holder


def elastic_shard_generator(
    partitions: Given,
    *,
    batch_size: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    record_bytes: int | None = None,
    header_bytes: int = 0,
    partition_samples: int | None = None,
    read_ahead: int | None = None,
    micro_batch: int | None = None,
) -> ShardGenerator:
    """Metadata of the samples to read next: `Shard(path, offset, length, epoch, index)`.

    `partitions` are (path, offset, length), a reader of edl.data, a manifest (.json, .jsonl, .csv),
    or paths and patterns: files of records of `record_bytes`, cut into partitions of
    `partition_samples`; without it every file is one sample. Each is read by one worker, unless
    membership changes or the epoch ends: then its unread rest goes to another.

    One iteration is one epoch, inside `edl.epochs(n)`; with `epochs` it goes over all of them.

    With `batch_size`, the aggregate batch, iterate over `.batches(read)` to get one list of samples
    a step, or over the generator itself. Without, let a pipeline make batches of its own of the
    shards, and say by `notify_batch_end(samples=n)` how many samples each step took.
    """
    plugin = _here()
    return ShardGenerator(
        plugin.session,
        list_partitions(
            partitions,
            record_bytes=record_bytes,
            header_bytes=header_bytes,
            partition_samples=partition_samples,
        ),
        batch_size=batch_size,
        epochs=epochs,
        seed=seed,
        shuffle=shuffle,
        read_ahead=read_ahead,
        micro_batch=micro_batch,
        on_begin=plugin.begin_step,
        reduced=lambda: plugin.reduced,
    )


def epochs(count: int) -> Iterator[int]:
    """The epochs of the job; a new worker starts in the current one."""
    if count < 1:
        raise UsageError(f"edl.epochs({count}): give at least 1")
    session = _here().session
    session.teller.epochs = count
    progress = session.enter()
    while not session.over and progress.ledger.epoch < count:
        current = progress.ledger.epoch
        yield current
        session.settle()
        if progress.ledger.epoch == current and not session.over:
            # The script did not touch the loader in this epoch; it counts all the same.
            session.close_epoch()


def notify_batch_end(*, samples: int | None = None) -> None:
    """The batch is over: commit it, and gain or lose workers if that is due. May raise Leave.

    `samples`: how many samples this worker's batch had, where an `elastic_shard_generator` without
    batch_size feeds a pipeline that makes batches of its own.
    """
    plugin = _here()
    plugin.before_commit()
    _watch_reduction(plugin)
    plugin.session.end_step(samples)


def _watch_reduction(plugin: Plugin) -> None:
    """Workers that exchange nothing train models of their own, and nothing else would say so."""
    global _silent
    group, piece = plugin.session.group, plugin.session.piece
    if _silent is None or group is None or group.size == 1 or not piece.last:
        return
    _silent = None if plugin.reduced else _silent + 1
    if _silent == _SILENT_STEPS:
        _silent = None
        _log.warning(
            "no gradients were exchanged in %d steps, so each worker trains a model of its own; "
            "make the optimizer elastic (edl.Optimizer), or average gradients (edl.average)",
            _SILENT_STEPS,
        )


def report(**values: float) -> None:
    """Show these numbers in `edl status` and the live table; the leader's are shown."""
    _here().session.teller.reports.update({name: float(value) for name, value in values.items()})


def rank() -> int:
    """This worker's rank in the present generation."""
    shown = _here().session.shown
    return shown.rank if shown is not None else 0


def size() -> int:
    """How many workers the present generation has."""
    shown = _here().session.shown
    return shown.size if shown is not None else 1


def step() -> int:
    """How many steps are committed."""
    progress = _here().session.progress
    return progress.step if progress is not None else 0


def epoch() -> int:
    """The current epoch, from 0."""
    progress = _here().session.progress
    return progress.ledger.epoch if progress is not None else 0


def generation() -> int:
    """The number of the present generation; it grows with every change of membership."""
    shown = _here().session.shown
    return shown.generation if shown is not None else 0


def local_batch_size() -> int:
    """How many rows of the present batch are this worker's own; 0 on a stand-in batch."""
    session = _here().session
    session.ensure_open()
    if session.shown is None:
        return 0
    return session.piece.rows if session.piece.pieces > 1 else session.shown.count


def is_leader() -> bool:
    """Whether this worker leads the job at the moment."""
    agent = _here().session.agent
    return agent.leads if agent is not None else True


def job() -> str:
    """The job's name; `solo` when the script runs alone."""
    return str(_here().session.job)


def _here() -> Plugin:
    if _plugin is None:
        raise UsageError("call edl.init() first")
    return _plugin


def _at_exit() -> None:
    if _plugin is None:
        return
    if getattr(sys, "last_value", None) is not None:
        # The script ended with an uncaught exception: it takes part in nothing any more.
        _plugin.session.abandon()
        return
    try:
        _plugin.session.shutdown()
    except BaseException:
        # Python would print this and still end with status 0.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
