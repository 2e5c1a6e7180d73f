"""One real job of four workers under a random mix of everything that can befall it.

SIGKILL, SIGSTOP (with or without waking up in time), SIGTERM, scale-outs and scale-ins, each at a
random moment and to any worker, the leader too; at least one worker is left in peace. Judged from
the script's own log: exactly once in every epoch, the batch constant, no step missing, and the
workers that finish bit-equal. The seed decides what happens and when, the machine what comes of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from edl.client import Job, run
from edl.errors import EdlError
from tests.integration.judge import read_journal

__all__ = ["Report", "chaos"]

SAMPLES, BATCH = 400, 40
SCRIPT = Path(__file__).parent / "scripts" / "journal.py"
OPTIONS = ("--model", "batchnorm", "--optimizer", "adam")
SILENCE_S = 2.0
KINDS = ("kill", "kill", "freeze", "doze", "term", "out", "out", "in")


@dataclass
class Report:
    """What happened in one run."""

    seed: int
    steps: int = 0
    epochs: int = 0
    ended: int = 0  # workers that finished the job
    happened: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(self.happened.items()))
        return (
            f"seed {self.seed}: {said}; {self.steps} steps, {self.epochs} epochs, {self.ended} "
            f"workers at the end, {self.seconds:.0f} s"
        )


class _Storm:
    """The trouble of one run."""

    def __init__(self, job: Job, rng: random.Random, report: Report) -> None:
        self.job = job
        self.rng = rng
        self.report = report
        self.frozen: dict[int, threading.Timer] = {}
        self.requests: list[threading.Thread] = []
        self._hurt: set[int] = set()  # gone, or about to go

    def strike(self) -> None:
        kind = self.rng.choice(KINDS)
        # A frozen leader cannot say who is there; then there is one blow less.
        with contextlib.suppress(EdlError):
            if getattr(self, f"_{kind}")():
                self.report.happened[kind] += 1

    def _victim(self) -> int:
        """Any worker, as long as another one is left in peace; 0: there is none."""
        pids = [w.pid for w in self.job.status().workers if w.state == "training"]
        whole = [pid for pid in pids if pid not in self._hurt]
        return self.rng.choice(whole) if len(whole) > 1 else 0

    def _signal(self, number: signal.Signals) -> int:
        pid = self._victim()
        if pid:
            self._hurt.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    def _kill(self) -> int:
        return self._signal(signal.SIGKILL)

    def _term(self) -> int:
        return self._signal(signal.SIGTERM)

    def _freeze(self) -> int:
        return self._stop(SILENCE_S * self.rng.uniform(1.5, 2.5))

    def _doze(self) -> int:
        return self._stop(SILENCE_S * self.rng.uniform(0.1, 0.4))

    def _stop(self, seconds: float) -> int:
        pid = self._signal(signal.SIGSTOP)
        if pid:
            timer = threading.Timer(seconds, self.wake, (pid,))
            self.frozen[pid] = timer
            timer.start()
        return pid

    def wake(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _out(self) -> int:
        return self._ask(lambda: self.job.scale_out(1))

    def _in(self) -> int:
        workers = self.job.status().workers
        pid = self._victim()
        if pid:
            self._hurt.add(pid)
            chosen = next(w.id for w in workers if w.pid == pid)
            self._ask(lambda: self.job.scale_in([chosen]))
        return pid

    def _ask(self, request: object) -> int:
        def ask() -> None:
            # Whoever was to join or leave may be dead by now; that is for the job to sort out.
            with contextlib.suppress(EdlError):
                request()  # type: ignore[operator]

        thread = threading.Thread(target=ask, name="chaos-request", daemon=True)
        thread.start()
        self.requests.append(thread)
        return 1

    def calm(self) -> None:
        """Everybody that still sleeps is woken, every request has its answer."""
        for pid, timer in self.frozen.items():
            timer.cancel()
            self.wake(pid)
        for thread in self.requests:
            thread.join(90)
            assert not thread.is_alive(), "a request got no answer"


def _await_training(job: Job) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(EdlError):
            if job.status().step >= 3:
                return
        time.sleep(0.1)
    raise AssertionError("training did not begin")


def chaos(
    seed: int,
    folder: Path,
    *,
    blows: int = 8,
    script: str = str(SCRIPT),
    options: tuple[str, ...] = OPTIONS,
) -> Report:
    """Run one job through the storm; AssertionError if anything is lost.

    Another `script` must log what it does in the same way, and take the same options but these.
    """
    began = time.monotonic()
    rng, report = random.Random(seed), Report(seed=seed)
    log, end = folder / "log", folder / "end"
    log.mkdir(parents=True)
    job = run(
        script,
        *("--log", str(log), "--samples", str(SAMPLES), "--batch", str(BATCH)),
        *("--epochs", "1000000", "--pause", "0.08", "--until", str(end), *options),
        workers=4,
        env={"EDL_SILENCE_S": str(SILENCE_S), "EDL_REQUEST_TIMEOUT_S": "60"},
        timeout_s=120.0,
    )
    storm = _Storm(job, rng, report)
    try:
        _await_training(job)
        for _ in range(blows):
            time.sleep(rng.uniform(0.1, 1.5))
            storm.strike()
        storm.calm()
        end.touch()
        result = job.wait(120)
    finally:
        if job.running():
            job.stop(force=True)
    assert result.state == "finished", f"seed {seed}: {result.state}, {result.why}"
    journal = read_journal(log)
    report.steps, report.epochs = result.steps, len(journal.used())
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(report.epochs)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
    report.ended = journal.check_end(steps=max(journal.counted()) + 1)
    report.seconds = time.monotonic() - began
    return report
