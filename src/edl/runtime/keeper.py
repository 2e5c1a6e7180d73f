"""A job's checkpoints, as its session knows them: one worker writes, and a new job goes on.

Owns: where they go (EDL_CHECKPOINT, set by `edl run --checkpoint`) and what is in one beside the
framework's tensors: step and ledger, so that a job that goes on uses each sample once. Holds: only
rank 0 writes, and only steps that everybody has committed; only the source of the first generation
reads, and everybody else takes the state from it as ever. A worker that no launcher supervises
writes only while the store confirms that it is a member: otherwise the job may have been started
again without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from edl.config import Settings
from edl.errors import CheckpointError, UsageError
from edl.protocol.progress import Progress
from edl.runtime.checkpoint import Checkpoint, CheckpointFolder
from edl.runtime.clock import wall
from edl.runtime.framework import Framework
from edl.runtime.saver import Copied, Saver
from edl.runtime.standing import note_failed, note_resumed, note_saved, read_noted

__all__ = ["Keeper", "keeper_of"]

# A checkpoint that is being written when the job ends gets so long to be finished.
CLOSE_S = 60.0


class Keeper:
    """One worker's part in the job's checkpoints."""

    def __init__(
        self,
        folder: CheckpointFolder,
        framework: Framework,
        settings: Settings,
        *,
        resume: bool,
        saved: int | None = None,
        job_folder: Path | None = None,
    ) -> None:
        """`job_folder`: where to tell how it stands; None: this machine has none of this job.

        `saved`: the job is started again by itself, and had a checkpoint of this step.
        """
        self._folder = folder
        self._framework = framework
        self._settings = settings
        self._resume = resume
        self._saved = saved
        self._job_folder = job_folder
        self._resumed: int | None = None
        self._saver: Saver | None = None

    def begin(self, progress: Progress) -> None:
        """On the first generation's source, before anybody takes its state."""
        found: Checkpoint | None = None
        if self._resume:
            # Before the folder is made: one that has vanished may be a disk not mounted now.
            found = self._folder.latest()
            if found is None:
                self._check_that_none_was_lost()
        self._folder.prepare()
        if not self._resume and (steps := self._folder.steps()):
            raise UsageError(
                f"{self._folder.where} holds checkpoints, the last one of step {steps[-1]}; go on "
                "from it with --resume, or give another --checkpoint folder"
            )
        if found is not None:
            # First, for a script that this does not fit has done no step.
            self._framework.install(found.tensors, found.extra["framework"])
            progress.adopt(found.extra["progress"])
            # What those had in hand who are not here goes to those who are.
            progress.enter(progress.generation)
            self._resumed = found.step
            if self._job_folder is not None:
                note_resumed(
                    self._job_folder,
                    found.step,
                    found.time,
                    progress.me,
                    passed_over=self._folder.passed_over,
                )

    def _check_that_none_was_lost(self) -> None:
        """To begin anew where work was saved would throw it away."""
        if self._saved is not None:
            raise CheckpointError(
                f"{self._folder.where} has no usable checkpoint, though step {self._saved} was "
                "saved there; bring it back (a disk that is not mounted?) and go on with --resume"
            )
        if steps := self._folder.steps():
            raise CheckpointError(
                f"none of the {len(steps)} checkpoints in {self._folder.where} can be used (the "
                "reasons are above); give another --checkpoint folder, or remove them to begin anew"
            )

    def wants(self, step: int, *, rank: int) -> bool:
        """Whether this worker will copy its state when so many steps are committed."""
        saver = self._saver_of(rank)
        return saver is not None and saver.wants(step)

    def boundary(self, progress: Progress, *, rank: int, take: bool = True) -> None:
        """A step is committed here. `take`: a checkpoint that is due may be taken now; otherwise
        it waits for a boundary at which all replicas are compared."""
        saver = self._saver_of(rank)
        if saver is not None:
            saver.boundary(progress.step, lambda: self._copy(progress), take=take)

    def _saver_of(self, rank: int) -> Saver | None:
        if rank != 0:
            # Another one writes, perhaps since the last change of generation.
            self._saver = None
        elif self._saver is None:
            noted = read_noted(self._job_folder) if self._job_folder is not None else None
            if noted is not None:
                # Another worker may have read the folder when the job resumed.
                self._folder.note_passed_over(noted.passed_over_why)
            self._saver = Saver(
                self._folder,
                every_steps=self._settings.checkpoint_steps,
                every_s=self._settings.checkpoint_s,
                resumed=self._resumed,
                on_done=self._note,
            )
        return self._saver

    @contextmanager
    def stopping(self, progress: Progress) -> Iterator[None]:
        """Everybody leaves after this step, before the script's end: keep what was reached."""
        if self._saver is not None:
            self._saver.last(progress.step, lambda: self._copy(progress))
        try:
            yield
        finally:
            self.close()

    def _copy(self, progress: Progress) -> Copied:
        tensors, skeleton = self._framework.capture()
        return tensors, {"progress": progress.snapshot(), "framework": skeleton}

    def _note(self, step: int, error: str) -> None:
        if self._job_folder is None:
            return
        if error:
            note_failed(self._job_folder, step, error)
        else:
            note_saved(self._job_folder, step, wall())

    def end(self) -> None:
        """The closing record proves the last step: what was copied of it may be written."""
        if self._saver is not None:
            self._saver.stable()
        self.close()

    def close(self) -> None:
        """Give what is being written its time."""
        if self._saver is not None:
            self._saver.close(CLOSE_S)


def keeper_of(
    framework: Framework,
    settings: Settings,
    environment: Mapping[str, str] | None = None,
    *,
    confirm: Callable[[], None] = lambda: None,
) -> Keeper | None:
    """By the environment; None: this job writes no checkpoints. `confirm`: `CheckpointFolder`."""
    known = os.environ if environment is None else environment
    url = known.get("EDL_CHECKPOINT", "")
    if not url:
        return None
    folder = CheckpointFolder(url, keep=max(1, settings.checkpoint_keep), confirm=confirm)
    job, saved = known.get("EDL_JOB_DIR", ""), known.get("EDL_RESUME_SAVED", "")
    return Keeper(
        folder,
        framework,
        settings,
        resume=known.get("EDL_RESUME", "") == "1",
        saved=int(saved) if saved else None,
        job_folder=Path(job) if job else None,
    )
