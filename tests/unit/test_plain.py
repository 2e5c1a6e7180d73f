"""The plain plug-in in one process: what an update changes, and what is taken back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edl.errors import UsageError
from edl.plain.loader import ArrayLoader, collated
from edl.plain.plugin import Plugin
from edl.plugin.adapter import Kind, Variable
from edl.plugin.buckets import ArrayBucket, bucketed
from edl.plugin.reducing import Reduction


def loader_of(plugin: Plugin, dataset: Any, batch: int = 4, **options: Any) -> ArrayLoader:
    given = {"seed": 0, "shuffle": False, "drop_last": False, "epochs": 1, "micro_batch": None}
    return ArrayLoader(plugin, dataset, batch, collate_fn=None, **{**given, **options})


def train(micro_batch: int | None) -> tuple[Any, Any, int]:
    """Two epochs with momentum; how often the loop's body ran."""
    plugin = Plugin(None, Reduction())
    w, m = np.zeros(3), np.zeros(3)
    plugin.share(Kind.PARAMETER, {"w": w})
    plugin.share(Kind.SLOT, {"m": m})
    x = np.random.default_rng(0).standard_normal((10, 3))
    bodies = 0
    for rows in loader_of(plugin, x, epochs=2, micro_batch=micro_batch):
        bodies += 1
        (mean,) = plugin.average({"w": w - rows.mean(0)}).values()
        m *= 0.9
        m += mean
        w -= 0.1 * m
        plugin.before_commit()
        plugin.session.end_step(None)
    return w, m, bodies


def test_micro_batches_make_the_same_updates() -> None:
    w, m, bodies = train(None)
    same_w, same_m, more = train(1)
    assert (bodies, more) == (6, 20)
    np.testing.assert_allclose(same_w, w, rtol=1e-12)
    np.testing.assert_allclose(same_m, m, rtol=1e-12)


def test_two_averages_of_one_batch_are_kept_apart_by_micro_batches() -> None:
    plugin = Plugin(None, Reduction())
    plugin.share(Kind.PARAMETER, {"a": np.zeros(()), "b": np.zeros(())})
    seen = []
    for rows in loader_of(plugin, np.arange(4.0), micro_batch=2):
        first = plugin.average({"a": rows.mean()})
        second = plugin.average({"b": 10 * rows.mean()})
        seen.append({name: float(v) for name, v in {**first, **second}.items()})
        plugin.before_commit()
        plugin.session.end_step(None)
    assert seen == [{"a": 0.0, "b": 0.0}, {"a": 1.5, "b": 15.0}]


def test_an_update_that_does_not_count_is_taken_back_when_the_loop_is_left() -> None:
    plugin = Plugin(None, Reduction())
    w, seen = np.ones(2), np.zeros(1)
    plugin.share(Kind.PARAMETER, {"w": w})
    plugin.share(Kind.BUFFER, {"seen": seen})
    for _ in loader_of(plugin, np.zeros((4, 2)), micro_batch=2):
        (zero,) = plugin.average({"w": np.ones(2)}).values()
        assert not zero.any()
        w += 5.0
        seen += 1.0
        break
    plugin.session.settle()
    assert w.tolist() == [1.0, 1.0]
    # A buffer is what the worker saw, whether or not the step counts.
    assert seen.tolist() == [1.0]


@pytest.mark.parametrize(
    ("kind", "array", "told"),
    [
        (Kind.PARAMETER, [1.0], "w is a list; share NumPy arrays"),
        (Kind.PARAMETER, np.arange(3), "has no gradient; give it to edl.share_state"),
        (Kind.SLOT, np.broadcast_to(1.0, 3), "w cannot be written to"),
    ],
)
def test_what_cannot_be_shared_is_refused(kind: Kind, array: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Plugin(None, Reduction()).share(kind, {"w": array})


def test_a_name_is_shared_once_and_before_the_loop() -> None:
    plugin = Plugin(None, Reduction())
    plugin.share(Kind.PARAMETER, {"w": np.zeros(1)})
    with pytest.raises(UsageError, match="w is shared already"):
        plugin.share(Kind.SLOT, {"w": np.zeros(1)})
    loader = iter(loader_of(plugin, np.zeros((4, 2))))
    next(loader)
    with pytest.raises(UsageError, match="before the training loop"):
        plugin.share(Kind.SLOT, {"m": np.zeros(1)})


def test_a_gradient_of_nothing_that_is_shared_is_refused() -> None:
    plugin = Plugin(None, Reduction())
    plugin.share(Kind.SLOT, {"m": np.zeros(2)})
    next(iter(loader_of(plugin, np.zeros((4, 2)))))
    with pytest.raises(UsageError, match="a gradient for 'm', which is no parameter"):
        plugin.average({"m": np.ones(2)})


@pytest.mark.parametrize("in_place", [True, False])
def test_an_update_of_other_arrays_is_noticed_once(
    in_place: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Plugin(None, Reduction())
    w = np.zeros(2)
    plugin.share(Kind.PARAMETER, {"w": w})
    for _ in loader_of(plugin, np.zeros((8, 2))):
        (mean,) = plugin.average({"w": np.ones(2)}).values()
        if in_place:
            w -= mean
        plugin.before_commit()
        plugin.session.end_step(None)
    told = [record for record in caplog.records if "change them in place" in record.message]
    assert len(told) == (0 if in_place else 1)


# -- batches ---------------------------------------------------------------------------------------


def first_of(dataset: Any) -> Any:
    return next(iter(loader_of(Plugin(None, Reduction()), dataset)))


def test_rows_of_arrays_side_by_side() -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    assert first_of(x).tolist() == x[:4].tolist()
    both = first_of((x, y))
    assert [part.tolist() for part in both] == [x[:4].tolist(), [0, 1, 2, 3]]
    named = first_of({"x": x, "y": y})
    assert {name: part.tolist() for name, part in named.items()} == {
        "x": x[:4].tolist(),
        "y": [0, 1, 2, 3],
    }
    with pytest.raises(UsageError, match=r"arrays of \[5, 6\] rows side by side"):
        first_of((x, y[:5]))


def test_samples_are_laid_side_by_side() -> None:
    samples = [({"x": np.ones(2) * i, "name": f"n{i}"}, i) for i in range(3)]
    named, numbers = collated(samples)
    assert numbers.tolist() == [0, 1, 2]
    assert named["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert named["name"] == ["n0", "n1", "n2"]
    assert first_of([(i, float(i)) for i in range(9)])[0].tolist() == [0, 1, 2, 3]


# -- rows ------------------------------------------------------------------------------------------


def variable(name: str, *shape: int, dtype: str = "float32") -> Variable:
    return Variable(name=name, kind=Kind.PARAMETER, shape=shape, dtype=np.dtype(dtype))


def test_every_gradient_begins_at_a_multiple_of_64_bytes() -> None:
    bucket = ArrayBucket([variable("a", 3), variable("b", 5, 7), variable("c")], {})
    assert [view.ctypes.data % 64 for view in bucket.views] == [0, 0, 0]
    assert [view.shape for view in bucket.views] == [(3,), (5, 7), ()]


def test_a_row_has_one_dtype_and_respects_the_limit() -> None:
    known = [variable("a", 10), variable("b", 10), variable("c", 4, dtype="float64")]
    found = [[v.name for v in bucket.variables] for bucket in bucketed(known, {}, 80)]
    assert found == [["a", "b"], ["c"]]
    with pytest.raises(UsageError, match="'n' is of int32"):
        list(bucketed([variable("n", 2, dtype="int32")], {}, 80))


def test_a_row_is_weighted_and_says_which_gradients_there_were() -> None:
    gradients = {"a": np.full(3, 2.0, np.float32)}
    bucket = ArrayBucket([variable("a", 3), variable("b", 2)], gradients)
    bucket.fill(0.5, None)
    bucket.spread(bucket.tail())
    assert {name: view.tolist() for name, view in bucket.found.items()} == {"a": [1.0] * 3}
    gradients["a"][:] = np.nan
    assert not bucket.fill(0.0, None).any()
    bucket.voided(None)
    assert bucket.tail() == [0.0, 0.0, 1.0]


def test_halves_are_summed_in_float32() -> None:
    gradients = {"a": np.full(3, 2.0, np.float16)}
    bucket = ArrayBucket([variable("a", 3, dtype="float16")], gradients)
    bucket.fill(1.0, None)
    assert bucket.views[0].dtype == np.float32
    assert bucket.views[0].tolist() == [2.0] * 3
    gradients["a"][:] = 60000.0
    bucket.fill(1 / 3, None)
    assert bucket.views[0].tolist() == [20000.0] * 3


class Count:
    def __init__(self) -> None:
        self.value = 3

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def test_an_object_registered_with_same_false_is_not_compared_but_sent() -> None:
    plugin = Plugin(None, Reduction())
    plugin.register(Count(), same=False)
    assert plugin.settings() == []
    plugin.register(Count(), same=True)
    assert plugin.settings() == [("registered Count (1) value", "3.0")]
    assert len(plugin.registered) == 2
