"""Trains on one kind of dataset and logs as the journal script does.

The dataset is the numbers from 0 on: each sample is its own index, whatever it is read from.
"""

import argparse
import io
import os
import struct
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import journal  # type: ignore[import-not-found]
import torch

import edl.torch as edl
from edl.data import JsonLines, Lines, Parquet, Records, Tar

SAMPLES, FILES = 203, 3

if looks_s := os.environ.get("EDL_TEST_LOOKS_S"):
    # How often a loader process looks whether its parent is still there.
    worker: Any = torch.utils.data._utils.worker
    assert worker.MP_STATUS_CHECK_INTERVAL
    worker.MP_STATUS_CHECK_INTERVAL = float(looks_s)


class Numbers(torch.utils.data.Dataset[int]):
    def __init__(self, samples: int, banana: int | None) -> None:
        self.samples = samples
        self.banana = banana

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        if index == self.banana:
            raise LookupError(f"sample {index} is a banana")
        return index


class Stream(torch.utils.data.IterableDataset[int]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


def parts(samples: int) -> list[range]:
    return [range(samples * i // FILES, samples * (i + 1) // FILES) for i in range(FILES)]


def write_files(folder: Path, kind: str, samples: int, banana: int | None) -> None:
    for number, part in enumerate(parts(samples)):
        path = folder / f"{number}.{kind}"
        if kind == "records":
            path.write_bytes(b"".join(struct.pack("<i", index) for index in part))
        elif kind in ("lines", "jsonl"):
            path.write_text("\n".join("banana" if n == banana else str(n) for n in part))
        elif kind == "parquet":
            import pyarrow as arrow
            import pyarrow.parquet as parquet

            parquet.write_table(arrow.table({"index": list(part)}), path, row_group_size=17)
        elif kind == "tar":
            with tarfile.open(path, "w") as tar:
                for index in part:
                    info = tarfile.TarInfo(f"{index:06d}.num")
                    info.size = len(str(index))
                    tar.addfile(info, io.BytesIO(str(index).encode()))


def unpack(record: bytes) -> int:
    return int(struct.unpack("<i", record)[0])


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["num"])


def index_of(row: dict[str, Any]) -> int:
    return int(row["index"])


def open_data(folder: Path, kind: str, samples: int, banana: int | None) -> Any:
    if kind == "map":
        return Numbers(samples, banana)
    if kind == "stream":
        return Stream(samples)
    files = str(folder / f"*.{kind}")
    if kind == "records":
        return Records(files, record_bytes=4, partition_samples=16, decode=unpack)
    if kind == "lines":
        return Lines(files, partition_bytes=64, decode=int)
    if kind == "jsonl":
        return JsonLines(files, partition_bytes=64)
    if kind == "parquet":
        return Parquet(files)
    return Tar(files, partition_samples=16, decode=number_of)


def collate(rows: list[Any]) -> torch.Tensor:
    return torch.tensor([index_of(row) if isinstance(row, dict) else row for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--until", required=True)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--banana", type=int)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--context", default="fork")
    parser.add_argument("--device")
    parser.add_argument("--pause", type=float, default=0.03)
    options = parser.parse_args()
    edl.init()
    folder = Path(options.log, "data")
    try:
        folder.mkdir()
        write_files(folder, options.kind, options.samples, options.banana)
        (folder / "written").touch()
    except FileExistsError:
        while not (folder / "written").exists():
            time.sleep(0.02)
    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    optimizer = edl.Optimizer(torch.optim.Adam(model.parameters()), model=model)
    loader = edl.DataLoader(
        open_data(folder, options.kind, options.samples, options.banana),
        batch_size=options.batch,
        seed=3,
        shuffle=options.kind != "stream",
        num_workers=options.num_workers,
        multiprocessing_context=options.context if options.num_workers else None,
        collate_fn=collate,
        device=options.device,
    )
    log = journal.Log(options.log)
    for _ in edl.epochs(100_000):
        for indexes in loader:
            rows = edl.local_batch_size()
            loss = (model(indexes[:, None].float() / SAMPLES) - 1.0).square().mean()
            log.intent(indexes[:rows].tolist(), loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(options.pause)
            log.end_batch(model, optimizer)
        if edl.all_reduce(float(Path(options.until).exists()), "max"):
            break
    edl.shutdown()
    log.end(model, optimizer)


if __name__ == "__main__":
    main()
