"""Readers: files of samples, anywhere that fsspec reaches, cut into partitions.

    from edl.data import JsonLines, Lines, Parquet, Records, Tar

    loader = edl.DataLoader(Parquet("s3://bucket/train/*.parquet"), batch_size=256)

Each is given a path or URL, with * and ? if need be, or a list of them. What it reads are plain
Python values; the loader's collate_fn makes a batch of them.
"""

from __future__ import annotations

from edl.data.lines import JsonLines, Lines
from edl.data.parquet import Parquet
from edl.data.records import Records
from edl.data.source import Source
from edl.data.tar import Tar
from edl.runtime.partitions import Partition, Shard

__all__ = ["JsonLines", "Lines", "Parquet", "Partition", "Records", "Shard", "Source", "Tar"]
