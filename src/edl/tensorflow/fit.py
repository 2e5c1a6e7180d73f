"""`model.fit` on an elastic job: `callbacks=[edl.Callback()]`.

Keras owns the loop; the callback opens a step before each batch and commits it after. Holds:
every worker is in the same epoch, also one that joined in the middle of it; and what Keras tells
its other callbacks at an epoch's end is the same on every worker, and what they remember of earlier
epochs follows a worker that joins, so that they decide alike.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from edl.errors import UsageError
from edl.plugin.face import notify_batch_end
from edl.tensorflow.dataset import Stepped
from edl.tensorflow.optimizer import is_elastic
from edl.tensorflow.plugin import Plugin
from edl.tensorflow.registered import is_remembered

__all__ = ["Callback"]

_log = logging.getLogger(__name__)

# They tell what happens here, and decide nothing.
_TELLERS = (
    keras.callbacks.History,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
)


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
        others, told = _fitting()
        self._check_data(told)
        self._check()
        self._warn_of_early(others)
        plugin.memories.begin(
            other
            for other in others
            if other is not self and not isinstance(other, _TELLERS) and not is_remembered(other)
        )
        plugin.add_model(model, model.optimizer)
        plugin.rehearsal = self._rehearse
        plugin.session.teller.epochs = self.params["epochs"]
        comes = plugin.session.progress is None
        progress = plugin.session.enter()
        if comes:
            plugin.arrived = progress.step > 0 or not progress.generation.founding
        self._tell_if_done(progress.ledger.epoch)
        # Where a worker that joins begins; Keras has this for whoever restores a backup.
        model._initial_epoch = progress.ledger.epoch
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        # The end of an epoch is no surprise here.
        warnings.filterwarnings("ignore", message="Your input ran out of data")

    def _tell_if_done(self, epoch: int) -> None:
        epochs = self.params["epochs"]
        if self._plugin.memories.fits > 1 and epoch >= epochs:
            _log.warning(
                "model.fit(epochs=%d) has nothing to do: epochs are counted over the whole job, "
                "which has done %d; a second fit that goes on for %d more has epochs=%d",
                *(epochs, epoch, epochs, epoch + epochs),
            )

    def _check_data(self, told: Mapping[str, Any]) -> None:
        plugin = self._plugin
        if isinstance(told.get("x"), Stepped):
            plugin.feed = told["x"]
        elif "x" in told or plugin.feed is None:
            raise UsageError(
                "model.fit needs data that EDL can share out: edl.DataLoader(...), or "
                "shards.batches(...) of an elastic_shard_generator with batch_size; not "
                f"{type(told.get('x')).__name__}"
            )
        if told.get("class_weight") is not None:
            raise UsageError(
                "class_weight is not for data that EDL shares out: give every sample its weight, "
                "edl.DataLoader((x, y, weights), ...)"
            )

    def _warn_of_early(self, others: Sequence[Any]) -> None:
        early = others[: others.index(self)] if self in others else ()
        for other in early:
            if type(other).on_epoch_end is not keras.callbacks.Callback.on_epoch_end:
                _log.warning(
                    "%s stands before edl.Callback() in callbacks, so at an epoch's end it sees "
                    "this worker's metrics alone, and may decide otherwise than other workers'",
                    type(other).__name__,
                )

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
        if self._plugin.arrived:
            # The job is in this epoch: what callbacks do at its beginning is in what came from it,
            # be it memories or a learning rate, and would be done twice.
            self._plugin.hold(heavy=False)
            self._plugin.hold(heavy=True)

    def _go_on(self) -> None:
        """All callbacks have begun the epoch that this worker came into."""
        if self._plugin.arrived:
            self._plugin.arrived = False
            self._plugin.put_back()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        feed = self._plugin.feed
        assert feed is not None
        self._go_on()
        feed.offer(next(self._batches, None))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        session = self._plugin.session
        before = session.progress.step if session.progress is not None else 0
        rows = session.shown.count if session.shown is not None else 0
        notify_batch_end()
        if session.progress is not None and session.progress.step > before:
            self._rows += rows
        if not rows and not self._rows:
            # Of no sample that counts: a new worker's first batch is a stand-in.
            self.model.reset_metrics()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        session = self._plugin.session
        self._go_on()
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
            return
        # Keras had begun an epoch that the job does not have; its zeros would be the best ever.
        for name in names:
            del logs[name]
        _log.warning(
            "model.fit of another worker ended before this one's: its callbacks stopped the "
            "training, and those here did not"
        )

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None
        self._plugin.memories.end()
        if self._caught is not None:
            self._caught.__exit__(None, None, None)
            self._caught = None


def _fitting() -> tuple[Sequence[Any], Mapping[str, Any]]:
    """All callbacks, and what `model.fit` was given; nothing where something else calls them.

    Keras tells a callback nothing of the others, but its list of them is who calls.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            above = frame.f_back
            fits = above is not None and above.f_code.co_name == "fit"
            return caller.callbacks, dict(above.f_locals) if fits and above else {}
        frame = frame.f_back
    return (), {}
