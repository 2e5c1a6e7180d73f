"""Checkpoints in a folder: complete, or not there.

When no worker of a job survives, a checkpoint is all that is left of it, so it must be trusted
blindly: one that a crash, a full disk or a bad sector has spoiled is never taken for whole. Each
is a folder named by its step, with tensors in safetensors files and a manifest written last. Owns:
the folder's layout, and what is removed from it when. Holds: `latest` gives a checkpoint whose
every byte is as it was written, or none; nothing is removed before something newer is complete,
and nothing ever that is not named like a checkpoint. One process writes at a time, the job's
leader; any number may read.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edl.errors import CheckpointError, UsageError
from edl.runtime.clock import wall
from edl.runtime.manifest import MANIFEST, MANIFEST_MAX, Manifest, Part, Unfit, digest, parse
from edl.runtime.places import open_place
from edl.runtime.tensorfile import Array, Tensors, decode, encode, pieces

__all__ = ["Checkpoint", "CheckpointFolder"]

_log = logging.getLogger("edl.checkpoint")

_SUFFIX = ".safetensors"
_STEM = re.compile(r"[a-z][a-z0-9-]*")
_NAME = re.compile(r"step-(\d{12})")
_STEP_MAX = 10**12 - 1
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """One verified checkpoint, read into memory: what happens to its files no longer matters."""

    step: int
    where: str
    time: float  # seconds since 1970, when it was written
    size: int  # bytes of its tensor files
    extra: dict[str, Any]
    tensors: dict[str, dict[str, Array]]


class CheckpointFolder:
    """The checkpoints of one job, in a local folder or behind an fsspec URL."""

    def __init__(
        self, url: str, keep: int = 3, *, confirm: Callable[[], None] = lambda: None
    ) -> None:
        """`confirm` raises CheckpointError if this process may not write to the folder any more.

        It is called for each checkpoint, just before that becomes visible to others.
        """
        if not url:
            raise UsageError("a checkpoint folder needs a path or a URL, such as s3://bucket/job")
        if keep < 1:
            raise UsageError(f"keep={keep} checkpoints: at least 1 must be kept")
        self.keep = keep
        self._confirm = confirm
        self._place = open_place(url)
        self._made = False
        # Passed over by `latest`, here or on another worker, and why: not counted as kept.
        self._spoiled: dict[str, str] = {}
        self._told: set[str] = set()
        self.where = self._place.where

    def prepare(self) -> None:
        """Make the folder and write to it once, so that a bad one is known before training.

        A job that another one is about to refuse may do so at the same time, each by its own name.
        """
        probe = f".probe-{secrets.token_hex(4)}"
        try:
            self._make()
            try:
                self._place.write(probe, "probe.txt", [b"EDL can write here.\n"])
            except OSError:
                self._undo(probe, {}, [])
                raise
            self._place.remove_folder(probe)
        except OSError as error:
            raise CheckpointError(_told(f"no checkpoints in {self.where}", error)) from error

    # -- writing ---------------------------------------------------------------------------

    def save(self, step: int, tensors: Tensors, extra: Mapping[str, Any]) -> None:
        """Write one checkpoint and return when it is complete; then remove what is too old."""
        if not 0 <= step <= _STEP_MAX:
            raise UsageError(f"a checkpoint of step {step}: expected 0 to {_STEP_MAX}")
        for stem in tensors:
            if not _STEM.fullmatch(stem):
                raise UsageError(f"a checkpoint file {stem!r}: expected a name such as 'model'")
        # Refuses extra values that cannot be kept before a byte is written.
        Manifest(step=step, time=0.0, parts={}, extra=dict(extra)).encode()
        name = _name(step)
        before: dict[str, int] | None = None
        written: list[str] = []
        sealing = False
        try:
            self._make()
            before = self._place.files(name)
            parts = {}
            for stem, arrays in tensors.items():
                file = _free(stem, before)
                written.append(file)
                parts[stem] = self._write(name, file, arrays)
            manifest = Manifest(step=step, time=wall(), parts=parts, extra=dict(extra))
            self._confirm()
            sealing = True
            self._place.write_small(name, MANIFEST, manifest.encode())
        except BaseException as error:
            # An upload may be done though its answer was lost: the files it then names must stay.
            self._undo(name, before, [] if sealing else written)
            if isinstance(error, OSError):
                what = f"the checkpoint {self.where}/{name} was not written"
                raise CheckpointError(_told(what, error)) from error
            raise
        self._spoiled.pop(name, None)
        self._tidy(step, set(written))

    def _make(self) -> None:
        """Make the folder, but once: one that vanishes later may be a disk not mounted now."""
        if not self._made:
            self._place.make()
            self._made = True

    def _write(self, folder: str, file: str, arrays: Mapping[str, Array]) -> Part:
        checksum = digest()
        size = 0

        def passing() -> Iterator[memoryview]:
            nonlocal size
            for piece in pieces(encode(arrays)):
                checksum.update(piece)
                size += len(piece)
                yield piece

        self._place.write(folder, file, passing())
        return Part(file=file, size=size, checksum=checksum.hexdigest())

    def _undo(self, folder: str, before: dict[str, int] | None, written: list[str]) -> None:
        """Take away what a failed attempt wrote. The next complete one removes what this leaves."""
        if before is None:
            return
        with contextlib.suppress(OSError):
            if MANIFEST not in before:
                self._place.remove_folder(folder, first=MANIFEST)
                return
            for file in written:
                self._place.remove(folder, file)

    def _tidy(self, step: int, written: set[str]) -> None:
        """Remove what is too old or unfinished, now that this step is complete."""
        try:
            for file in self._place.files(_name(step)):
                if file != MANIFEST and file not in written:
                    self._place.remove(_name(step), file)
            kept = 0
            for other, name in self._named():
                files = self._place.files(name)
                if MANIFEST not in files or (kept >= self.keep and other < step):
                    # Half removed is then unfinished, and never looks spoiled.
                    self._place.remove_folder(name, first=MANIFEST)
                elif other > step:
                    self._tell_later(name, step)
                elif other == step or self._whole(other, name, files):
                    kept += 1
        except OSError as error:
            _log.warning("checkpoint.tidy %s: %s", self.where, _reason(error))

    def _tell_later(self, name: str, step: int) -> None:
        """Of another history, and perhaps dear to somebody: not ours to remove."""
        if name not in self._spoiled and name not in self._told:
            self._told.add(name)
            _log.warning(
                "checkpoint.later %s/%s is later than step %d, which was written now, and a "
                "--resume would try it first; remove it, or give this job a folder of its own",
                self.where,
                name,
                step,
            )

    def _whole(self, step: int, name: str, files: Mapping[str, int]) -> bool:
        """Whether a checkpoint looks good, by its manifest and the sizes of its files."""
        if name in self._spoiled:
            return False
        try:
            self._look(step, name, files)
        except Unfit:
            return False
        return True

    # -- reading ---------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Steps with a manifest, oldest first. A quick look: only `latest` reads and verifies."""
        try:
            named = self._named()
            found = [step for step, name in named if MANIFEST in self._place.files(name)]
        except OSError as error:
            raise CheckpointError(_told(f"{self.where} cannot be read", error)) from error
        return sorted(found)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, in memory; None if there is none at all."""
        try:
            entries = self._place.entries()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(_told(f"{self.where} cannot be read", error)) from error
        unread: OSError | None = None
        for name in sorted(entries, reverse=True):
            if not name.startswith("step-"):
                continue
            try:
                return self._load(name, is_folder=entries[name])
            except Unfit as unfit:
                self._pass_over(name, str(unfit))
            except OSError as error:
                self._pass_over(name, f"it cannot be read: {_reason(error)}")
                unread = error
        if unread is not None:
            # To begin anew because a disk did not answer would throw the job away.
            raise CheckpointError(
                _told(f"no checkpoint in {self.where} could be read", unread)
            ) from unread
        return None

    @property
    def passed_over(self) -> list[tuple[str, str]]:
        """The path of each one that cannot be used, newest first, and why."""
        found = sorted(self._spoiled.items(), reverse=True)
        return [(f"{self.where}/{name}", why) for name, why in found]

    def note_passed_over(self, found: Iterable[tuple[str, str]]) -> None:
        """What another worker found when it read this folder."""
        for path, why in found:
            where, _, name = path.rpartition("/")
            if where == self.where:
                self._spoiled.setdefault(name, why)

    def _pass_over(self, name: str, why: str) -> None:
        self._spoiled[name] = why
        _log.warning("checkpoint.passed_over %s/%s: %s", self.where, name, why)

    def _load(self, name: str, *, is_folder: bool) -> Checkpoint:
        fits = _NAME.fullmatch(name)
        if not fits or not is_folder:
            raise Unfit("foreign: a checkpoint is a folder named step- and twelve digits")
        step = int(fits[1])
        manifest = self._look(step, name, self._place.files(name))
        tensors = {}
        for stem, part in manifest.parts.items():
            content = self._place.read(name, part.file, part.size)
            checksum = digest()
            checksum.update(content)
            if checksum.hexdigest() != part.checksum:
                raise Unfit(f"{part.file} does not match its checksum: corrupt")
            try:
                tensors[stem] = decode(content)
            except ValueError as error:
                raise Unfit(f"{part.file} is no safetensors file: {error}") from None
        self._spoiled.pop(name, None)
        return Checkpoint(
            step=step,
            where=f"{self.where}/{name}",
            time=manifest.time,
            size=sum(part.size for part in manifest.parts.values()),
            extra=manifest.extra,
            tensors=tensors,
        )

    def _look(self, step: int, name: str, files: Mapping[str, int]) -> Manifest:
        """The manifest, if the files that it names are there with the sizes it gives."""
        if MANIFEST not in files:
            raise Unfit(f"unfinished: it has no {MANIFEST}")
        if files[MANIFEST] > MANIFEST_MAX:
            raise Unfit(f"{MANIFEST} has {files[MANIFEST]} bytes: foreign")
        manifest = parse(self._place.read(name, MANIFEST, files[MANIFEST]))
        if manifest.step != step:
            raise Unfit(f"{MANIFEST} is of step {manifest.step}: the folder was renamed")
        for part in manifest.parts.values():
            if part.file not in files:
                raise Unfit(f"{part.file} is missing")
            if files[part.file] != part.size:
                raise Unfit(
                    f"{part.file} has {files[part.file]} bytes instead of {part.size}: truncated"
                )
        return manifest

    def _named(self) -> list[tuple[int, str]]:
        """Folders named like a checkpoint, newest first."""
        try:
            entries = self._place.entries()
        except FileNotFoundError:
            return []
        found = [(_NAME.fullmatch(name), name) for name, folder in entries.items() if folder]
        return sorted(((int(fit[1]), name) for fit, name in found if fit), reverse=True)


def _name(step: int) -> str:
    return f"step-{step:012d}"


def _free(stem: str, before: Mapping[str, int]) -> str:
    """A file name that spoils nothing: a complete checkpoint of this step stays whole to the end.

    The same step is written again when a job went on from an earlier one.
    """
    if MANIFEST not in before:
        return f"{stem}{_SUFFIX}"
    taken, number = set(before), 1
    file = f"{stem}{_SUFFIX}"
    while file in taken:
        number += 1
        file = f"{stem}.{number}{_SUFFIX}"
    return file


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _told(what: str, error: OSError) -> str:
    """What happened, why, and what to do."""
    if error.errno in _FULL:
        advice = "free some space there, or keep fewer checkpoints"
    elif error.errno == errno.EFBIG:
        advice = "raise the limit on the size of files (ulimit -f)"
    elif error.errno in _FORBIDDEN:
        advice = "make it writable for this user, or give the job another folder"
    elif error.errno == errno.EEXIST:
        advice = "a file has that name; give the job a folder"
    elif error.errno in _GONE:
        advice = "bring the folder back (is its disk mounted?), or give the job another one"
    else:
        advice = "check that the place can be reached, and that it can be written to"
    return f"{what}: {_reason(error)}; {advice}"
