"""`model.fit` by workers that come and go.

    python examples/keras_fit.py                     # alone
    edl run -n 2 examples/keras_fit.py               # by two workers; over in seconds
    edl run -n 2 examples/keras_fit.py --epochs 500 --patience 500
    edl scale-out keras_fit-1 --add 1                # while that one trains

Three lines make it elastic: the optimizer, the data and the callback.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import edl.tensorflow as edl

TEST = 297


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--patience", type=int, default=3, help="epochs without a gain")
    options = parser.parse_args()

    edl.init()
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16.0).astype(np.float32), labels.astype(np.int32)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=edl.Optimizer(keras.optimizers.Adam(3e-3), model=model),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        edl.DataLoader((x[TEST:], y[TEST:]), batch_size=60, seed=1),
        epochs=options.epochs,
        validation_data=(x[:TEST], y[:TEST]),
        callbacks=[
            edl.Callback(),
            keras.callbacks.EarlyStopping("val_accuracy", patience=options.patience),
        ],
        verbose=2,
    )
    edl.shutdown()
    print(f"test accuracy {history.history['val_accuracy'][-1]:.3f} after {edl.step()} steps")


if __name__ == "__main__":
    main()
