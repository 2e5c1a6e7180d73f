"""Runs every Python block of a page of the documentation, each in a process of its own.

A block that makes a loader without using it is followed by one epoch over that loader.
"""

import importlib.util
import io
import json
import os
import re
import sys
import tarfile
import traceback
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import torch
from fsspec.implementations.local import LocalFileSystem

import edl.torch as edl

SAMPLES = 300
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Bucket(LocalFileSystem):  # type: ignore[misc]
    """s3://bucket is the folder `bucket` here."""

    protocol = "s3"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(Path(path.removeprefix("s3://")).absolute())


def write_data() -> None:
    Path("bucket/train").mkdir(parents=True)
    table = arrow.table(
        {"x": [[0.0, 1.0]] * SAMPLES, "label": [1] * SAMPLES, "unused": [0] * SAMPLES}
    )
    parquet.write_table(table, "bucket/train/0.parquet", row_group_size=100)
    Path("data").mkdir()
    Path("data/0.bin").write_bytes(np.arange(SAMPLES, dtype=np.int32).tobytes())
    Path("data/0.jsonl").write_text('{"text": "words"}\n' * SAMPLES)
    np.save("data/0.npy", np.zeros((SAMPLES, 4, 4), dtype=np.float32))
    with tarfile.open("data/0.tar", "w") as tar:
        for number in range(SAMPLES):
            content = {"img": bytes(16), "json": json.dumps({"label": number}).encode()}
            for kind, data in content.items():
                info = tarfile.TarInfo(f"{number:06d}.{kind}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def run(block: str, name: str) -> None:
    given: dict[str, Any] = {"__name__": "__main__"}
    if "edl.init()" not in block:
        edl.init()
        given |= {"edl": edl, "torch": torch, "dataset": torch.arange(SAMPLES)}
        given["train"] = lambda batch: seen.extend(batch[: edl.local_batch_size()])
    seen: list[Any] = []
    exec(compile(block, name, "exec"), given)
    if "notify_batch_end" in block:
        assert edl.step() > 0
        if "train(" in block:
            assert sorted(int(number) for number in seen) == sorted([*range(SAMPLES)] * 2)
        return
    loader = given["loader"]
    steps = rows = 0
    for _ in loader:
        rows += edl.local_batch_size()
        edl.notify_batch_end()
        steps += 1
    assert steps == len(loader) > 0
    assert rows == len(loader.dataset)


def runs(block: str, name: str) -> bool:
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        run(block, name)
        status = 0
    except BaseException:
        traceback.print_exc()
        print(block, file=sys.stderr)
        status = 1
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    page, folder = Path(sys.argv[1]), sys.argv[2]
    blocks = BLOCK.findall(page.read_text())
    os.chdir(folder)
    write_data()
    fsspec.register_implementation("s3", Bucket, clobber=True)
    if importlib.util.find_spec("tensorflow") is None:
        blocks = [block for block in blocks if "import tensorflow" not in block]
    results = [runs(block, f"{page.name}, block {n}") for n, block in enumerate(blocks, start=1)]
    print(f"{sum(results)} of {len(results)} blocks ran")


if __name__ == "__main__":
    main()
