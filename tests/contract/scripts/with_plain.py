"""A small network with momentum and a running mean, in NumPy alone."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import edl.plain as edl
from tests.contract.scripts.diary import FEATURES, MOMENTUM, Diary, Schedule, data, parse, weights


def main() -> None:
    options = parse()
    edl.init(bucket_mb=options.bucket_mb)
    model = weights(options.seed)
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
