"""Handwritten digits without a framework: a small network in NumPy, with any number of workers.

    python examples/plain.py                      # alone; torch is not even imported
    edl run -n 2 examples/plain.py                # two workers; over in seconds
    edl run -n 2 examples/plain.py --epochs 5000  # long enough to scale it while it runs

The script computes gradients and updates its arrays itself. EDL is told which arrays those are
(`share`), and averages the gradients of all workers (`average`).
"""

from __future__ import annotations

import argparse
import hashlib

import numpy as np
from sklearn.datasets import load_digits

import edl.plain as edl

TRAINED = 1437  # of 1797; the rest is for the test


def predicted(x: np.ndarray, w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray):
    """The hidden layer, and the chances of the ten digits."""
    hidden = np.maximum(x @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, chances / chances.sum(axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.1)
    args = parser.parse_args()

    edl.init()
    digits = load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target
    rng = np.random.default_rng()  # unseeded: everybody takes the first leader's model
    w1 = rng.normal(0, 0.1, (64, 64)).astype(np.float32)
    w2 = rng.normal(0, 0.1, (64, 10)).astype(np.float32)
    b1, b2 = np.zeros(64, np.float32), np.zeros(10, np.float32)
    model = (w1, b1, w2, b2)
    momentum = [np.zeros_like(array) for array in model]
    edl.share(w1=w1, b1=b1, w2=w2, b2=b2)
    edl.share_state(**{f"m{n}": array for n, array in enumerate(momentum)})
    loader = edl.DataLoader((x[:TRAINED], y[:TRAINED]), batch_size=96, seed=0)

    for _ in edl.epochs(args.epochs):
        for xs, ys in loader:
            hidden, chances = predicted(xs, *model)
            rows = np.arange(len(ys))
            edl.report(loss=float(-np.log(chances[rows, ys]).mean()))
            chances[rows, ys] -= 1
            slope = chances / len(ys)
            inner = (slope @ w2.T) * (hidden > 0)
            gradients = edl.average(xs.T @ inner, inner.sum(0), hidden.T @ slope, slope.sum(0))
            for array, moment, gradient in zip(model, momentum, gradients, strict=True):
                moment *= 0.9
                moment += gradient
                array -= args.rate * moment
            edl.notify_batch_end()
    edl.shutdown()

    right = predicted(x[TRAINED:], *model)[1].argmax(axis=1) == y[TRAINED:]
    fingerprint = hashlib.sha256(b"".join(array.tobytes() for array in model)).hexdigest()[:12]
    print(f"test accuracy {right.mean():.3f} after {edl.step()} steps, model {fingerprint}")


if __name__ == "__main__":
    main()
