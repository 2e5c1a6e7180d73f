"""`model.fit` on an elastic job: `callbacks=[edl.Callback()]`.

Keras owns the loop; the callback opens a step before each batch and commits it after. Holds:
every worker is in the same epoch, also one that joined in the middle of it; and what Keras tells
its other callbacks at an epoch's end is the same on every worker, so that they decide alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from edl.errors import UsageError
from edl.plugin.face import notify_batch_end
from edl.tensorflow.optimizer import is_elastic
from edl.tensorflow.plugin import Plugin

__all__ = ["Callback"]


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """Put it first in `callbacks`: those behind it see the job's metrics, not one worker's."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__()
        self._plugin = plugin
        self._batches: Iterator[Any] = iter(())
        self._rows = 0
        self._caught: Any = None

    # -- before the first epoch ------------------------------------------------------------

    def set_params(self, params: dict[str, Any]) -> None:
        feed = self._plugin.feed
        if feed is not None:
            # For progress bars, which would divide by what Keras knows.
            params["steps"] = len(feed)
        super().set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:
        plugin, model = self._plugin, self.model
        feed = plugin.feed
        if feed is None:
            raise UsageError(
                "model.fit needs data that EDL can share out: edl.DataLoader(...), or "
                "shards.batches(...) of an elastic_shard_generator with batch_size"
            )
        self._check()
        plugin.add_model(model, model.optimizer)
        plugin.rehearsal = self._rehearse
        plugin.session.teller.epochs = self.params["epochs"]
        progress = plugin.session.enter()
        # Where a worker that joins begins; Keras has this for whoever restores a backup.
        model._initial_epoch = progress.ledger.epoch
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        # The end of an epoch is no surprise here.
        warnings.filterwarnings("ignore", message="Your input ran out of data")

    def _check(self) -> None:
        model = self.model
        if not is_elastic(model.optimizer):
            inner = getattr(model.optimizer, "inner_optimizer", None)
            wrapped = "LossScaleOptimizer(...)" if is_elastic(inner) else "..."
            raise UsageError(
                f"the model was compiled with a {type(model.optimizer).__name__} that is not "
                f"elastic: model.compile(optimizer=edl.Optimizer({wrapped}))"
            )
        steps = int(getattr(model, "steps_per_execution", 1))
        if steps != 1:
            raise UsageError(
                f"steps_per_execution={steps}: workers come and go between any two steps, so each "
                "is run by itself; leave it out"
            )
        if getattr(model, "jit_compile", False):
            raise UsageError(
                "jit_compile=True: XLA cannot call out of what it has compiled, where EDL averages "
                "gradients; model.compile(..., jit_compile=False)"
            )

    def _rehearse(self) -> None:
        """A new worker is not in yet: trace the training step, and run it once."""
        feed = self._plugin.feed
        assert feed is not None
        batch = feed.stand_in()
        if batch is None:
            return
        feed.offer(batch)
        self.model.train_function(iter(feed.get_tf_dataset()))
        self.model.reset_metrics()

    # -- epochs and batches ----------------------------------------------------------------

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        feed = self._plugin.feed
        assert feed is not None
        self._batches, self._rows = iter(feed), 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        feed = self._plugin.feed
        assert feed is not None
        feed.offer(next(self._batches, None))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        session = self._plugin.session
        before = session.progress.step if session.progress is not None else 0
        rows = session.shown.count if session.shown is not None else 0
        notify_batch_end()
        if session.progress is not None and session.progress.step > before:
            self._rows += rows

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        session = self._plugin.session
        close = getattr(self._batches, "close", None)
        if close is not None:
            # Keras may have left the epoch early, by stop_training.
            close()
        session.settle()
        progress = session.progress
        assert progress is not None
        if progress.ledger.epoch == epoch and not session.over:
            session.close_epoch()
        if logs:
            self._even_out(logs)
        if session.over:
            self.model.stop_training = True

    def _even_out(self, logs: dict[str, Any]) -> None:
        """Everyone's metrics of the training, by the samples that each of them saw."""
        names = sorted(name for name in logs if not name.startswith("val_"))
        mine = [float(self._rows), *(float(logs[name]) * self._rows for name in names)]
        total, *sums = self._plugin.all_reduce(np.array(mine), "sum")
        if total > 0:
            logs.update({name: value / total for name, value in zip(names, sums, strict=True)})

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None
        if self._caught is not None:
            self._caught.__exit__(None, None, None)
            self._caught = None
