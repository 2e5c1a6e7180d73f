"""Registers a Keras metric, which counts each worker's own rows, and trains a few epochs."""

import keras
import numpy as np
import tensorflow as tf

import edl.tensorflow as edl


def main() -> None:
    edl.init()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    optimizer = edl.Optimizer(keras.optimizers.Adam(1e-2), model=model)
    mean = edl.register(keras.metrics.Mean())
    x = np.random.default_rng(7).normal(size=(240, 8)).astype(np.float32)
    loader = edl.DataLoader((x, x.sum(1, keepdims=True)), batch_size=24, seed=5)
    loss_of = keras.losses.MeanSquaredError()

    @edl.function
    def train_step(rows: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(rows, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for _ in edl.epochs(3):
        for rows, targets in loader:
            loss = train_step(rows, targets)
            mean.update_state(loss, sample_weight=edl.local_batch_size())
            edl.notify_batch_end()
    edl.shutdown()
    print("mean", float(mean.result()), flush=True)


if __name__ == "__main__":
    main()
