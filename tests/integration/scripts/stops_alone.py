"""`model.fit` whose first worker alone stops the training; every worker logs its epochs' ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import edl.tensorflow as edl


class Stops(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        with open(Path(sys.argv[1]) / f"{edl.rank()}.jsonl", "a") as file:
            print(json.dumps({"epoch": epoch, "logs": sorted(logs or {})}), file=file)
        if epoch == 2 and edl.rank() == 0:
            self.model.stop_training = True


def main() -> None:
    edl.init()
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    optimizer = edl.Optimizer(keras.optimizers.SGD(0.1), model=model)
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    loader = edl.DataLoader((x, y), batch_size=16)
    model.fit(loader, epochs=9, callbacks=[edl.Callback(), Stops()], verbose=0)
    edl.shutdown()


if __name__ == "__main__":
    main()
