"""Trains from a tf.data pipeline until the job is stopped, and says at its exit what is left."""

import argparse
import atexit
import gc
from pathlib import Path

import keras
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

import edl.tensorflow as edl

RECORD = 4


def report() -> None:
    left = sum(isinstance(each, OwnedIterator) for each in gc.get_objects())
    print(f"pipelines not destroyed: {left}", flush=True)


def read(path, offset, length, epoch, index):  # type: ignore[no-untyped-def]
    start, size = (tf.cast(RECORD * part, tf.int32) for part in (offset, length))
    raw = tf.io.decode_raw(tf.strings.substr(tf.io.read_file(path), start, size), tf.uint8)
    return tf.data.Dataset.from_tensor_slices(tf.cast(tf.reshape(raw, (-1, RECORD)), tf.float32))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    atexit.register(report)
    edl.init()
    shards = edl.elastic_shard_generator(
        str(options.data), record_bytes=RECORD, partition_samples=50, batch_size=20, epochs=100000
    )
    ds = tf.data.Dataset.from_generator(shards, output_signature=edl.SHARD)
    ds = ds.flat_map(read).prefetch(64)
    model = keras.Sequential([keras.Input((RECORD,)), keras.layers.Dense(1)])
    opt = edl.Optimizer(keras.optimizers.SGD(1e-6), model=model)

    @edl.function
    def train_step(x):  # type: ignore[no-untyped-def]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for x in shards.batches(ds):
        train_step(x)
        edl.notify_batch_end()
    edl.shutdown()


if __name__ == "__main__":
    main()
