"""Does a slow storage show in the step time?

    python bench/storage_latency.py [--latency 0.02] [--kind records] [--num-workers 0]

Trains on one worker from files behind an fsspec file system that takes `--latency` seconds longer
for each request, as an object store does: a range of a file is one request, and an open file reads
a block at a time. The same files without that latency are read in runs between, in turns: two jobs
side by side would fight over the cores. A step computes for `--step` seconds; told is the mean.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SAMPLES, COLUMNS, PARTITION = 20_000, 8, 512
# The last one is records by elastic_shard_generator, read by its batches().
KINDS = ("records", "jsonl", "parquet", "tar", "shards")


def write(path: Path, kind: str) -> None:
    rows = [[(index * 7 + k) % 256 for k in range(COLUMNS)] for index in range(SAMPLES)]
    if kind in ("records", "shards"):
        path.write_bytes(b"".join(struct.pack("8B", *row) for row in rows))
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    elif kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        columns = {f"c{k}": [row[k] for row in rows] for k in range(COLUMNS)}
        pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=PARTITION)
    else:
        with tarfile.open(path, "w") as tar:
            for index, row in enumerate(rows):
                info = tarfile.TarInfo(f"{index:06d}.row")
                info.size = len(row)
                tar.addfile(info, io.BytesIO(bytes(row)))


def register(latency_s: float) -> None:
    """The protocol `slow`: local files, each request for which takes a while."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.spec import AbstractBufferedFile

    def request(path: str, start: int, end: int) -> bytes:
        time.sleep(latency_s)
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(end - start)

    class File(AbstractBufferedFile):  # type: ignore[misc]
        def _fetch_range(self, start: int, end: int) -> bytes:
            return request(self.path, start, end)

    class Slow(LocalFileSystem):  # type: ignore[misc]
        protocol = "slow"

        def cat_file(self, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
            return request(self._strip_protocol(path), start, end)

        def info(self, path: str, **more: Any) -> Any:
            time.sleep(latency_s)
            return super().info(path, **more)

        def _open(self, path: str, mode: str = "rb", block_size: Any = None, **more: Any) -> File:
            return File(self, self._strip_protocol(path), mode, block_size or 1 << 16)

    fsspec.register_implementation("slow", Slow)


def row_of(sample: Any) -> list[int]:
    """One sample of any kind as a list of numbers."""
    if isinstance(sample, dict):
        sample = sample["row"] if "row" in sample else sample.values()
    return list(sample)


def opened(url: str, kind: str) -> Any:
    from edl.data import JsonLines, Parquet, Records, Tar

    if kind in ("records", "shards"):
        return Records(url, record_bytes=COLUMNS, partition_samples=PARTITION)
    if kind == "jsonl":
        return JsonLines(url, partition_bytes=PARTITION * 36)
    return Parquet(url) if kind == "parquet" else Tar(url, partition_samples=PARTITION)


def inside(options: argparse.Namespace) -> None:
    """One run: its step times, as JSON."""
    import torch

    import edl.torch as edl

    def as_batch(rows: list[Any]) -> torch.Tensor:
        return torch.tensor([row_of(row) for row in rows], dtype=torch.float32)

    register(options.latency)
    edl.init()
    model = torch.nn.Linear(COLUMNS, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01), model=model)
    source = opened(f"slow://{options.inside}", options.kind)
    loader: Iterable[Any]
    if options.kind == "shards":
        shards = edl.elastic_shard_generator(source, batch_size=64, epochs=10**6)
        loader = map(as_batch, shards.batches(source.read))
    else:
        loader = edl.DataLoader(
            source,
            batch_size=64,
            epochs=10**6,
            num_workers=options.num_workers,
            collate_fn=as_batch,
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
    parser.add_argument("--kind", choices=KINDS, default="records")
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
        write(path, options.kind)
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
