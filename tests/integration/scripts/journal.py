"""A training script that logs what it does, so that a test can judge it from the log alone.

Before backward: generation, epoch, step and the samples of this worker's own rows. After
notify_batch_end: whether the step counted, and digests of what must be equal everywhere.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as functional

import edl.torch as edl


def digest(tensors: list[torch.Tensor]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1)
        sha.update(flat.view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def state_digest(optimizer: torch.optim.Optimizer) -> str:
    found = [
        value
        for group in optimizer.param_groups
        for parameter in group["params"]
        for _, value in sorted(optimizer.state.get(parameter, {}).items())
        if isinstance(value, torch.Tensor)
    ]
    return digest(found)


def build(kind: str) -> torch.nn.Module:
    middle = torch.nn.BatchNorm1d(32) if kind == "batchnorm" else torch.nn.Tanh()
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), middle, torch.nn.Dropout(0.0), torch.nn.Linear(32, 4)
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--samples", type=int, default=1003)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--model", default="plain")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a whole batch takes")
    parser.add_argument("--pause-until", default="", help="no pauses once this file exists")
    parser.add_argument("--until", default="", help="go on until this file exists")
    parser.add_argument("--reduce-every", type=int, default=0, help="steps; 0: never")
    parser.add_argument("--unseeded", action="store_true")
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    return parser.parse_args()


class Log:
    """One worker's journal: whole lines, there as soon as they are written."""

    def __init__(self, folder: str) -> None:
        name = f"{os.environ.get('EDL_WORKER', 'solo')}.jsonl"
        self._file = os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **fields: object) -> None:
        os.write(self._file, json.dumps(fields).encode() + b"\n")

    def intent(self, indexes: list[int], loss: float) -> None:
        self.write(
            what="intent",
            generation=edl.generation(),
            epoch=edl.epoch(),
            step=edl.step(),
            rank=edl.rank(),
            size=edl.size(),
            indexes=indexes,
            loss=loss,
        )

    def end_batch(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        samples: int | None = None,
    ) -> None:
        """notify_batch_end, and what came of it, also where it raises Leave."""
        generation, step = edl.generation(), edl.step()
        try:
            edl.notify_batch_end(samples=samples)
        finally:
            self.write(
                what="outcome",
                generation=generation,
                step=step,
                committed=edl.step() > step,
                parameters=digest(list(model.parameters())),
                optimizer=state_digest(optimizer),
                buffers=digest(list(model.buffers())),
                rate=optimizer.param_groups[0]["lr"],
            )

    def end(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.write(
            what="end",
            steps=edl.step(),
            parameters=digest(list(model.parameters())),
            optimizer=state_digest(optimizer),
            buffers=digest(list(model.buffers())),
            rate=optimizer.param_groups[0]["lr"],
        )


def main() -> None:
    options = parse()
    edl.init(bucket_mb=options.bucket_mb)
    torch.manual_seed(os.getpid() if options.unseeded else 1)
    model = build(options.model)
    data = torch.Generator().manual_seed(7)
    inputs = torch.randn(options.samples, 16, generator=data)
    targets = torch.randint(0, 4, (options.samples,), generator=data)
    dataset = torch.utils.data.TensorDataset(inputs, targets, torch.arange(options.samples))
    plain: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if options.optimizer == "adam":
        plain = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = edl.Optimizer(plain, model=model)
    schedule = edl.register(torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.97))
    loader = edl.DataLoader(dataset, batch_size=options.batch, seed=5)
    log = Log(options.log)
    for _ in edl.epochs(options.epochs):
        for x, y, indexes in loader:
            rows = edl.local_batch_size()
            loss = functional.cross_entropy(model(x), y)
            log.intent(indexes[:rows].tolist(), loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if options.pause and not Path(options.pause_until or "/nowhere").exists():
                time.sleep(options.pause * max(rows, 1) / options.batch)
            log.end_batch(model, optimizer)
            if options.reduce_every and edl.step() % options.reduce_every == 0:
                log.write(
                    what="reduced", step=edl.step(), sum=edl.all_reduce(edl.rank() + 1.0, "sum")
                )
        schedule.step()
        if options.until and edl.all_reduce(float(Path(options.until).exists()), "max"):
            break
    edl.shutdown()
    log.end(model, optimizer)


if __name__ == "__main__":
    main()
