"""A training goes on from its checkpoint as if nothing had happened, bit for bit."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edl.errors import CheckpointError, UsageError
from edl.runtime.checkpoint import Checkpoint, CheckpointFolder
from edl.torch.snapshot import capture, install
from edl.torch.state import State
from tests.integration.test_state import OPTIMIZERS, Notes, assert_same, everything, net, train

pytestmark = pytest.mark.paired

Make = Callable[[Any], torch.optim.Optimizer]


def written(state: State, folder: Path) -> Checkpoint:
    """The state as a checkpoint that has been to the disk and back."""
    tensors, skeleton = capture(state)
    place = CheckpointFolder(str(folder))
    place.save(7, tensors, {"torch": skeleton})
    found = place.latest()
    assert found is not None
    return found


def restore(state: State, found: Checkpoint, *, randomness: bool = True) -> None:
    install(state, found.tensors, found.extra["torch"], randomness=randomness)


def draws() -> list[Any]:
    return [torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.rand()]


# -- there and back ----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "lbfgs"])
def test_any_optimizer_comes_back_bit_equal(tmp_path: Path, optimizer: str, steps: int) -> None:
    make = OPTIMIZERS[optimizer]
    model, other = net(1), net(2)
    state, fresh = State([model], [make(model)]), State([other], [make(other)])
    train(model, state.optimizers[0], steps)
    train(other, fresh.optimizers[0], 1)
    restore(fresh, written(state, tmp_path))
    assert_same(everything(fresh), everything(state))
    for one, its in ((model, state), (other, fresh)):
        torch.manual_seed(3)
        train(one, its.optimizers[0], 2)
    assert_same(everything(fresh), everything(state))


def two_of_everything(seed: int) -> State:
    """Two models, two optimizers, a schedule, an average of weights, and notes."""
    first, second = net(seed), net(seed + 10, odd=True)
    optimizers = [OPTIMIZERS["adamw"](first), OPTIMIZERS["momentum"](second)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizers[1], max_lr=0.5, total_steps=30)
    average = torch.optim.swa_utils.AveragedModel(
        first, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    return State([first, second], optimizers, [schedule, average, Notes()])


def go_on(state: State, steps: int) -> None:
    schedule, average, notes = state.registered
    assert isinstance(schedule, torch.optim.lr_scheduler.OneCycleLR)
    assert isinstance(average, torch.optim.swa_utils.AveragedModel)
    for _ in range(steps):
        for model, optimizer in zip(state.models, state.optimizers, strict=True):
            train(model, optimizer, 1)
        schedule.step()
        average.update_parameters(state.models[0])
        notes.load_state_dict({"drawn": draws(), "best": float("-inf"), "raw": b"\0\xff"})


def test_a_whole_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    state = two_of_everything(1)
    go_on(state, 3)
    found = written(state, tmp_path)
    go_on(state, 3)
    # Seeded otherwise, and trained already: everything is to be overwritten.
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    fresh = two_of_everything(50)
    go_on(fresh, 1)
    restore(fresh, found)
    go_on(fresh, 3)
    assert_same(everything(fresh), everything(state))


def test_random_generators_come_back_unless_they_are_not_wanted(tmp_path: Path) -> None:
    random.gauss(0, 1)
    np.random.standard_normal()
    found = written(State(), tmp_path)
    expected = draws()
    restore(State(), found)
    assert draws() == expected
    later = draws()
    restore(State(), found)
    draws()
    restore(State(), found, randomness=False)
    assert draws() == later


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4)], ids=str)
def test_any_tensor_comes_back(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    model = torch.nn.Module()
    model.register_buffer("kept", tensor)
    model.register_buffer("passing", tensor.clone(), persistent=False)
    notes = Notes()
    notes.kept = {"tensor": tensor.clone(), "array": np.arange(3, dtype=np.uint16)}
    found = written(State([model], [], [notes]), tmp_path)
    empty = torch.nn.Module()
    empty.register_buffer("kept", torch.ones(shape).to(dtype))
    empty.register_buffer("passing", torch.ones(shape).to(dtype), persistent=False)
    fresh = State([empty], [], [Notes()])
    restore(fresh, found)
    # Not every dtype can be compared by torch, but their bytes can.
    for mine, theirs in (
        (empty.kept, tensor),
        (empty.passing, tensor),
        (fresh.registered[0].state_dict()["tensor"], tensor),
    ):
        assert isinstance(mine, torch.Tensor)
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        if tensor.numel():
            assert torch.equal(
                mine.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8)
            )
    assert fresh.registered[0].state_dict()["array"].tolist() == [0, 1, 2]


class Tied(torch.nn.Module):
    """An output layer that shares its weight with the embedding, and views of other kinds."""

    wide: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(6, 4)
        self.output = torch.nn.Linear(4, 6, bias=False)
        self.output.weight = self.embedding.weight
        self.turned = torch.nn.Parameter(torch.randn(3, 5).t())
        whole = torch.randn(8)
        self.register_buffer("front", whole[:4])
        self.register_buffer("every_other", whole[::2])
        self.register_buffer("wide", torch.randn(1, 3).expand(2, 3))


def test_tied_and_oddly_laid_out_tensors_come_back(tmp_path: Path) -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    model.output(model.embedding(torch.tensor([1, 2]))).sum().backward()
    optimizer.step()
    tensors, _ = capture(State([model]))
    assert tensors["model"]["output.weight"].data is tensors["model"]["embedding.weight"].data
    found = written(State([model], [optimizer]), tmp_path)
    fresh = Tied()
    other = torch.optim.AdamW(fresh.parameters())
    fresh.wide = fresh.wide.clone()
    restore(State([fresh], [other]), found)
    assert fresh.output.weight is fresh.embedding.weight
    assert_same(dict(fresh.state_dict()), dict(model.state_dict()))
    assert fresh.turned.stride() == model.turned.stride()
    assert_same(everything(State([], [other])), everything(State([], [optimizer])))
    plain = Tied()
    plain.wide = plain.wide.clone()
    loaded = load_file(tmp_path / "step-000000000007" / "model.safetensors")
    plain.load_state_dict(loaded, strict=True)
    assert_same(dict(plain.state_dict()), dict(model.state_dict()))


def test_a_modules_extra_state_comes_back(tmp_path: Path) -> None:
    class Counting(torch.nn.Linear):
        seen: Any = 0

        def get_extra_state(self) -> Any:
            return {"seen": self.seen, "scale": torch.full((2,), 0.5)}

        def set_extra_state(self, state: Any) -> None:
            self.seen = state["seen"]

    model, fresh = (torch.nn.Sequential(Counting(2, 2)) for _ in range(2))
    counting: Any = model[0]
    counting.seen = 41
    restore(State([fresh]), written(State([model]), tmp_path))
    copied: Any = fresh[0]
    assert copied.seen == 41
    with pytest.raises(UsageError, match="extra state for"):
        restore(
            State([torch.nn.Sequential(torch.nn.Linear(2, 2))]), written(State([model]), tmp_path)
        )


def test_training_may_go_on_while_the_copy_is_written() -> None:
    model = net(1)
    state = State([model], [OPTIMIZERS["adam"](model)])
    train(model, state.optimizers[0], 1)
    tensors, _ = capture(state)
    before = {f: {n: bytes(a.data) for n, a in named.items()} for f, named in tensors.items()}
    train(model, state.optimizers[0], 2)
    assert before == {
        f: {n: bytes(a.data) for n, a in named.items()} for f, named in tensors.items()
    }


def test_names_are_readable_and_never_taken_twice() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    notes = Notes()
    alike: dict[Any, Any] = {1: torch.zeros(1), "1": torch.ones(1)}
    notes.kept = alike
    tensors, _ = capture(State([model], [optimizer], [notes]))
    assert list(tensors["model"]) == ["weight", "bias"]
    state = tensors["state"]
    assert {"optimizer.0.state.0.momentum_buffer", "registered.0.Notes.1", "random.torch"} <= set(
        state
    )
    assert sorted(bytes(a.data)[3] for n, a in state.items() if "Notes" in n) == [0, 0x3F]


# -- without EDL -------------------------------------------------------------------------------

PLAIN = """
import sys

# From here on, `import edl` fails as it does where EDL is not installed.
sys.modules["edl"] = None
import torch
from safetensors.torch import load_file

torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
model.load_state_dict(load_file(sys.argv[1]), strict=True)
model.eval()
print(model(torch.ones(1, 4)).tolist())
"""


def test_plain_torch_loads_the_model_without_edl(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    model(torch.randn(8, 4))
    written(State([model]), tmp_path)
    model.eval()
    answer = subprocess.run(
        [
            *(sys.executable, "-I", "-c", PLAIN),
            str(tmp_path / "step-000000000007" / "model.safetensors"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == str(model(torch.ones(1, 4)).tolist())


# -- refused -----------------------------------------------------------------------------------


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def grouped(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)


def linear(size: int = 2, make: Make = sgd, **options: Any) -> State:
    model = torch.nn.Linear(size, 2, **options)
    return State([model], [make(model)])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (State(), "1 models, this script 0"),
        (State([torch.nn.Linear(2, 2)]), "1 optimizers, this script 0"),
        (linear(3), r"\(2, 2\) in the checkpoint and torch.float32 \(2, 3\)"),
        (linear(dtype=torch.float64), r"torch.float32 \(2, 2\) in the checkpoint"),
        (linear(bias=False), "checkpoint's model has 'bias', the script's has not"),
        (linear(make=adam), "optimizer is a SGD, this script's a Adam; resume with the optimizer"),
        (linear(make=grouped), r"groups of \[2\] parameters, this script's of \[1, 1\]"),
    ],
)
def test_another_script_is_refused_before_it_is_changed(
    tmp_path: Path, other: State, words: str
) -> None:
    found = written(linear(), tmp_path)
    before = everything(other)
    with pytest.raises(UsageError, match=words):
        restore(other, found)
    assert_same(everything(other), before)


def test_values_that_make_no_sense_are_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    found = written(linear(), tmp_path)
    described = found.extra["torch"]["tensors"]
    for skeleton in (
        {},
        {**found.extra["torch"], "tensors": [{**d, "dtype": "load"} for d in described]},
        {**found.extra["torch"], "tensors": [{**d, "shape": [99]} for d in described]},
        {**found.extra["torch"], "tensors": described[:1]},
        {**found.extra["torch"], "models": [None]},
    ):
        with pytest.raises(CheckpointError, match="makes no sense to this plug-in"):
            install(linear(), found.tensors, skeleton)


def test_what_a_checkpoint_cannot_hold_is_named() -> None:
    notes = Notes()
    notes.kept = {"sparse": torch.eye(3).to_sparse()}
    with pytest.raises(UsageError, match=r"registered\.0\.Notes\.sparse is a torch\.sparse_coo"):
        capture(State([], [], [notes]))
    notes.kept = {"callback": print}
    with pytest.raises(UsageError, match="nor be kept in a checkpoint"):
        capture(State([], [], [notes]))
