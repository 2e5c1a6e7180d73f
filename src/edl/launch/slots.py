"""Which slots a job may use, and who sits on them.

A slot is a GPU or, where there are none, a place on the CPU. Owns: the slots of this job and the
workers on them. Invariants: a worker has one slot; a slot has one worker unless the user allowed
more; the job holds the machine's lock on every slot that one of its workers uses.

GPUs are exclusive across all jobs of the machine, unless the user insists on sharing. CPU slots
only number the workers of a machine: each job takes the next free indexes, `limit` bounds how many
it has, and no job is refused because of another one.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from edl.errors import Refused, UsageError
from edl.types import Gpu, WorkerId

__all__ = [
    "LOCAL_HOST",
    "Locks",
    "SlotBook",
    "find_gpus",
    "gpu_names",
    "gpus_from_text",
    "listed",
    "parse_slots",
]

log = logging.getLogger("edl.launch")

LOCAL_HOST = "localhost"
REFRESH_S = 5.0
# So many CPU slots of other jobs are passed over; then indexes are used without a lock.
MOST_PASSED_OVER = 4096


class Locks(Protocol):
    """The machine's locks on slots, by name."""

    def acquire(self, name: str, *, shared: bool = False, alone: bool = False) -> str:
        """Who keeps us from this slot; empty: it is ours. OSError if slots cannot be locked."""

    def release(self, name: str) -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class SlotBook:
    """`devices`: slot index -> what CUDA_VISIBLE_DEVICES must say; empty where there are no GPUs.

    `limit` bounds the number of slots; 0: every GPU, or as many CPU slots as are asked for.
    `locks`: None leaves other jobs out of account. `names`: what each GPU is called there.
    """

    def __init__(
        self,
        devices: Mapping[int, str],
        *,
        limit: int = 0,
        oversubscribe: bool = False,
        share_gpus: bool = False,
        locks: Locks | None = None,
        names: Mapping[int, str] | None = None,
    ) -> None:
        if limit and devices:
            devices = dict(sorted(devices.items())[:limit])
        self._devices = dict(devices)
        self._limit = limit
        self._oversubscribe = oversubscribe
        self._share = share_gpus and bool(devices)
        self._locks = locks
        self._names = dict(names or {})
        self._next_refresh = 0.0
        self._slot_of: dict[WorkerId, Gpu] = {}

    @property
    def total(self) -> int | None:
        """How many slots there are; None: as many as are asked for."""
        return len(self._devices) or self._limit or None

    @property
    def gpus(self) -> int:
        """How many of the slots are GPUs: all or none."""
        return len(self._devices)

    def check_room(self, count: int) -> None:
        """Refused if so many workers cannot sit here now."""
        for slot in self._choose(count):
            self._unlock_unused(slot.index)

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
            self._lock_named(named)
        chosen = named or self._choose(len(workers))
        taken = dict(zip(workers, chosen, strict=True))
        self._slot_of.update(taken)
        return taken

    def free(self, worker: WorkerId) -> None:
        slot = self._slot_of.pop(worker, None)
        if slot is not None:
            self._unlock_unused(slot.index)

    def refresh(self, now: float) -> None:
        """Now and then, so that the machine's locks last. `now` is monotonic seconds."""
        if self._locks is not None and now >= self._next_refresh:
            self._next_refresh = now + REFRESH_S
            self._locks.refresh()

    def close(self) -> None:
        """Let other jobs have the slots."""
        if self._locks is not None:
            self._locks.close()

    # -- which slots -----------------------------------------------------------------------

    def _check(self, named: list[Gpu]) -> None:
        busy = {slot: worker for worker, slot in self._slot_of.items()}
        for slot in named:
            if slot.host != LOCAL_HOST:
                raise Refused(
                    f"slot {slot} is on host {slot.host!r}, and this job runs local processes "
                    f"only; name slots as {LOCAL_HOST}:INDEX"
                )
            if self._devices and slot.index not in self._devices:
                have = _spelled(sorted(self._devices))
                raise Refused(f"there is no slot {slot}; this job has {have}")
            if slot in busy and not self._oversubscribe:
                raise Refused(f"slot {slot} is taken by worker {busy[slot]}; name a free one")
        twice = [str(slot) for slot, times in Counter(named).items() if times > 1]
        if twice and not self._oversubscribe:
            raise Refused(f"slot {twice[0]} is named twice; a slot has one worker")
        together = len({*busy, *named})
        if self._limit and not self._devices and together > self._limit:
            raise Refused(
                f"with {', '.join(map(str, named))} this job would have {together} slots, and "
                f"--slots limits it to {self._limit}; name fewer, or start the job with more"
            )

    def _choose(self, count: int) -> list[Gpu]:
        load = Counter(slot.index for slot in self._slot_of.values())
        fresh, holders = self._lock_free(count, load)
        if len(fresh) < count and not (self._oversubscribe and (load or fresh)):
            for index in fresh:
                self._unlock_unused(index)
            raise Refused(self._too_few(count, len(fresh), holders))
        pool, chosen = sorted({*load, *fresh}), []
        for _ in range(count):
            # The emptiest slot, and of those the first.
            index = min(pool, key=lambda i: (load[i], i))
            load[index] += 1
            chosen.append(index)
        return [Gpu(LOCAL_HOST, index) for index in chosen]

    def _lock_free(self, count: int, load: Mapping[int, int]) -> tuple[list[int], dict[int, str]]:
        """Up to `count` slots that are ours now, and why the others could not be had."""
        fresh: list[int] = []
        holders: dict[int, str] = {}
        if not self._devices:
            room = min(count, self._limit - len(load)) if self._limit else count
            index = passed_over = 0
            while len(fresh) < room:
                if index not in load:
                    if passed_over < MOST_PASSED_OVER and self._lock(index):
                        passed_over += 1
                    else:
                        fresh.append(index)
                index += 1
            if passed_over == MOST_PASSED_OVER:
                log.warning("slots.unlocked after %d slots that cannot be locked", passed_over)
            return fresh, holders
        for index in sorted(self._devices):
            if index not in load and len(fresh) < count:
                holder = self._lock(index, alone=True)
                if holder:
                    holders[index] = holder
                else:
                    fresh.append(index)
        if self._share:
            fresh += self._shared(holders, count - len(fresh))
        return fresh, holders

    def _shared(self, held: Iterable[int], count: int) -> list[int]:
        """GPUs that others hold: those first whose holders share as well."""
        exclusive = {index: bool(self._lock(index)) for index in held}
        order = sorted(exclusive, key=lambda index: (exclusive[index], index))
        for index in order[count:]:
            self._unlock_unused(index)
        return order[:count]

    def _too_few(self, count: int, free: int, holders: Mapping[int, str]) -> str:
        need = f"{count} more {'worker needs' if count == 1 else 'workers need'} {count} free "
        if holders:
            held = "; ".join(f"{LOCAL_HOST}:{index} {why}" for index, why in holders.items())
            return (
                f"{need}{'GPU' if count == 1 else 'GPUs'}, and {free} of {len(self._devices)} are "
                f"free: {held}. Ask for fewer, wait until they are free, or insist with "
                "--share-gpus"
            )
        have = _spelled(sorted(self._devices)) if self._devices else f"--slots {self._limit}"
        return (
            f"{need}{'slot' if count == 1 else 'slots'}, and {free} of {self.total} ({have}) are "
            "free; ask for fewer, or start the job with more slots or with --oversubscribe"
        )

    # -- the machine's locks ---------------------------------------------------------------

    def _lock_named(self, named: list[Gpu]) -> None:
        mine = set(self._slot_of.values())
        fresh: list[int] = []
        for slot in named:
            holder = "" if slot in mine else self._lock(slot.index)
            if not holder:
                fresh.append(slot.index)
            elif not (self._share if self._devices else self._oversubscribe):
                for index in fresh:
                    self._unlock_unused(index)
                hint = " or insist with --share-gpus" if self._devices else ""
                raise Refused(f"slot {slot} {holder}; name a free one{hint}")

    def _lock(self, index: int, *, alone: bool = False) -> str:
        """Why this slot is not ours, such as "is held by job a"; empty: it is ours.

        `alone`: even if we would share it.
        """
        if self._locks is None:
            return ""
        try:
            holder = self._locks.acquire(self._lock_name(index), shared=self._share, alone=alone)
        except OSError as error:
            log.warning("slots.unlocked slot=%d why=%r", index, str(error))
            if not self._devices:
                return ""  # the index of a CPU slot is only a number
            return f"cannot be locked against other jobs ({error}; see EDL_SLOTS_DIR)"
        return f"is held by {holder}" if holder else ""

    def _unlock_unused(self, index: int) -> None:
        if self._locks is not None and Gpu(LOCAL_HOST, index) not in self._slot_of.values():
            self._locks.release(self._lock_name(index))

    def _lock_name(self, index: int) -> str:
        if not self._devices:
            return f"cpu-{index}"
        return f"gpu-{self._names.get(index, self._devices[index])}"


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
    try:
        count = len(_nvidia_smi())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"nvidia-smi -L did not answer ({error}); name the GPUs with --gpus, or none with "
            "--gpus none"
        ) from error
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


def gpu_names(devices: Mapping[int, str]) -> dict[int, str]:
    """What to lock for each GPU: its UUID, so that `0` and `GPU-8f1c` are one where they are.

    A GPU that nvidia-smi does not list, or all of them without it, goes by the text given.
    """
    if not devices:
        return {}
    try:
        lines = _nvidia_smi()
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("slots.names GPUs are locked by the names given: %s", error)
        lines = []
    found = [re.match(r"GPU (\d+):.*\(UUID: ([^)]+)\)", line) for line in lines]
    uuids = {match[1]: match[2] for match in found if match}

    def name(text: str) -> str:
        if text in uuids:
            return uuids[text]
        longer = [uuid for uuid in uuids.values() if uuid.startswith(text)]
        return longer[0] if len(longer) == 1 else text

    return {index: name(text) for index, text in devices.items()}


def _nvidia_smi() -> list[str]:
    """A line for each GPU; none without the command."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    answer = subprocess.run(
        [command, "-L"], capture_output=True, text=True, timeout=20, check=False
    )
    return [line for line in answer.stdout.splitlines() if line.startswith("GPU ")]
