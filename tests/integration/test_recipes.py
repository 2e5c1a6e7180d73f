"""Real training code behaves under EDL as alone, and newcomers become exact replicas."""

from __future__ import annotations

import importlib.util
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from edl.client import Job
from tests.integration.conftest import SCRIPTS, Start
from tests.integration.test_requests import await_event

pytestmark = pytest.mark.paired


def recipes_module() -> Any:
    spec = importlib.util.spec_from_file_location("recipes", SCRIPTS / "recipes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_job(
    start: Start, log: Path, tmp_path: Path, names: list[str], *more: str, move: bool = False
) -> Job:
    """2 workers and a third before the first step, then a fourth, or two that move."""
    go, fast = tmp_path / "go", tmp_path / "fast"
    arguments = (
        "--log",
        str(log),
        "--recipes",
        ",".join(names),
        "--go",
        str(go),
        "--fast",
        str(fast),
    )
    job = start("recipes.py", *arguments, *more, workers=2)
    await_event(job, "job.started")
    assert job.scale_out(1, wait=False, request_id="early") is None
    await_event(job, "adjust.announced")
    go.touch()
    assert job.scale_out(1, request_id="early") is not None
    if move:
        leader = next(worker.id for worker in job.status().workers if worker.leader)
        other = next(worker.id for worker in job.status().workers if not worker.leader)
        assert job.migrate([other], 1) is not None
        assert job.migrate([leader], 1) is not None
    else:
        assert job.scale_out(1) is not None
    fast.touch()
    result = job.wait(200)
    assert result.state == "finished", result.first_failure
    return job


def check(
    log: Path, names: list[str], *, module: Any, tolerance: float = 0.0, workers: int = 4
) -> None:
    """Every worker's models are bit-equal after each step, and at the end what they are alone."""
    plain = [name for name in names if name != "BatchNorm"]
    alone = module.train(
        module.Alone(), plain, micro_batch=None, before=lambda: None, after=lambda recipes: None
    )
    sizes: set[int] = set()
    seen: dict[tuple[int, str], set[str]] = defaultdict(set)
    rows: dict[int, dict[int, int]] = defaultdict(dict)
    for path in log.glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            sizes.add(line["size"])
            rows[line["step"]][line["rank"]] = line["rows"]
            for name, digest in line["seen"].items():
                seen[line["step"], name].add(digest)
    assert {3, 4} <= sizes
    differing = sorted(key for key, digests in seen.items() if len(digests) > 1)
    assert not differing, f"replicas differ at (step, recipe) {differing[:5]}"
    results = [json.loads(path.read_text()) for path in log.glob("*.result")]
    assert len(results) == workers
    if "BatchNorm" in names:
        shares = [[rows[step][rank] for rank in sorted(rows[step])] for step in sorted(rows)]
        alone["BatchNorm"] = module.train_in_shares("BatchNorm", shares)
    for name in names:
        expected = alone[name].result()
        assert all(result[name] == results[0][name] for result in results)
        for mine, theirs in zip(results[0][name], expected, strict=False):
            found = torch.tensor(mine, dtype=theirs.dtype)
            near = max(tolerance, alone[name].tolerance)
            assert torch.allclose(found, theirs, rtol=near, atol=near), name


def test_real_training_code_is_what_it_is_alone(start: Start, log: Path, tmp_path: Path) -> None:
    module = recipes_module()
    names = list(module.RECIPES)
    run_job(start, log, tmp_path, names)
    check(log, names, module=module)
    unused = json.loads(next(log.glob("*.result")).read_text())["Unused"]
    assert len(unused) == 8


def test_micro_batches_equal_whole_ones(start: Start, log: Path, tmp_path: Path) -> None:
    module = recipes_module()
    # Not TwoOptimizers: its second loss sees the first update, which comes with the last piece.
    names = ["Recipe", "Clip", "Scaler", "Unused", "Average", "Groups"]
    run_job(start, log, tmp_path, names, "--micro-batch", "2")
    check(log, names, module=module)


def test_micro_batches_are_whole_where_workers_move(
    start: Start, log: Path, tmp_path: Path
) -> None:
    """Four are there in the first step with the one that comes, and three after it."""
    module = recipes_module()
    names = ["Recipe", "Clip", "Scaler", "Unused", "Average", "Groups"]
    run_job(start, log, tmp_path, names, "--micro-batch", "2", move=True)
    check(log, names, module=module, workers=3)


@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_compressed_gradients_in_many_small_buckets(
    start: Start, log: Path, tmp_path: Path, compression: str
) -> None:
    module = recipes_module()
    names = ["Recipe", "Clip", "Unused", "MixedDtypes", "Groups", "Scaler"]
    more = ("--compression", compression, "--bucket-mb", "0.0001")
    run_job(start, log, tmp_path, names, *more)
    check(log, names, module=module, tolerance=5e-2)
