"""A small network with momentum and a running mean, in NumPy alone."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import edl.plain as edl
from tests.contract.scripts.diary import (
    CLASSES,
    FEATURES,
    HIDDEN,
    MOMENTUM,
    Diary,
    Schedule,
    data,
    parse,
)


def main() -> None:
    options = parse()
    edl.init(bucket_mb=options.bucket_mb)
    # Unseeded: everyone takes the first leader's model.
    rng = np.random.default_rng(os.getpid())
    model: dict[str, Any] = {
        "w1": rng.standard_normal((FEATURES, HIDDEN)).astype(np.float32) / 4,
        "b1": np.zeros(HIDDEN, np.float32),
        "w2": rng.standard_normal((HIDDEN, CLASSES)) / 5,
        "b2": np.zeros(CLASSES),
    }
    moments = {f"m_{name}": np.zeros_like(array) for name, array in model.items()}
    mean = np.zeros(FEATURES, np.float32)
    edl.share(**model)
    edl.share_state(**moments)
    edl.share_buffers(mean=mean)
    schedule = edl.register(Schedule())
    loader = edl.DataLoader(
        data(options.samples), options.batch, seed=5, micro_batch=options.micro_batch
    )
    diary = Diary(edl, options, lambda: (model.values(), moments.values(), [mean], schedule.rate))
    for _ in edl.epochs(options.epochs):
        for x, y, indexes in loader:
            mean += 0.1 * (x.mean(0) - mean)
            hidden = np.tanh(x @ model["w1"] + model["b1"])
            scores = np.exp(hidden @ model["w2"] + model["b2"])
            chances = scores / scores.sum(1, keepdims=True)
            diary.intent(indexes, -np.log(chances[np.arange(len(y)), y]).mean())
            chances[np.arange(len(y)), y] -= 1
            slope = chances / len(y)
            inner = (slope @ model["w2"].T) * (1 - hidden**2)
            gradients = edl.average(
                w1=x.T @ inner, b1=inner.sum(0), w2=hidden.T @ slope, b2=slope.sum(0)
            )
            for name, array in model.items():
                moments[f"m_{name}"] *= MOMENTUM
                moments[f"m_{name}"] += gradients[name]
                array -= schedule.rate * moments[f"m_{name}"]
            diary.end_batch()
        schedule.fall()
        if diary.enough():
            break
    edl.shutdown()
    diary.end()


if __name__ == "__main__":
    main()
