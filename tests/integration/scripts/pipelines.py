"""Trains by elastic_shard_generator, in each way that it can be used, and logs what it used.

The dataset is the numbers from 0 on, as records of a file.
"""

import argparse
import os
import queue
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import journal  # type: ignore[import-not-found]
import torch

import edl.torch as edl

SAMPLES, BATCH, OWN_BATCH = 203, 10, 4


def read(shard: Any) -> list[int]:
    with open(shard.path, "rb") as file:
        file.seek(shard.offset * 4)
        return [row[0] for row in struct.iter_unpack("<i", file.read(shard.length * 4))]


def ahead(source: Iterable[Any], depth: int) -> Iterator[Any]:
    """What a pipeline with a thread of its own does: it runs ahead of whoever iterates."""
    items: queue.Queue[Any] = queue.Queue(depth)
    end = object()

    def run() -> None:
        for item in source:
            items.put(item)
        items.put(end)

    threading.Thread(target=run, daemon=True).start()
    while (item := items.get()) is not end:
        yield item


class Samples(torch.utils.data.IterableDataset[int]):
    def __init__(self, shards: Any) -> None:
        self.shards = shards

    def __iter__(self) -> Iterator[int]:
        for shard in self.shards():
            yield from read(shard)


def batched(source: Iterable[int], size: int) -> Iterator[list[int]]:
    rows: list[int] = []
    for row in source:
        rows.append(row)
        if len(rows) == size:
            yield rows
            rows = []
    if rows:
        yield rows


def batches(shards: Any, way: str) -> Iterator[list[int]]:
    """This worker's batches, by one of the ways."""
    samples = Samples(shards)
    if way == "read":
        return iter(shards.batches(read))
    if way == "thread":
        return iter(shards.batches(ahead(samples, 16)))
    if way == "torch":
        return iter(shards.batches(torch.utils.data.DataLoader(samples, batch_size=None)))
    if way == "shards":
        return step_by_step(shards)
    if way == "own-torch":
        own = torch.utils.data.DataLoader(samples, batch_size=OWN_BATCH, collate_fn=list)
        return iter(own)
    if way == "own-thread":
        return ahead(batched(samples, OWN_BATCH), 3)
    if way == "tensorflow":
        return iter(shards.batches(of_tensorflow(shards).prefetch(16).as_numpy_iterator()))
    if way == "own-tensorflow":
        batches = of_tensorflow(shards).batch(OWN_BATCH).prefetch(3).as_numpy_iterator()
        return (rows.tolist() for rows in batches)
    raise ValueError(way)


def of_tensorflow(shards: Any) -> Any:
    import tensorflow

    numbers = [tensorflow.TensorSpec((), tensorflow.int64)] * 4
    signature = (tensorflow.TensorSpec((), tensorflow.string), *numbers)

    def samples(path: Any, offset: Any, length: Any, epoch: Any, index: Any) -> Any:
        start, size = (tensorflow.cast(4 * part, tensorflow.int32) for part in (offset, length))
        raw = tensorflow.strings.substr(tensorflow.io.read_file(path), start, size)
        rows = tensorflow.io.decode_raw(raw, tensorflow.int32)
        return tensorflow.data.Dataset.from_tensor_slices(rows)

    made = tensorflow.data.Dataset.from_generator(shards, output_signature=signature)
    return made.flat_map(samples)


def step_by_step(shards: Any) -> Iterator[list[int]]:
    rows: list[int] = []
    for shard in shards:
        rows += read(shard)
        if len(rows) >= edl.local_batch_size():
            yield rows
            rows = []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--until", required=True)
    parser.add_argument("--way", required=True)
    parser.add_argument("--epochs", action="store_true", help="one loop is one epoch")
    parser.add_argument("--pause", type=float, default=0.03)
    options = parser.parse_args()
    edl.init()
    file = Path(options.log, "records.bin")
    if not file.exists():
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(b"".join(struct.pack("<i", index) for index in range(SAMPLES)))
        part.replace(file)
    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    optimizer = edl.Optimizer(torch.optim.Adam(model.parameters()), model=model)
    own = options.way.startswith("own")
    shards = edl.elastic_shard_generator(
        str(file),
        record_bytes=4,
        partition_samples=16,
        batch_size=None if own else BATCH,
        epochs=None if options.epochs else 100_000,
        seed=3,
    )
    log = journal.Log(options.log)
    if options.epochs:
        for _ in edl.epochs(100_000):
            train(batches(shards, options.way), model, optimizer, log, options)
            if edl.all_reduce(float(Path(options.until).exists()), "max"):
                break
    else:
        train(batches(shards, options.way), model, optimizer, log, options)
    edl.shutdown()
    log.end(model, optimizer)


def train(
    found: Iterator[list[int]],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    log: Any,
    options: argparse.Namespace,
) -> None:
    own = options.way.startswith("own")
    for batch in found:
        rows = edl.local_batch_size()
        indexes = torch.tensor(batch)
        loss = (model(indexes[:, None].float() / SAMPLES) - 1.0).square().mean()
        log.intent(indexes[:rows].tolist(), loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(options.pause)
        epoch = edl.epoch()
        log.end_batch(model, optimizer, samples=len(batch) if own else None)
        ended = edl.epoch() != epoch if own else edl.step() % 21 == 0
        if options.epochs or not ended:
            continue
        if edl.all_reduce(float(Path(options.until).exists()), "max"):
            break


if __name__ == "__main__":
    main()
