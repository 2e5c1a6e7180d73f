"""A newcomer gets model, optimizer and registered state bit for bit."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from edl.errors import UsageError
from edl.runtime.framework import Group
from edl.torch.optimizer import _make_state
from edl.torch.state import State
from tests.integration.rings import build_ring, in_threads

pytestmark = pytest.mark.paired

Make = Callable[[Any], torch.optim.Optimizer]


def net(seed: int, *, odd: bool = False) -> Any:
    torch.manual_seed(seed)
    layers: list[torch.nn.Module] = [
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 600),
        torch.nn.Linear(600, 600),
    ]
    model: Any = torch.nn.Sequential(*layers)
    if odd:
        model[0].to(memory_format=torch.channels_last)
        model[3].to(torch.float64)
        model[4].to(torch.float64)
    return model


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        dtype = model[3].weight.dtype
        hidden = model[2](model[1](model[0](torch.randn(4, 3, 8, 8)))).to(dtype)
        model[4](model[3](hidden)).square().mean().backward()
        optimizer.step()


def everything(state: State) -> list[Any]:
    found: list[Any] = [
        *(p.detach().clone() for model in state.models for p in model.parameters()),
        *(b.detach().clone() for model in state.models for b in model.buffers()),
    ]
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            found.append({k: v for k, v in group.items() if k != "params"})
            found += [
                sorted(optimizer.state.get(parameter, {}).items(), key=str)
                for parameter in group["params"]
            ]
    found += [holder.state_dict() for holder in state.registered]
    return found


def assert_same(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs)
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    elif isinstance(mine, dict):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert_same(mine[key], theirs[key])
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    else:
        assert mine == theirs or (mine != mine and theirs != theirs)


def transfer(sender: State, receivers: list[State]) -> list[dict[str, Any]]:
    groups = build_ring(1 + len(receivers), newcomers=len(receivers))
    finish = sender.start_sending(groups[0], {"step": 7, "kind": "map"})

    def receiving(state: State, group: Group) -> Callable[[], dict[str, Any]]:
        def receive() -> dict[str, Any]:
            snapshot, arrived = state.start_receiving(group)
            arrived()
            return snapshot

        return receive

    *snapshots, sent = in_threads(
        [
            *(receiving(state, group) for state, group in zip(receivers, groups[1:], strict=True)),
            lambda: {"bytes": finish().bytes},
        ]
    )
    assert sent["bytes"] > 0
    return snapshots


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-3, amsgrad=True),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters()),
    "adadelta": lambda m: torch.optim.Adadelta(m.parameters()),
    "radam": lambda m: torch.optim.RAdam(m.parameters()),
    "groups": lambda m: torch.optim.AdamW(
        [{"params": m[0].parameters(), "lr": 0.5}, {"params": m[4].parameters()}], lr=1e-3
    ),
    "lbfgs": lambda m: torch.optim.LBFGS(m[4].parameters(), max_iter=2),
}


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_arrives_bit_equal(name: str, steps: int) -> None:
    make = OPTIMIZERS[name]
    sender_model, receiver_model = net(1), net(2)
    sender_optimizer, receiver_optimizer = make(sender_model), make(receiver_model)
    if name == "lbfgs" and steps:
        rows = torch.randn(4, 600)

        def closure() -> Any:
            sender_optimizer.zero_grad()
            loss = sender_model[4](rows).square().mean()
            loss.backward()
            return loss.item()

        sender_optimizer.step(closure)
    else:
        train(sender_model, sender_optimizer, steps)
    sender = State([sender_model], [sender_optimizer], [])
    receiver = State([receiver_model], [receiver_optimizer], [])
    assert transfer(sender, [receiver]) == [{"step": 7, "kind": "map"}]
    assert_same(everything(receiver), everything(sender))
    if name != "lbfgs":
        # And both go on alike.
        for model, optimizer in (
            (sender_model, sender_optimizer),
            (receiver_model, receiver_optimizer),
        ):
            torch.manual_seed(3)
            train(model, optimizer, 2)
        assert_same(everything(receiver), everything(sender))


def test_a_receiver_that_has_trained_already_is_overwritten() -> None:
    sender_model, receiver_model = net(1), net(2)
    make = OPTIMIZERS["adam"]
    sender, receiver = (State([m], [make(m)], []) for m in (sender_model, receiver_model))
    train(receiver_model, receiver.optimizers[0], 5)
    transfer(sender, [receiver])
    assert_same(everything(receiver), everything(sender))
    assert not receiver.optimizers[0].state


def test_one_transfer_serves_several_newcomers_and_odd_layouts() -> None:
    sender_model = net(1, odd=True)
    states = [
        State([m], [OPTIMIZERS["momentum"](m)], [])
        for m in (sender_model, net(2, odd=True), net(3, odd=True))
    ]
    train(sender_model, states[0].optimizers[0], 2)
    transfer(states[0], states[1:])
    for receiver in states[1:]:
        assert_same(everything(receiver), everything(states[0]))
        first: Any = receiver.models[0]
        weight = first[0].weight
        assert weight.is_contiguous(memory_format=torch.channels_last)


class Notes:
    """A registered object of the user's own."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.kept

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.kept = state_dict


def test_registered_objects_arrive_with_their_types() -> None:
    model = net(1)
    states = []
    for m in (model, net(2)):
        optimizer = OPTIMIZERS["sgd"](m)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 2, 5])
        states.append(State([m], [optimizer], [schedule, Notes()]))
    notes = states[0].registered[1]
    notes.load_state_dict(
        {
            "best": float("-inf"),
            "none": None,
            "big": 1 << 90,
            "nested": [(1, "two", b"3"), {4.5, 6.5}],
            "counter": Counter({2: 2, 5: 1}),
            "ordered": OrderedDict(b=1, a=2),
            "tensor": torch.arange(5, dtype=torch.int16),
            "half": torch.randn(3).to(torch.bfloat16),
            "dtype": torch.float16,
            "empty": torch.zeros(0, 3),
        }
    )
    for _ in range(3):
        states[0].optimizers[0].step()
        states[0].registered[0].step()  # type: ignore[attr-defined]
    transfer(states[0], [states[1]])
    assert_same(everything(states[1]), everything(states[0]))


def test_state_that_cannot_travel_is_named() -> None:
    notes = Notes()
    notes.kept = {"callback": print}
    state = State([net(1)], [], [notes])
    with pytest.raises(UsageError, match=r"Notes\.state_dict\(\)\['callback'\]"):
        state.start_sending(build_ring(1)[0], {})


def test_another_model_is_refused() -> None:
    receiver = State([torch.nn.Linear(2, 2)], [], [])
    sender = State([torch.nn.Linear(3, 2)], [], [])
    groups = build_ring(2, newcomers=1)
    sender.start_sending(groups[0], {"step": 0})
    with pytest.raises(UsageError, match="this worker one of"):
        receiver.start_receiving(groups[1])


def test_a_learning_rate_that_the_script_sets_in_the_first_step_stays() -> None:
    states = []
    for seed in (1, 2):
        model = net(seed)
        states.append(State([model], [torch.optim.SGD(model.parameters(), lr=0.5)], []))
    groups = build_ring(2, newcomers=1)
    finish = states[0].start_sending(groups[0], {"step": 7})
    (received,) = in_threads([lambda: states[1].start_receiving(groups[1])])
    mine = states[1].optimizers[0].param_groups[0]
    assert mine["lr"] == 0.5
    # As in a loop's body, on every worker, while the state still travels.
    for state in states:
        state.optimizers[0].param_groups[0]["lr"] = 0.25
    in_threads([finish, received[1]])
    assert mine["lr"] == 0.25
    assert_same(everything(states[1]), everything(states[0]))


@pytest.mark.parametrize("hooked", [False, True])
def test_a_newcomers_optimizer_makes_its_state_beforehand(hooked: bool) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    called: list[Any] = []
    if hooked:
        optimizer.register_step_pre_hook(lambda *args: called.append(args))
    _make_state(optimizer, type(optimizer), optimizer.step)
    assert all(p.grad is None for p in model.parameters())
    # What a script hangs on its steps must not see one that never was.
    assert bool(optimizer.state) is not hooked
    assert not called


def test_state_is_received_in_the_memory_that_is_there() -> None:
    sender, receiver = State(), State()
    for state, steps in ((sender, 3), (receiver, 1)):
        model = net(seed=steps)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        train(model, optimizer, steps)
        state.models.append(model)
        state.optimizers.append(optimizer)
    before = {v.data_ptr() for s in receiver.optimizers[0].state.values() for v in s.values()}
    transfer(sender, [receiver])
    after = {v.data_ptr() for s in receiver.optimizers[0].state.values() for v in s.values()}
    assert after == before
    assert_same(everything(receiver), everything(sender))
