"""The same network, momentum and a running mean, in TensorFlow."""

import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import edl.tensorflow as edl
from tests.contract.scripts.diary import FEATURES, MOMENTUM, Diary, Schedule, data, parse, weights


class Net(keras.Model):  # type: ignore[misc]
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.own = [
            self.add_weight(shape=array.shape, initializer=keras.initializers.Constant(array))
            for array in weights(seed).values()
        ]
        self.mean = self.add_weight(shape=(FEATURES,), initializer="zeros", trainable=False)
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign_add(0.1 * (tf.reduce_mean(x, 0) - self.mean))
        w1, b1, w2, b2 = self.own
        return tf.tanh(x @ w1 + b1) @ w2 + b2


def main() -> None:
    options = parse()
    edl.init(bucket_mb=options.bucket_mb)
    model = Net(options.seed)
    schedule = edl.register(Schedule())
    optimizer = edl.Optimizer(keras.optimizers.SGD(schedule.rate, MOMENTUM), model=model)
    loader = edl.DataLoader(
        data(options.samples), options.batch, seed=5, micro_batch=options.micro_batch
    )
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @edl.function
    def train_step(x: Any, y: Any, indexes: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def look() -> Any:
        parts = (model.trainable_variables, optimizer.variables, model.non_trainable_variables)
        return *([v.numpy() for v in part] for part in parts), schedule.rate

    diary = Diary(edl, options, look)
    for _ in edl.epochs(options.epochs):
        for x, y, indexes in loader:
            diary.intent(indexes.numpy(), float(loss_of(y, model(x))))
            optimizer.learning_rate = schedule.rate
            train_step(x, y, indexes)
            diary.end_batch()
        schedule.fall()
        if diary.enough():
            break
    edl.shutdown()
    diary.end()


if __name__ == "__main__":
    main()
