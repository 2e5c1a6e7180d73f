"""Which slots a job may use, and who sits on them.

A slot is a GPU or, where there are none, a place on the CPU. Pure, but for `find_gpus`. Owns: the
slots of this machine and the workers on them. Holds: a worker has one slot, and a slot one worker
unless the user allowed more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from edl.errors import Refused, UsageError
from edl.types import Gpu, WorkerId

__all__ = ["LOCAL_HOST", "SlotBook", "find_gpus", "gpus_from_text", "listed", "parse_slots"]

LOCAL_HOST = "localhost"


class SlotBook:
    """`devices`: slot index -> what CUDA_VISIBLE_DEVICES must say; empty where there are no GPUs.

    `limit` bounds the number of slots; 0: every GPU, or as many CPU slots as are asked for.
    """

    def __init__(
        self, devices: Mapping[int, str], *, limit: int = 0, oversubscribe: bool = False
    ) -> None:
        if limit and devices:
            devices = dict(sorted(devices.items())[:limit])
        self._devices = dict(devices)
        self._limit = limit
        self._oversubscribe = oversubscribe
        self._slot_of: dict[WorkerId, Gpu] = {}

    @property
    def total(self) -> int | None:
        """How many slots there are; None: as many as are asked for."""
        indexes = self._indexes()
        return None if indexes is None else len(indexes)

    @property
    def gpus(self) -> int:
        """How many of the slots are GPUs: all or none."""
        return len(self._devices)

    def check_room(self, count: int) -> None:
        """Refused if so many workers can never sit here."""
        self._choose(count)

    def device(self, slot: Gpu) -> str | None:
        """What CUDA_VISIBLE_DEVICES must be for a worker on this slot; None: leave it alone."""
        return self._devices.get(slot.index)

    def slot(self, worker: WorkerId) -> Gpu | None:
        return self._slot_of.get(worker)

    def take(self, workers: Sequence[WorkerId], gpus: Iterable[Gpu] = ()) -> dict[WorkerId, Gpu]:
        """A slot for each worker: those named, or free ones. All or nothing; raises Refused."""
        named = list(gpus)
        if named:
            assert len(named) == len(workers)
            self._check(named)
        chosen = named or self._choose(len(workers))
        taken = dict(zip(workers, chosen, strict=True))
        self._slot_of.update(taken)
        return taken

    def free(self, worker: WorkerId) -> None:
        self._slot_of.pop(worker, None)

    def _indexes(self) -> list[int] | None:
        if self._devices:
            return sorted(self._devices)
        return list(range(self._limit)) if self._limit else None

    def _check(self, named: list[Gpu]) -> None:
        indexes = self._indexes()
        busy = {slot: worker for worker, slot in self._slot_of.items()}
        for slot in named:
            if slot.host != LOCAL_HOST:
                raise Refused(
                    f"slot {slot} is on host {slot.host!r}, and this job runs local processes "
                    f"only; name slots as {LOCAL_HOST}:INDEX"
                )
            if indexes is not None and slot.index not in indexes:
                raise Refused(f"there is no slot {slot}; this job has {_spelled(indexes)}")
            if slot in busy and not self._oversubscribe:
                raise Refused(f"slot {slot} is taken by worker {busy[slot]}; name a free one")
        twice = [str(slot) for slot, times in Counter(named).items() if times > 1]
        if twice and not self._oversubscribe:
            raise Refused(f"slot {twice[0]} is named twice; a slot has one worker")

    def _choose(self, count: int) -> list[Gpu]:
        load = Counter(slot.index for slot in self._slot_of.values())
        indexes = self._indexes()
        if indexes is None:
            free: list[int] = []
            index = 0
            while len(free) < count:
                if not load[index]:
                    free.append(index)
                index += 1
            return [Gpu(LOCAL_HOST, index) for index in free]
        free = [index for index in indexes if not load[index]]
        if count > len(free) and not self._oversubscribe:
            raise Refused(
                f"{count} more {'worker needs' if count == 1 else 'workers need'} {count} free "
                f"slots, and {len(free)} of {len(indexes)} ({_spelled(indexes)}) are free; ask for "
                "fewer, or start the job with more slots or with --oversubscribe"
            )
        chosen: list[int] = []
        for _ in range(count):
            # The emptiest slot, and of those the first.
            index = min(indexes, key=lambda i: (load[i], i))
            load[index] += 1
            chosen.append(index)
        return [Gpu(LOCAL_HOST, index) for index in chosen]


def _spelled(indexes: list[int]) -> str:
    names = [f"{LOCAL_HOST}:{index}" for index in indexes]
    return ", ".join(names if len(names) <= 8 else [*names[:7], "..."])


def parse_slots(gpus: str | Sequence[str | Gpu]) -> list[Gpu]:
    """Slots from `node2:0,1` or `["node2:0", Gpu("node2", 1)]`: a bare index repeats the host."""
    slots: list[Gpu] = []
    for name in listed(gpus):
        bare = isinstance(name, str) and name.isdigit() and bool(slots)
        slots.append(Gpu(slots[-1].host, int(str(name))) if bare else Gpu.parse(str(name)))
    return slots


def listed(names: str | Sequence[str | Gpu]) -> list[str | Gpu]:
    """Names from `a,b` or from a list of them."""
    if isinstance(names, str):
        return [name.strip() for name in names.split(",") if name.strip()]
    return list(names)


def gpus_from_text(text: str) -> dict[int, str]:
    """`0,1` as CUDA_VISIBLE_DEVICES has it; ids that are no numbers are counted from 0."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(set(parts)) != len(parts):
        raise UsageError(f"--gpus {text!r} names a GPU twice")
    if all(part.isdigit() for part in parts):
        return {int(part): part for part in parts}
    if any(part.isdigit() or part.startswith("-") for part in parts):
        raise UsageError(f"--gpus {text!r} is no list of GPUs; give for example 0,1")
    return dict(enumerate(parts))


def find_gpus(environment: Mapping[str, str] = os.environ) -> dict[int, str]:
    """The GPUs of this machine that this user may see; none without an NVIDIA driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return {}
    try:
        listed = subprocess.run(
            [command, "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"nvidia-smi -L did not answer ({error}); name the GPUs with --gpus, or none with "
            "--gpus none"
        ) from error
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not count:
        return {index: str(index) for index in range(count)}
    # As CUDA reads it: what follows the first invalid entry is invisible.
    valid: list[str] = []
    for part in visible.split(","):
        if not part.strip() or part.strip().startswith("-"):
            break
        valid.append(part.strip())
    return gpus_from_text(",".join(valid))
