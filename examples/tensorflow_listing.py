"""The paper's TensorFlow listing, in TensorFlow 2: shards, a pipeline, and a traced step.

    python examples/tensorflow_listing.py                     # alone
    edl run -n 2 examples/tensorflow_listing.py               # by two workers
    edl scale-out tensorflow_listing-1 --add 1                # while it trains

The lines with `edl` are all that makes it elastic. Handwritten digits lie in a file of records of
65 bytes: 64 pixels and the digit.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import edl.tensorflow as edl

RECORD, TEST = 65, 297


def write_digits(folder: Path) -> tuple[Path, Any, Any]:
    """The records' file, and what is kept for the test."""
    images, labels = load_digits(return_X_y=True)
    rows = np.concatenate([images, labels[:, None]], axis=1).astype(np.uint8)
    file = folder / "digits.bin"
    part = folder / f"digits.{os.getpid()}"
    part.write_bytes(rows[TEST:].tobytes())
    part.replace(file)  # at once: other workers may be reading it
    return file, rows[:TEST, :64].astype(np.float32) / 16.0, rows[:TEST, 64].astype(np.int32)


def read(path: Any, offset: Any, length: Any, epoch: Any, index: Any) -> Any:
    """A shard's samples, as TensorFlow's own operations read them."""
    start, size = (tf.cast(RECORD * part, tf.int32) for part in (offset, length))
    raw = tf.io.decode_raw(tf.strings.substr(tf.io.read_file(path), start, size), tf.uint8)
    rows = tf.cast(tf.reshape(raw, (-1, RECORD)), tf.float32)
    return tf.data.Dataset.from_tensor_slices((rows[:, :64] / 16.0, tf.cast(rows[:, 64], tf.int32)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()

    edl.init()
    file, test_x, test_y = write_digits(options.data)
    shards = edl.elastic_shard_generator(
        str(file), record_bytes=RECORD, partition_samples=100, batch_size=60, epochs=options.epochs
    )
    ds = tf.data.Dataset.from_generator(shards, output_signature=edl.SHARD)
    ds = ds.flat_map(read).prefetch(256)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    )
    opt = edl.Optimizer(keras.optimizers.Adam(3e-3), model=model)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @edl.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for x, y in shards.batches(ds):
        loss = train_step(x, y)
        edl.report(loss=float(loss))
        edl.notify_batch_end()
    edl.shutdown()
    right = np.argmax(model.predict(test_x, verbose=0), axis=1) == test_y
    print(f"test accuracy {right.mean():.3f} after {edl.step()} steps")


if __name__ == "__main__":
    main()
