"""A TensorFlow script that logs what it does, so that a test can judge it from the log alone.

By a loop of its own over edl.DataLoader, over a tf.data pipeline of shards, or by `model.fit`.
"""

import argparse
import os
import struct
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import edl.tensorflow as edl
from tests.contract.scripts.diary import Diary

SAMPLES, BATCH = 403, 20


class Log(Diary):
    """The diary of the contract's scripts, of a Keras model."""

    def __init__(self, options: argparse.Namespace, model: Any, optimizer: Any) -> None:
        super().__init__(edl, options, lambda: look(model, optimizer))

    def outcome(self, generation: int, step: int) -> None:
        """What came of a batch that somebody else has ended."""
        fields = {"generation": generation, "step": step, "committed": edl.step() > step}
        self._write(what="outcome", **fields, **self._digests())

    def epoch(self, epoch: int, logs: dict[str, Any], ended: int) -> None:
        told = {name: float(value) for name, value in logs.items()}
        self._write(what="epoch", epoch=epoch, logs=told, ended=ended)

    def begun(self, traces: int) -> None:
        """Before this worker's first batch."""
        self._write(what="begun", worker=os.environ["EDL_WORKER"], traces=traces)

    def end_of(self, traces: int) -> None:
        self._write(what="traces", traces=traces)
        self.end()


def look(model: Any, optimizer: Any) -> tuple[list[Any], list[Any], list[Any], float]:
    parts = (model.trainable_variables, optimizer.variables, model.non_trainable_variables)
    parameters, state, buffers = ([v.numpy() for v in part] for part in parts)
    return parameters, state, buffers, float(optimizer.learning_rate)


class Journal(keras.callbacks.Callback):  # type: ignore[misc]
    """Before edl.Callback: the batch is done, and not committed yet."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self.at = (0, 0)
        self._first = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        assert epoch == edl.epoch(), (epoch, edl.epoch())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._first:
            self._first = False
            self._log.begun(self.model.traces)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.at = (edl.generation(), edl.step())


class After(keras.callbacks.Callback):  # type: ignore[misc]
    """Behind edl.Callback: the batch is committed, or not."""

    def __init__(self, before: Journal, log: Log) -> None:
        super().__init__()
        self._before = before
        self._log = log
        self.ended: list[int] = []  # a memory of its own, which nobody registers

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._log.outcome(*self._before.at)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert "val_loss" in logs
        self.ended = sorted({*self.ended, epoch})
        self._log.epoch(epoch, logs, len(self.ended))
        if self._log.enough():
            self.model.stop_training = True


class Seeing(keras.Sequential):  # type: ignore[misc]
    """Says which samples a batch has, and counts how often its step was traced."""

    traces = 0
    log: Log

    def train_step(self, data: Any) -> Any:
        self.traces += 1
        x, y, indexes = data
        loss = self.compute_loss(x, y, self(x, training=False))
        # Before the gradients: a worker that dies in the update has said what it used.
        tf.numpy_function(self.note, [indexes, loss], [])
        return super().train_step((x, y))

    def note(self, indexes: Any, loss: Any) -> None:
        if not edl._here().rehearsing:
            self.log.intent(indexes, float(loss))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--until", default="", help="go on until this file exists")
    parser.add_argument("--way", choices=["loader", "shards", "fit"], default="loader")
    parser.add_argument("--model", choices=["plain", "batchnorm"], default="plain")
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--micro-batch", type=int, default=None)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a whole batch takes")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inter-op", type=int, default=0, help="TensorFlow's threads")
    parser.set_defaults(lose="")  # nobody dies by its own hand here
    return parser.parse_args()


def build(options: argparse.Namespace) -> Any:
    middle = [keras.layers.BatchNormalization()] if options.model == "batchnorm" else []
    kind = Seeing if options.way == "fit" else keras.Sequential
    return kind(
        [
            keras.Input((16,)),
            keras.layers.Dense(32, activation="tanh"),
            *middle,
            keras.layers.Dense(4),
        ]
    )


def optimizer_of(options: argparse.Namespace) -> Any:
    if options.optimizer == "sgd":
        return keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0)
    if options.optimizer == "ema":
        return keras.optimizers.AdamW(1e-2, use_ema=True, clipnorm=1.0)
    return keras.optimizers.Adam(1e-2)


def data() -> tuple[Any, Any, Any]:
    drawn = np.random.default_rng(7)
    x = drawn.normal(size=(SAMPLES, 16)).astype(np.float32)
    y = x[:, :4].argmax(axis=1).astype(np.int32)
    return x, y, np.arange(SAMPLES)


def pipeline(options: argparse.Namespace, shards: Any) -> Any:
    """The numbers from 0 on are records of a file; a sample is a row of the arrays."""
    x, y, _ = (tf.constant(part) for part in data())

    def samples(path: Any, offset: Any, length: Any, epoch: Any, index: Any) -> Any:
        start, size = (tf.cast(4 * part, tf.int32) for part in (offset, length))
        raw = tf.strings.substr(tf.io.read_file(path), start, size)
        return tf.data.Dataset.from_tensor_slices(tf.io.decode_raw(raw, tf.int32))

    found = tf.data.Dataset.from_generator(shards, output_signature=edl.SHARD).flat_map(samples)
    return found.map(lambda at: (x[at], y[at], at)).prefetch(64)


def opened(options: argparse.Namespace) -> Any:
    if options.way != "shards":
        return edl.DataLoader(data(), batch_size=BATCH, seed=5, micro_batch=options.micro_batch)
    file = Path(options.log, "records.bin")
    if not file.exists():
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(b"".join(struct.pack("<i", index) for index in range(SAMPLES)))
        part.replace(file)
    shards = edl.elastic_shard_generator(
        str(file), record_bytes=4, partition_samples=16, batch_size=BATCH, seed=3
    )
    return shards.batches(pipeline(options, shards))


def main() -> None:
    options = parse()
    if options.inter_op:
        tf.config.threading.set_inter_op_parallelism_threads(options.inter_op)
    edl.init(bucket_mb=0.002)
    if options.seed:
        keras.utils.set_random_seed(options.seed)
    model = build(options)
    optimizer = edl.Optimizer(optimizer_of(options), model=model)
    found = opened(options)
    log = Log(options, model, optimizer)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if options.way == "fit":
        model.compile(optimizer=optimizer, loss=loss_of)
        model.log = log
        before = Journal(log)
        x, y, _ = data()
        model.fit(
            found,
            epochs=options.epochs,
            validation_data=(x[:40], y[:40]),
            callbacks=[
                before,
                edl.Callback(),
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.99),
                keras.callbacks.ReduceLROnPlateau("loss", factor=0.98, patience=1, min_delta=0.2),
                After(before, log),
            ],
            verbose=0,
        )
        edl.shutdown()
        log.end_of(model.traces)
        return

    @edl.function
    def train_step(x: Any, y: Any, indexes: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    first = True
    for _ in edl.epochs(options.epochs):
        for batch in found:
            if first:
                first = False
                log.begun(train_step.traces())
            # Before the update: a worker that dies in it has said what it used.
            log.intent(batch[2].numpy(), float(loss_of(batch[1], model(batch[0], training=False))))
            train_step(*batch)
            log.end_batch()
        if log.enough():
            break
    edl.shutdown()
    log.end_of(train_step.traces())


if __name__ == "__main__":
    main()
