"""Does a job train on while strangers throw everything at its ports, and is nothing left of them?

    python bench/fuzz.py [--minutes 10] [--seed 1]

Starts a real job of 2 workers whose script logs every sample, finds every port that its processes
listen on, and holds hostile conversations (`tests/integration/hostile.py`) with those that are
EDL's: garbage, truncated, oversized, replayed, bit-flipped and half-proven ones, insiders that talk
nonsense, hundreds of idle connections and slow ones. All the while the job must answer and its step
must grow; afterwards its descriptors, threads and memory must be what they were, and when it is let
end, every sample must have been used once. Then a second, short job shows what strangers can do to
the listeners of the collectives, which are torch's (Gloo) and know no authentication: once a group
is built, none of their connections may succeed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import select
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from edl.client import Job, run  # noqa: E402
from edl.errors import EdlError  # noqa: E402
from edl.launch.jobs import JobFolder, find_job  # noqa: E402
from edl.types import Address  # noqa: E402
from edl.wire.hello import MAGIC  # noqa: E402
from tests.integration.hostile import (  # noqa: E402
    KINDS,
    Target,
    greeting_of,
    opened,
    record,
    speak,
)
from tests.integration.judge import read_journal  # noqa: E402

SCRIPT = str(ROOT / "tests" / "integration" / "scripts" / "journal.py")
IDLE, SLOW = 400, 40
SAMPLES = 1003
# What a process may have more than before: the odd buffer, a page of the allocator.
SPARE_DESCRIPTORS, SPARE_THREADS, SPARE_BYTES = 4, 2, 48 << 20
SETTLE_S = 8.0


@dataclass(frozen=True, slots=True)
class Means:
    """What a process holds."""

    descriptors: int
    threads: int
    memory: int

    @staticmethod
    def of(process: psutil.Process) -> Means:
        return Means(process.num_fds(), process.num_threads(), process.memory_info().rss)


class Siege:
    """One job and those before its gates."""

    def __init__(self, home: Path, seed: int, *, name: str) -> None:
        self.log = home / f"log-{name}"
        self.log.mkdir()
        self.end = home / f"end-{name}"
        # A pause stands for the accelerator, so that the cores are not all taken by the training.
        pace = ["--pause", "0.05", "--epochs", "1000000", "--until", str(self.end)]
        self.job: Job = run(SCRIPT, "--log", str(self.log), *pace, workers=2, name=name)
        self.folder: JobFolder = find_job(name)
        self.dice = random.Random(seed)
        self.held: Counter[str] = Counter()
        self.over = threading.Event()
        deadline = time.monotonic() + 120.0
        while self.job.status().step < 5:
            if time.monotonic() > deadline:
                raise SystemExit("the job has not begun to train within 120 s")
            time.sleep(0.5)
        launcher = psutil.Process(self.folder.info().pid)
        self.processes = [launcher, *launcher.children(recursive=True)]

    def ports(self) -> tuple[list[Address], list[Address]]:
        """EDL's, which greet whoever connects, and the others."""
        ours, others = [], []
        for process in self.processes:
            for each in process.net_connections(kind="tcp"):
                if each.status == psutil.CONN_LISTEN:
                    address = Address(each.laddr.ip, each.laddr.port)
                    found = ours if greeting_of(address).startswith(MAGIC) else others
                    found.append(address)
        return ours, others

    def targets(self, ports: list[Address]) -> list[Target]:
        name, secret = self.folder.name, self.folder.secret()
        return [
            Target(address=p, job=name, secret=secret, recording=record(p, name, secret))
            for p in ports
        ]

    # -- the attackers, each in a thread ---------------------------------------------------

    def converse(self, targets: list[Target], seed: int) -> None:
        dice = random.Random(seed)
        while not self.over.is_set():
            kind, target = dice.choice(KINDS), dice.choice(targets)
            try:
                speak(kind, target, dice.getrandbits(32), hear_out=dice.random() < 0.7)
                self.held[kind.__name__] += 1
            except OSError as error:
                self.held[f"not connected: {error}"] += 1
            # As fast as it can, an attacker on the same two cores measures only the scheduler.
            self.over.wait(0.002)

    def idle(self, targets: list[Target]) -> None:
        """Hundreds at a time, to each port, held for a while and dropped."""
        while not self.over.is_set():
            for target in targets:
                if self.over.is_set():
                    return
                socks: list[socket.socket] = []
                with contextlib.suppress(OSError):
                    socks.extend(opened(target.address) for _ in range(IDLE))
                self.held["idle"] += len(socks)
                self.over.wait(3.0)
                for sock in socks:
                    sock.close()

    def slow(self, targets: list[Target]) -> None:
        """A byte now and then, on many connections at once."""
        while not self.over.is_set():
            target = self.dice.choice(targets)
            with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
                socks = [stack.enter_context(opened(target.address)) for _ in range(SLOW)]
                self.held["slow"] += len(socks)
                for at in range(50):
                    for sock in socks:
                        sock.sendall(target.recording[at : at + 1])
                    if self.over.wait(0.4):
                        return

    # -- the job, meanwhile ----------------------------------------------------------------

    def watch(self, seconds: float) -> tuple[list[float], list[float]]:
        """Times of one status request, and steps a second, until the time is over."""
        answers, rates = [], []
        deadline = time.monotonic() + seconds
        last, last_at = self.job.status().step, time.monotonic()
        while time.monotonic() < deadline:
            self.over.wait(min(1.0, max(0.0, deadline - time.monotonic())))
            began = time.monotonic()
            step = self.job.status().step
            now = time.monotonic()
            answers.append(now - began)
            if now - last_at >= 5.0:
                if step <= last:
                    raise SystemExit(f"the job has not left step {step} for {now - last_at:.0f} s")
                rates.append((step - last) / (now - last_at))
                last, last_at = step, now
        return answers, rates

    def means(self) -> dict[int, Means]:
        return {each.pid: Means.of(each) for each in self.processes}

    def finish(self) -> str:
        self.end.touch()
        return self.job.wait(60.0).state


def besiege(siege: Siege, minutes: float, seed: int) -> list[str]:
    """What is wrong with the job afterwards; nothing, one hopes."""
    ours, others = siege.ports()
    print(f"EDL's ports: {', '.join(map(str, ours))}; of the collectives: {len(others)} more")
    if len(ours) != 3:
        return [f"{len(ours)} ports greet as EDL's do; expected the launcher's and 2 workers'"]
    targets = siege.targets(ours)
    answers, rates = siege.watch(20.0)
    before = siege.means()
    print(f"in peace: {figures(answers, rates)}", flush=True)
    attackers = [
        *(threading.Thread(target=siege.converse, args=(targets, seed + n)) for n in range(4)),
        threading.Thread(target=siege.idle, args=(targets,)),
        threading.Thread(target=siege.slow, args=(targets,)),
    ]
    for thread in attackers:
        thread.start()
    try:
        answers, rates = siege.watch(minutes * 60)
    finally:
        siege.over.set()
        for thread in attackers:
            thread.join()
    total = sum(siege.held.values())
    held = ", ".join(f"{name} {count}" for name, count in sorted(siege.held.items()))
    print(f"besieged: {figures(answers, rates)}")
    print(f"{total} hostile connections in {minutes:g} min: {held}", flush=True)
    time.sleep(SETTLE_S)  # until the last unproven connection's time is over
    return [line for pid, was in before.items() for line in compare(pid, was, siege)]


def figures(answers: list[float], rates: list[float]) -> str:
    return (
        f"{statistics.median(rates):.1f} steps/s (lowest {min(rates):.1f}), status in "
        f"{statistics.median(answers) * 1e3:.0f} ms (longest {max(answers) * 1e3:.0f} ms)"
    )


def compare(pid: int, was: Means, siege: Siege) -> list[str]:
    try:
        now = Means.of(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return [f"process {pid} is gone"]
    print(
        f"process {pid}: descriptors {was.descriptors} -> {now.descriptors}, threads "
        f"{was.threads} -> {now.threads}, memory {was.memory >> 20} -> {now.memory >> 20} MB"
    )
    grown = []
    if now.descriptors > was.descriptors + SPARE_DESCRIPTORS:
        grown.append(f"process {pid} has {now.descriptors} descriptors, before {was.descriptors}")
    if now.threads > was.threads + SPARE_THREADS:
        grown.append(f"process {pid} has {now.threads} threads, before {was.threads}")
    if now.memory > was.memory + SPARE_BYTES:
        grown.append(f"process {pid} has {now.memory >> 20} MB, before {was.memory >> 20}")
    return grown


def judge(siege: Siege) -> list[str]:
    """The job's end and its samples."""
    state = siege.finish()
    wrong = [] if state == "finished" else [f"the job ended as {state!r}"]
    used = read_journal(siege.log).used()
    times = Counter(counts[sample] for counts in used.values() for sample in range(SAMPLES))
    otherwise = sum(times.values()) - times[1]
    print(
        f"the job: {state}, {len(used)} epochs; samples used once: {times[1]}, "
        f"otherwise: {otherwise}"
    )
    return [*wrong, f"{otherwise} samples were not used once"] if otherwise else wrong


def accepted_within(socks: list[socket.socket], seconds: float) -> list[socket.socket]:
    """Those whose connection is there by then."""
    time.sleep(seconds)  # a refusal would be silent, so there is nothing else to wait for
    poll = select.poll()
    known = {sock.fileno(): sock for sock in socks}
    for sock in socks:
        poll.register(sock, select.POLLOUT)
    ready = poll.poll(0)
    return [known[number] for number, events in ready if not events & select.POLLERR]


def disturb_gloo(siege: Siege, seed: int) -> list[str]:
    """What the collectives' listeners do with strangers, one kind after another."""
    dice = random.Random(seed)
    _, others = siege.ports()
    trials = {
        "200 idle connections": lambda sock: None,
        "60 bytes of garbage": lambda sock: sock.sendall(dice.randbytes(60)),
        "1 MB of garbage": lambda sock: sock.sendall(dice.randbytes(1 << 20)),
        "a million zeros": lambda sock: sock.sendall(bytes(1_000_000)),
    }
    before = siege.means()
    accepted = 0
    for name, act in trials.items():
        socks: list[socket.socket] = []
        for address in others:
            for _ in range(200 if "idle" in name else 20):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex((address.host, address.port))
                socks.append(sock)
        connected = accepted_within(socks, 2.0)
        accepted += len(connected)
        for sock in connected:
            with contextlib.suppress(OSError):
                act(sock)
        try:
            _, rates = siege.watch(11.0)
            said = f"trains on, {statistics.median(rates):.1f} steps/s"
        except (EdlError, SystemExit) as error:
            said = f"the job is harmed: {error}"
        held = sum(Means.of(each).descriptors for each in siege.processes if each.is_running())
        was = sum(each.descriptors for each in before.values())
        print(
            f"Gloo's listeners, {name}: {len(connected)} of {len(socks)} connections accepted; "
            f"{said}; descriptors {was} -> {held}"
        )
        for sock in socks:
            sock.close()
    with contextlib.suppress(EdlError):
        print(f"that job: {siege.finish()}")
    return [f"{accepted} strangers were connected to Gloo"] if accepted else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-gloo", action="store_true", help="leave the second job out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        siege = Siege(Path(folder), options.seed, name="fuzzed")
        try:
            wrong = besiege(siege, options.minutes, options.seed)
            wrong += judge(siege)
        finally:
            siege.over.set()
            if siege.job.running():
                siege.job.stop(force=True)
        if not options.no_gloo:
            second = Siege(Path(folder), options.seed, name="gloo")
            try:
                wrong += disturb_gloo(second, options.seed)
            finally:
                if second.job.running():
                    second.job.stop(force=True)
    for line in wrong:
        print(f"WRONG: {line}")
    print("nothing crashed, nothing leaked, the job ended well" if not wrong else "failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
