"""Where do a step's microseconds beyond the user's compute go, and is a control message among them?

    python bench/step_cost.py [--workers 2] [--steps 300] [--trace FILE]

A job with a small model, so that what EDL adds shows. Every function of EDL that the training
thread passes in a step is timed; every control message is noted with the thread that handled it.
Then the agent's thread is put to sleep most of the time, in every second block: if a step waited
for any control message, it would wait for that thread. --trace writes all of it in the format of
chrome://tracing and Perfetto.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAP_S = 0.25
WARM, BLOCK = 20, 20  # steps


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--blocks", type=int, default=20, help="with the agent awake and asleep")
    parser.add_argument("--trace", default="", help="write a trace of the steps here")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


class Spans:
    """Who did what, from when to when."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float, float]] = []
        self.on = False

    def watch(self, owner: Any, name: str, shown: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **named: Any) -> Any:
            if not self.on:
                return inner(*args, **named)
            began = time.perf_counter()
            try:
                return inner(*args, **named)
            finally:
                thread = threading.current_thread().name
                self.rows.append((thread, shown, began, time.perf_counter()))

        setattr(owner, name, timed)


def watch_everything(spans: Spans) -> None:
    from edl.collective import gloo, work
    from edl.runtime import session
    from edl.torch import bucket, dataset, reducer
    from edl.wire import hub

    for owner, name, shown in (
        (session.Session, "begin_step", "begin the step"),
        (session.Session, "_launch", ". launch the record"),
        (dataset.Loader, "_fetch", "fetch the batch"),
        (reducer.Reducer, "_on_gradient", "a gradient is there (in backward)"),
        (reducer.Reducer, "_on_backward_end", "backward is over"),
        (work.Rows, "result", ". wait for the record"),
        (bucket.Bucket, "fill", ". weigh into the bucket"),
        (gloo.GlooGroup, "all_reduce", ". launch the reduction"),
        (work.Work, "wait", ". wait for a collective"),
        (bucket.Bucket, "spread", ". hand gradients out"),
        (session.Session, "before_update", "before the update"),
        (session.Session, "end_step", "commit the step"),
        (hub.Hub, "send", "control: send"),
        (hub.Hub, "_on_readable", "control: receive"),
    ):
        spans.watch(owner, name, shown)


class Nap:
    """Puts the agent's thread to sleep, again and again, until it is told to let it be."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._asleep = threading.Event()
        self.name = "awake"

    def turn(self, *, asleep: bool) -> None:
        self.name = "asleep" if asleep else "awake"
        self._asleep.clear()
        if asleep:
            self._post(self._sleep)
            self._asleep.wait()

    def _sleep(self) -> None:
        if self.name == "asleep":
            self._asleep.set()
            time.sleep(NAP_S)
            self._post(self._sleep)


def inside(options: argparse.Namespace) -> None:
    import torch
    from torch import nn

    import edl.torch as edl

    spans = Spans()
    watch_everything(spans)
    edl.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 10))
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model=model)
    total = options.steps + 2 * BLOCK * options.blocks + 40
    data = torch.utils.data.TensorDataset(torch.randn(64, 256), torch.randint(0, 10, (64,)))
    agent = edl._here().session.agent
    assert agent is not None
    nap = Nap(agent._hub.post)
    durations: dict[str, list[float]] = defaultdict(list)
    began = time.perf_counter()
    for number, (x, y) in enumerate(edl.DataLoader(data, batch_size=32, epochs=total)):
        phase = number - options.steps - WARM
        spans.on = WARM <= number < options.steps + WARM
        if phase >= 0 and phase % BLOCK == 0:
            nap.turn(asleep=bool(phase // BLOCK % 2))
            if phase // BLOCK >= 2 * options.blocks:
                break
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        edl.notify_batch_end()
        ended = time.perf_counter()
        if spans.on:
            durations["whole"].append(ended - began)
        elif phase >= 0 and phase % BLOCK:
            durations[nap.name].append(ended - began)
        began = ended
    if edl.rank() == 0:
        Path(options.inside).write_text(json.dumps({"rows": spans.rows, **durations}))
    edl.shutdown()


def tell(options: argparse.Namespace, found: dict[str, Any]) -> None:
    steps = len(found["whole"])
    print(f"{options.workers} workers, {steps} steps; a whole step (small model) takes "
          f"{statistics.median(found['whole']) * 1e6:.0f} us (median)")  # fmt: skip
    sums: dict[str, float] = defaultdict(float)
    times: dict[str, int] = defaultdict(int)
    strangers = []
    control = 0
    for thread, name, began, ended in found["rows"]:
        if name.startswith("control"):
            control += 1
            if thread == "MainThread":
                strangers.append(name)
            continue
        sums[name] += ended - began
        times[name] += 1
    print(f"{'on the training thread':38} {'calls/step':>10} {'us/step':>8}")
    for name in sums:
        print(f"{name:38} {times[name] / steps:10.1f} {sums[name] / steps * 1e6:8.0f}")
    print("(a line with a dot is part of the line before it or of backward)")
    print(f"control messages handled meanwhile: {control}, on the training thread: "
          f"{len(strangers)}")  # fmt: skip
    awake, asleep = (statistics.median(found[key]) * 1e6 for key in ("awake", "asleep"))
    print(f"a step with the agent's thread awake {awake:.0f} us, asleep for {NAP_S * 1e3:.0f} ms "
          f"at a time {asleep:.0f} us: ratio {asleep / awake:.2f}")  # fmt: skip


def write_trace(path: Path, rows: list[tuple[str, str, float, float]]) -> None:
    threads = sorted({row[0] for row in rows})
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": thread}}
        for i, thread in enumerate(threads)
    ]
    events += [
        {"ph": "X", "name": name.strip(". "), "pid": 1, "tid": threads.index(thread),
         "ts": began * 1e6, "dur": (ended - began) * 1e6}
        for thread, name, began, ended in rows
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))


def main() -> int:
    options = parse()
    if options.inside:
        inside(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.json")
        command = [
            *(sys.executable, "-m", "edl.cli.main", "run", "-n", str(options.workers)),
            *(str(Path(__file__)), *sys.argv[1:], "--inside", str(rows)),
        ]
        environment = {**os.environ, "EDL_HOME": f"{folder}/home"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode or not rows.exists():
            print(done.stdout + done.stderr)
            return 1
        found = json.loads(rows.read_text())
    tell(options, found)
    if options.trace:
        write_trace(Path(options.trace), found["rows"])
        print(f"trace: {options.trace}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
