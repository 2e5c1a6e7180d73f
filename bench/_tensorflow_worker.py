"""The benchmarks' workload on EDL with TensorFlow."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _workload import BATCH, Log, options_of_worker

import edl.tensorflow as edl


def mlp() -> Any:
    """24.9M parameters, 99 MB: as large as the one of PyTorch."""
    widths = (3072, 4096, 700)
    layers = [keras.layers.Dense(width, activation="relu") for width in widths]
    return keras.Sequential([keras.Input((3072,)), *layers, keras.layers.Dense(10)])


def main() -> None:
    options = options_of_worker()
    if options.model != "mlp":
        raise SystemExit("the TensorFlow worker has the mlp only")
    edl.init()
    model = mlp()
    plain = keras.optimizers.SGD(1e-3, momentum=0.9)
    if options.optimizer == "adamw":
        plain = keras.optimizers.AdamW(1e-4)
    optimizer = edl.Optimizer(plain, model=model)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    count = BATCH if options.wait else options.batch
    drawn = np.random.default_rng(0)
    x = tf.constant(drawn.normal(size=(count, 3072)).astype(np.float32))
    y = tf.constant(drawn.integers(0, 10, count).astype(np.int32))

    @edl.function
    def train_step(indexes: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(tf.gather(y, indexes), model(tf.gather(x, indexes), training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    loader = edl.DataLoader(np.arange(options.batch * 100_000) % count, options.batch)
    log = Log(options.log, os.environ["EDL_WORKER"])
    counted = False
    for indexes in loader:
        rows = edl.local_batch_size()
        if options.wait:
            # The wait stands for an accelerator; few rows are computed for real.
            time.sleep(options.wait / options.batch * rows)
            indexes = indexes[:4]
        train_step(indexes)
        edl.notify_batch_end()
        log.write(edl.step(), edl.size())
        if rows and not counted:
            counted = True
            log.counted()
        if Path(options.until).exists():
            break
    edl.shutdown()


if __name__ == "__main__":
    main()
