"""Does a slow storage show in the step time?

    python bench/storage_latency.py [--latency 0.02] [--kind records] [--num-workers 0]

Trains on one worker from files behind an fsspec file system that takes `--latency` seconds longer
for each request, and from the same files without, block by block in turns: two jobs side by side
would fight over the cores, so each block is a run of its own. A step computes for `--step` seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def inside(options: argparse.Namespace) -> None:
    """One run: median step time, as JSON."""
    import fsspec
    import torch
    from fsspec.implementations.local import LocalFileSystem

    import edl.torch as edl
    from edl.data import JsonLines, Records

    class Slow(LocalFileSystem):  # type: ignore[misc]
        """Local files, each request of which takes a while."""

        protocol = "slow"

        def cat_file(self, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
            time.sleep(options.latency)
            return bytes(super().cat_file(path, start=start, end=end, **more))

    fsspec.register_implementation("slow", Slow)
    edl.init()
    url = f"slow://{options.inside}"
    data: Any
    if options.kind == "records":
        data = Records(url, record_bytes=8, partition_samples=512, decode=list)
    else:
        data = JsonLines(url, partition_bytes=4096)
    model = torch.nn.Linear(8, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01), model=model)
    loader = edl.DataLoader(
        data,
        batch_size=64,
        epochs=10**6,
        num_workers=options.num_workers,
        collate_fn=lambda rows: torch.tensor(rows, dtype=torch.float32),
    )
    times: list[float] = []
    last = time.perf_counter()
    for rows in loader:
        loss = model(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(options.step)
        edl.notify_batch_end()
        times.append(time.perf_counter() - last)
        last = time.perf_counter()
        if len(times) == options.steps:
            break
    print(json.dumps(times[20:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--kind", choices=["records", "jsonl"], default="records")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--step", type=float, default=0.02, help="seconds of compute")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, f"samples.{options.kind}")
        rows = [[(index * 7 + k) % 256 for k in range(8)] for index in range(20_000)]
        if options.kind == "records":
            path.write_bytes(b"".join(struct.pack("8B", *row) for row in rows))
        else:
            path.write_text("\n".join(json.dumps(row) for row in rows))
        found: dict[float, list[float]] = {0.0: [], options.latency: []}
        for _ in range(options.rounds):
            for latency in found:
                command = [sys.executable, __file__, "--inside", str(path)]
                for name in ("kind", "num_workers", "steps", "step"):
                    command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
                command += ["--latency", str(latency)]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found[latency] += json.loads(out.splitlines()[-1])
    none, slow = (statistics.fmean(times) * 1e3 for times in found.values())
    print(
        f"{options.kind}, {options.num_workers} loader processes: mean step {none:.2f} ms without "
        f"and {slow:.2f} ms with {options.latency * 1e3:.0f} ms a request: ratio {slow / none:.3f}"
    )


if __name__ == "__main__":
    main()
