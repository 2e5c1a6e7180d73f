"""Does EDL's loader deliver as many samples a second as torch's own?

    python bench/loader.py [--workers 0] [--dataset tensors] [--rounds 75] [--batches 40]

The same dataset in memory, small samples, the same number of loader processes. torch's DataLoader
has a DistributedSampler of one replica; EDL's is that of a job of one worker, with all that a step
costs there. The dataset is torch's TensorDataset, or a class in Python that returns a tensor and
an int; both are asked sample by sample, as neither has `__getitems__`. One round is `--batches`
batches of each, the order changing from round to round, and short, so that a busy machine is busy
for both; told are the medians, and the ratio's over the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import edl.torch as edl


class Plain(Dataset[tuple[torch.Tensor, int]]):
    """What a user writes."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._rows[index], index


def of_torch(dataset: Dataset[Any], options: argparse.Namespace) -> Iterator[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, num_replicas=1, rank=0, shuffle=True, seed=0
    )
    loader = DataLoader(
        dataset,
        batch_size=options.batch,
        sampler=sampler,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def of_edl(dataset: Dataset[Any], options: argparse.Namespace) -> Iterator[Any]:
    loader = edl.DataLoader(
        dataset, batch_size=options.batch, seed=0, epochs=10**6, num_workers=options.workers
    )
    for batch in loader:
        yield batch
        edl.notify_batch_end()


def rate(batches: Iterator[Any], options: argparse.Namespace) -> float:
    """Samples a second."""
    began, seen = time.perf_counter(), 0
    for rows, *_ in itertools.islice(batches, options.batches):
        seen += len(rows)
    return seen / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=0, help="loader processes")
    parser.add_argument("--dataset", choices=["tensors", "plain"], default="tensors")
    parser.add_argument("--rounds", type=int, default=75)
    parser.add_argument("--batches", type=int, default=40, help="in a round")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--samples", type=int, default=200_000)
    options = parser.parse_args()
    rows = torch.randn(options.samples, 16)
    dataset: Dataset[Any] = Plain(rows)
    if options.dataset == "tensors":
        dataset = TensorDataset(rows, torch.arange(options.samples))
    edl.init()
    kinds = {"edl": of_edl(dataset, options), "torch": of_torch(dataset, options)}
    for batches in kinds.values():
        rate(batches, options)  # processes start, pages are touched
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(options.rounds):
        for name in sorted(kinds, reverse=bool(number % 2)):
            rates[name].append(rate(kinds[name], options))
    ratios = [a / b for a, b in zip(rates["edl"], rates["torch"], strict=True)]
    print(
        f"{options.dataset}, {options.workers} loader processes, batches of {options.batch}: "
        f"EDL {statistics.median(rates['edl']):,.0f} samples/s, "
        f"torch {statistics.median(rates['torch']):,.0f}; "
        f"ratio median {statistics.median(ratios):.3f}, "
        f"from {min(ratios):.3f} to {max(ratios):.3f} ({options.rounds} rounds)"
    )


if __name__ == "__main__":
    main()
