"""A worker's own copy of the committed log: one entry for each step, as it is committed.

Owns: the file of this worker (see `auditlog.py`). Holds: what is written was committed here; a
file that cannot be written costs a warning and the log, never the training.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edl.protocol.drawing import DrawnLedger
from edl.protocol.ledger import MapLedger
from edl.protocol.progress import Ledger, Progress, Round
from edl.protocol.shards import ShardLedger
from edl.runtime.auditlog import Kind, header, pack
from edl.types import WorkerId

__all__ = ["AUDIT", "AuditLog", "audit_of"]

log = logging.getLogger(__name__)

AUDIT = "audit"


class AuditLog:
    """Where one worker writes which samples were used."""

    def __init__(self, folder: Path, me: WorkerId, *, run: int) -> None:
        self._folder = folder
        self._me = me
        self._run = run
        self._file: int | None = None
        self._given_up = False
        self._next: tuple[int, int, int] | None = None  # generation, step and epoch that come next
        self._names: Sequence[tuple[str, int, int]] = ()

    def name(self, partitions: Sequence[tuple[str, int, int]]) -> None:
        """What the data's partitions are called: (path, offset, length)."""
        self._names = partitions

    def committed(self, before: Ledger, progress: Progress, decided: Round) -> None:
        """A step is committed; `before` is the ledger that it was planned by."""
        if self._given_up:
            return
        step, generation = progress.step - 1, progress.generation.number
        entry = b""
        if self._next != (generation, step, before.epoch):
            # How many samples of the epoch were used before.
            if isinstance(before, MapLedger):
                position = before.position
            else:
                position = before.samples - before.remaining()
            place = (self._run, generation, step, before.epoch, position)
            entry = pack(Kind.PLACE, place)
        if isinstance(before, MapLedger):
            entry += pack(Kind.RANGE, [sum(decided.samples.values())])
        else:
            pieces = (
                before.used_by(decided.samples, decided.back)
                if isinstance(before, DrawnLedger)
                else before.used_by(decided.samples)
            )
            flat = [n for piece in pieces for n in (piece.partition, piece.offset, piece.length)]
            entry += pack(Kind.PIECES, [len(pieces), *flat])
        self._next = (generation, step + 1, before.epoch)
        self._write(entry, before)

    def epoch_over(self, before: Ledger) -> None:
        """The epoch's end is the same on every worker, reached or by `break`."""
        if self._given_up or self._next is None:
            return
        if self._next[2] == before.epoch:
            self._write(pack(Kind.EPOCH, [before.remaining()]), before)
            self._next = None

    def _write(self, entry: bytes, ledger: Ledger) -> None:
        try:
            if self._file is None:
                self._file = self._open(ledger)
            while entry:
                entry = entry[os.write(self._file, entry) :]
        except OSError as error:
            self._given_up = True
            log.warning("audit.off worker=%s why=%s", self._me, error)

    def _open(self, ledger: Ledger) -> int:
        folder = self._folder / AUDIT
        folder.mkdir(exist_ok=True)
        path = folder / f"{self._me}.log"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        data = _data(ledger)
        if isinstance(ledger, ShardLedger):
            self._keep_table(folder, ledger)
        os.write(file, header({"worker": str(self._me), "data": data}))
        return file

    def _keep_table(self, folder: Path, ledger: ShardLedger) -> None:
        """The partitions themselves, once for all workers."""
        path = folder / f"{ledger.table.digest}.json.gz"
        if path.exists():
            return
        names = self._names or [("", 0, length) for length in ledger.table.lengths]
        temporary = path.with_suffix(f".{secrets.token_hex(4)}")
        with gzip.open(temporary, "wt", encoding="utf-8") as out:
            json.dump([list(name) for name in names], out)
        temporary.rename(path)


def _data(ledger: Ledger) -> dict[str, Any]:
    common = {"samples": ledger.samples, "batch": ledger.batch, "seed": ledger.seed}
    if isinstance(ledger, ShardLedger):
        return {"kind": "shards", "table": ledger.table.digest, **common}
    order = {"shuffle": ledger.shuffle, "drop_last": ledger.drop_last, "usable": ledger.usable()}
    return {"kind": "map", **common, **order}


def audit_of(me: WorkerId, environment: Mapping[str, str] | None = None) -> AuditLog | None:
    """By the environment; None: switched off, or this machine has no folder of the job."""
    known = os.environ if environment is None else environment
    folder = known.get("EDL_JOB_DIR", "")
    if not folder or known.get("EDL_AUDIT", "1") == "0":
        return None
    return AuditLog(Path(folder), me, run=int(known.get("EDL_ATTEMPT", "0") or "0"))
