"""Named arrays and registered objects reach a newcomer, and a checkpoint, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from edl.errors import CheckpointError, UsageError
from edl.plain.arrays import SharedArrays
from edl.plugin.adapter import Adapter, Array, Kind, Variable
from edl.plugin.snapshot import capture, install
from edl.plugin.state import ArrayState
from edl.runtime.framework import StatePath
from edl.runtime.tensorfile import Tensors, decode, encode
from tests.integration.rings import build_ring, in_threads

pytestmark = pytest.mark.paired


class Boxes:
    """As a framework may keep its variables: values that are replaced, never changed in place, and
    slots that are made late."""

    def __init__(self, values: dict[str, Array], slots: dict[str, Array]) -> None:
        self.values = dict(values)
        self.late = dict(slots)
        self.slots = set(slots)
        self.written = dict.fromkeys((*values, *slots), 0)
        self.drawn = 0

    def variables(self) -> Sequence[Variable]:
        return [
            Variable(
                name=name,
                kind=Kind.SLOT if name in self.slots else Kind.PARAMETER,
                shape=value.shape,
                dtype=value.dtype,
            )
            for name, value in self.values.items()
        ]

    def read(self, name: str) -> Array:
        value = self.values[name].view()
        value.flags.writeable = False
        return value

    def place(self, name: str) -> Array | None:
        return None

    def write(self, name: str, value: Array) -> None:
        self.values[name] = value.copy()
        self.written[name] += 1

    def version(self, name: str) -> Hashable | None:
        return self.written[name]

    def make_slots(self) -> None:
        self.values = {**self.late, **self.values}

    def held(self) -> Sequence[str]:
        return [name for name in self.values if name == "rate"]

    def about(self) -> str:
        return "boxes"

    def randomness(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def set_randomness(self, states: dict[str, Any]) -> None:
        self.drawn = states["drawn"]


class Notes:
    """A registered object of the user's own."""

    def __init__(self, **kept: Any) -> None:
        self.kept = kept

    def state_dict(self) -> dict[str, Any]:
        return dict(self.kept)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.kept = state_dict


def values(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "large": rng.standard_normal((600, 600)),
        "small": rng.standard_normal(7).astype(np.float32),
        "half": rng.standard_normal((3, 5)).astype(np.float16),
        "number": np.array(rng.standard_normal()),
        "empty": np.zeros((0, 4), np.float32),
    }


def slots(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed + 100)
    return {"moment": rng.standard_normal(9), "rate": np.array(0.1 * seed), "count": np.array(seed)}


def boxes(seed: int) -> Boxes:
    made = Boxes(values(seed), slots(seed))
    made.drawn = seed
    return made


def shared(seed: int) -> SharedArrays:
    made = SharedArrays()
    made.add(Kind.PARAMETER, values(seed))
    made.add(Kind.SLOT, {**slots(seed), "odd": np.asfortranarray(np.full((3, 4), seed))})
    made.add(Kind.BUFFER, {"mean": np.full(3, float(seed)), "seen": np.array([seed > 1])})
    return made


MAKERS: dict[str, Callable[[int], Adapter]] = {"boxes": boxes, "shared": shared}


def contents(adapter: Adapter) -> dict[str, bytes]:
    return {v.name: adapter.read(v.name).tobytes() for v in adapter.variables()}


def transfer(
    sender: ArrayState,
    receiver: ArrayState,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    aside: bool = False,
) -> dict[str, Any]:
    here, there = build_ring(2, newcomers=1)
    finish = sender.start_sending(here, {"step": 7}, extra=np.arange(3))
    arrived: list[Callable[[], Any]] = []

    def begin() -> dict[str, Any]:
        snapshot, done = receiver.start_receiving(there, aside=aside)
        arrived.append(done)
        return snapshot

    (snapshot,) = in_threads([begin])
    meanwhile()
    in_threads([finish, arrived[0]])
    assert snapshot.pop("extra").tolist() == [0, 1, 2]
    return snapshot


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_newcomer_gets_everything_bit_for_bit(kind: str, *, aside: bool) -> None:
    sender, receiver = (ArrayState(MAKERS[kind](seed), "") for seed in (1, 2))
    sender.adapter.make_slots()
    kept = {"rate": 0.5, "seen": np.arange(4), "best": float("-inf"), "of": (1, "two", None)}
    sender.registered.append(Notes(**kept))
    receiver.registered.append(notes := Notes())
    sender.adapter.read("number")
    assert transfer(sender, receiver, aside=aside) == {"step": 7}
    assert contents(receiver.adapter) == contents(sender.adapter)
    assert notes.kept["seen"].tolist() == [0, 1, 2, 3]
    assert {name: notes.kept[name] for name in ("rate", "best", "of")} == {
        name: kept[name] for name in ("rate", "best", "of")
    }


@pytest.mark.parametrize("kind", MAKERS)
def test_what_changes_behind_the_stream_is_sent_again(kind: str) -> None:
    sender, receiver = (ArrayState(MAKERS[kind](seed), "") for seed in (1, 2))
    for adapter in (sender.adapter, receiver.adapter):
        adapter.make_slots()

    def change() -> None:
        sender.adapter.write("large", np.full((600, 600), 3.0))
        sender.adapter.write("moment", np.zeros(9))

    transfer(sender, receiver, meanwhile=change)
    assert receiver.adapter.read("large")[0, 0] == 3.0
    assert contents(receiver.adapter) == contents(sender.adapter)


@pytest.mark.parametrize("heavy", [False, True])
def test_learning_rates_are_there_before_the_first_step(*, heavy: bool) -> None:
    """However much is registered; a script that writes one then does not undo the job's."""
    sender, receiver = ArrayState(boxes(1), ""), ArrayState(boxes(2), "")
    for adapter in (sender.adapter, receiver.adapter):
        adapter.make_slots()
    best = np.ones(1 << 20 if heavy else 8)
    sender.registered.append(Notes(best=best))
    receiver.registered.append(notes := Notes())
    seen = []

    def meanwhile() -> None:
        seen.append((receiver.adapter.read("rate").item(), "best" in notes.kept))
        receiver.adapter.write("rate", receiver.adapter.read("rate"))

    transfer(sender, receiver, meanwhile=meanwhile)
    assert seen == [(0.1, not heavy)]
    assert contents(receiver.adapter) == contents(sender.adapter)
    assert notes.kept["best"].tolist() == best.tolist()


def test_a_bare_transfer_brings_what_everybody_reduced_and_touches_nothing() -> None:
    sender, receiver = ArrayState(shared(1), ""), ArrayState(shared(2), "")
    receiver.registered.append(notes := Notes(mine=1))
    before = contents(receiver.adapter)
    here, there = build_ring(2, newcomers=1)
    finish = sender.start_sending(here, {"step": 7}, extra=np.arange(3), bare=True)

    def receive() -> dict[str, Any]:
        snapshot, done = receiver.start_receiving(there, aside=True)
        done()
        return snapshot

    _, snapshot = in_threads([lambda: {"sent": finish().bytes}, receive])
    assert snapshot["extra"].tolist() == [0, 1, 2]
    assert contents(receiver.adapter) == before
    assert notes.kept == {"mine": 1}


def test_arrays_are_received_in_their_own_memory() -> None:
    sender, receiver = ArrayState(shared(1), ""), ArrayState(shared(2), "")
    mine = receiver.adapter.read("large")
    transfer(sender, receiver)
    assert receiver.adapter.read("large") is mine
    assert mine.tobytes() == sender.adapter.read("large").tobytes()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda s: s.registered.append(Notes()), "0 registered, this worker 1"),
        (lambda s: setattr(s, "reduction", "other"), "this worker boxes with other"),
        (lambda s: s.adapter.values.pop("small"), "has a variable 'small'"),
        (lambda s: s.adapter.values.update(more=np.zeros(1)), "has a variable 'more'"),
        (lambda s: s.adapter.values.update(small=np.zeros(7)), "'small' is <f4"),
    ],
    ids=["registered", "reduction", "missing", "more", "dtype"],
)
def test_another_script_is_refused(spoil: Callable[[Any], None], told: str) -> None:
    sender, receiver = ArrayState(boxes(1), ""), ArrayState(boxes(2), "")
    spoil(receiver)
    here, there = build_ring(2, newcomers=1)
    sender.start_sending(here, {"step": 0})
    with pytest.raises(UsageError, match=told):
        receiver.start_receiving(there)


def test_state_that_cannot_travel_is_named() -> None:
    state = ArrayState(boxes(1), "")
    state.registered.append(Notes(callback=print))
    path: StatePath = build_ring(1)[0]
    with pytest.raises(UsageError, match=r"Notes\.state_dict\(\)\['callback'\].*may hold arrays"):
        state.start_sending(path, {})


# -- checkpoints -----------------------------------------------------------------------------------


def through_files(tensors: Tensors) -> Tensors:
    return {file: decode(b"".join(encode(arrays))) for file, arrays in tensors.items()}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_checkpoint_brings_everything_back(kind: str) -> None:
    saved, loaded = (ArrayState(MAKERS[kind](seed), "") for seed in (1, 2))
    saved.adapter.make_slots()
    odd = {"complex": np.array([1 + 2j]), "times": np.array(["2020-01-02"], "datetime64[D]")}
    saved.registered.append(Notes(step=3, infinite=float("inf"), raw=b"\0\xff", **odd))
    loaded.registered.append(notes := Notes())
    random.seed(4)
    np.random.seed(5)
    tensors, skeleton = capture(saved)
    before = contents(saved.adapter)
    drawn = [random.random(), float(np.random.rand())]
    # Copies: the training goes on at once.
    saved.adapter.write("small", np.zeros(7, np.float32))
    install(loaded, through_files(tensors), skeleton)
    assert contents(loaded.adapter) == before
    assert [random.random(), float(np.random.rand())] == drawn
    assert loaded.adapter.randomness() == saved.adapter.randomness()
    assert (notes.kept["step"], notes.kept["infinite"], notes.kept["raw"]) == (
        *(3, float("inf"), b"\0\xff"),
    )
    for name, array in odd.items():
        assert notes.kept[name].dtype == array.dtype
        assert notes.kept[name].tolist() == array.tolist()


def test_a_checkpoints_model_lies_under_the_variables_names() -> None:
    tensors, _ = capture(ArrayState(shared(1), ""))
    assert set(tensors["model"]) == {*values(1), "mean", "seen"}
    assert tensors["model"]["half"].dtype == "F16"
    assert {"slot.moment", "slot.rate", "slot.count", "slot.odd"} <= set(tensors["state"])


def test_a_checkpoint_of_something_else_changes_nothing() -> None:
    tensors, skeleton = capture(ArrayState(shared(1), ""))
    for spoilt, told in (
        ({}, CheckpointError),
        ({**skeleton, "variables": skeleton["variables"][1:]}, UsageError),
        ({**skeleton, "about": "boxes"}, UsageError),
        ({**skeleton, "registered": [None]}, UsageError),
        ({**skeleton, "arrays": [{"file": "model", "name": "gone"}]}, CheckpointError),
    ):
        state = ArrayState(shared(2), "")
        before = contents(state.adapter)
        with pytest.raises(told):
            install(state, tensors, spoilt)
        assert contents(state.adapter) == before
