"""What the scripts beside this one have in common: options, data, and a log to be judged by.

Before the gradients: generation, epoch, step and the samples of this worker's own rows. After
notify_batch_end: whether the step counted, and digests of what must be equal everywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, HIDDEN, CLASSES = 12, 24, 4
RATE, MOMENTUM, DECAY = 0.1, 0.9, 0.97

# Parameters, the optimizer's state and buffers, as arrays, and the learning rate.
Look = Callable[[], tuple[Iterable[Any], Iterable[Any], Iterable[Any], float]]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--samples", type=int, default=203)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--micro-batch", type=int, default=None)
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a whole batch takes")
    parser.add_argument("--until", default="", help="go on until this file exists")
    parser.add_argument("--lose", default="", help="gradient:STEP or commit:STEP, see `lose`")
    # By default each worker's own: everyone takes the first leader's model.
    parser.add_argument("--seed", type=int, default=os.getpid())
    return parser.parse_args()


def weights(seed: int) -> dict[str, Any]:
    """The model's first weights, the same under every framework: `w` is inputs by outputs."""
    rng = np.random.default_rng(seed)
    return {
        "w1": rng.standard_normal((FEATURES, HIDDEN), dtype=np.float32) / 4,
        "b1": np.zeros(HIDDEN, np.float32),
        "w2": rng.standard_normal((HIDDEN, CLASSES), dtype=np.float32) / 5,
        "b2": np.zeros(CLASSES, np.float32),
    }


def data(samples: int) -> tuple[Any, Any, Any]:
    """Inputs, classes and each sample's own number."""
    rng = np.random.default_rng(7)
    inputs = rng.standard_normal((samples, FEATURES), dtype=np.float32)
    return inputs, rng.integers(0, CLASSES, samples), np.arange(samples)


def lose(what: str, at: int) -> None:
    """Let one collective of step `at` break, though nobody dies.

    A gradient: worker w1 does not get to see the end of a reduction that all others have seen.
    A commit: everybody's step breaks when its update is made already.
    """
    from edl.collective.gloo import GlooGroup
    from edl.errors import GroupBroken
    from edl.plugin import face
    from edl.runtime.session import Session

    class Lost:
        def __init__(self, work: Any) -> None:
            self._work = work

        def wait(self) -> None:
            self._work.wait()
            raise GroupBroken("lost on purpose")

    reduce: Callable[..., Any] = GlooGroup.all_reduce
    commit: Callable[..., Any] = Session._commit
    left = [what]

    def lossy(group: Any, tensor: Any, op: str = "sum") -> Any:
        work = reduce(group, tensor, op)
        if left and face.step() == at:
            left.clear()
            return Lost(work)
        return work

    def broken(session: Any) -> None:
        if left and face.step() == at:
            left.clear()
            raise GroupBroken("lost on purpose")
        commit(session)

    place: tuple[type, str, Any] | None = None
    if what == "commit":
        place = Session, "_commit", broken
    elif os.environ.get("EDL_WORKER") == "w1":
        place = GlooGroup, "all_reduce", lossy
    if place is not None:
        setattr(*place)


class Schedule:
    """A learning rate that falls with every epoch; registered, so that newcomers have it."""

    def __init__(self) -> None:
        self.rate = RATE

    def fall(self) -> None:
        self.rate *= DECAY

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rate = state["rate"]


class Diary:
    """One worker's log: whole lines, there as soon as they are written."""

    def __init__(self, edl: Any, options: argparse.Namespace, look: Look) -> None:
        name = f"{os.environ.get('EDL_WORKER', 'solo')}.jsonl"
        self._file = os.open(Path(options.log, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._edl = edl
        self._options = options
        self._look = look
        if options.lose:
            what, step = options.lose.split(":")
            lose(what, int(step))

    def intent(self, indexes: Iterable[int], loss: float) -> None:
        edl = self._edl
        rows = edl.local_batch_size()
        self._write(
            what="intent",
            generation=edl.generation(),
            epoch=edl.epoch(),
            step=edl.step(),
            rank=edl.rank(),
            size=edl.size(),
            indexes=[int(index) for index in indexes][:rows],
            loss=float(loss),
        )
        time.sleep(self._options.pause * max(rows, 1) / self._options.batch)

    def end_batch(self) -> None:
        """notify_batch_end, and what came of it, also where it raises Leave."""
        edl = self._edl
        generation, step = edl.generation(), edl.step()
        try:
            edl.notify_batch_end()
        finally:
            fields = {"generation": generation, "step": step, "committed": edl.step() > step}
            self._write(what="outcome", **fields, **self._digests())

    def enough(self) -> bool:
        """At an epoch's end: whether somebody has seen the file that ends the job."""
        until = self._options.until
        return bool(until) and self._edl.all_reduce(float(Path(until).exists()), "max") > 0

    def end(self) -> None:
        self._write(what="end", steps=self._edl.step(), **self._digests())

    def _digests(self) -> dict[str, Any]:
        parameters, optimizer, buffers, rate = self._look()
        return {
            "parameters": _digest(parameters),
            "optimizer": _digest(optimizer),
            "buffers": _digest(buffers),
            "rate": rate,
        }

    def _write(self, **fields: object) -> None:
        os.write(self._file, json.dumps(fields).encode() + b"\n")


def _digest(arrays: Iterable[Any]) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]
