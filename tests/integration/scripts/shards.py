"""Trains on partitions of a file, read shard by shard, and logs as the journal script does."""

import argparse
import os
import struct
import time
from pathlib import Path

import journal  # type: ignore[import-not-found]
import torch

import edl.torch as edl

RECORD = struct.Struct("<ifffff")


def write_file(path: Path, records: int) -> None:
    values = torch.randn(records, 5, generator=torch.Generator().manual_seed(3)).tolist()
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(b"".join(RECORD.pack(i, *row) for i, row in enumerate(values)))
    part.replace(path)


def read(shard: edl.Shard) -> list[tuple[int, list[float]]]:
    with open(shard.path, "rb") as file:
        file.seek(shard.offset * RECORD.size)
        raw = file.read(shard.length * RECORD.size)
    return [(row[0], list(row[1:])) for row in RECORD.iter_unpack(raw)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--until", required=True)
    options = parser.parse_args()
    edl.init()
    samples, length = 1003, 40
    file = Path(options.log, "records.bin")
    if not file.exists():
        write_file(file, samples)
    partitions = [
        (str(file), start, min(length, samples - start)) for start in range(0, samples, length)
    ]
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = edl.Optimizer(torch.optim.Adam(model.parameters()), model=model)
    shards = edl.elastic_shard_generator(partitions, batch_size=50, epochs=10_000, seed=1)
    log = journal.Log(options.log)
    for batch in shards.batches(read):
        rows = edl.local_batch_size()
        values = torch.tensor([row for _, row in batch])
        loss = (model(values[:, :4]) - values[:, 4:]).square().mean()
        log.intent([index for index, _ in batch][:rows], loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        log.end_batch(model, optimizer)
        if edl.step() % 21 == 0 and edl.all_reduce(float(Path(options.until).exists()), "max"):
            break
    edl.shutdown()


if __name__ == "__main__":
    main()
