"""Digests of replicas: equal where replicas are, different where anything differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edl.runtime.digests import combined, digest_bytes, flat_settings, part_of, slices_of
from edl.torch.digests import StateDigests, compared, hyperparameters, scalar, weighted_sum
from edl.torch.state import State, load_optimizer
from tests.seeded.cast import drawn


def nothing(value: Any) -> None:
    """No framework: there are no arrays."""


def test_equal_numbers_read_alike_whatever_their_type() -> None:
    kinds = [0.5, np.float64(0.5), torch.tensor(0.5), np.array(0.5)]
    assert {tuple(flat_settings("lr", value, scalar)) for value in kinds} == {(("lr", "0.5"),)}
    assert list(flat_settings("n", True, nothing)) == list(flat_settings("n", 1.0, nothing))


def test_settings_are_found_in_nested_values_and_large_arrays_are_not() -> None:
    value = {"b": (1, [2.5]), "a": {"deep": None}, "big": torch.ones(99), "f": len}
    assert list(flat_settings("x", value, scalar)) == [
        ("x a deep", "None"),
        ("x b[0]", "1.0"),
        ("x b[1][0]", "2.5"),
    ]


def test_large_whole_numbers_stay_apart() -> None:
    one, other = (combined(flat_settings("n", 2**60 + k, nothing)) for k in (0, 1))
    assert one != other


def test_a_digest_has_63_bits_and_is_never_zero() -> None:
    digests = [digest_bytes(bytes([n])) for n in range(256)]
    assert len(set(digests)) == 256
    assert all(0 < digest < 1 << 63 for digest in digests)


@drawn
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 20))
def test_the_parts_cover_every_element_once(sizes: list[int], parts: int) -> None:
    starts = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    seen = [
        (index, element)
        for part in range(parts)
        for index, low, high in slices_of(starts, *part_of(starts[-1], part, parts))
        for element in range(low, high)
    ]
    assert sorted(seen) == [(i, e) for i, size in enumerate(sizes) for e in range(size)]
    assert len(seen) == len(set(seen))


def replica(kind: str = "adam") -> tuple[State, torch.nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Linear(5, 4)
    made: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if kind == "sgd":
        made = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State(models=[model], optimizers=[made])
    model(torch.ones(2, 5)).sum().backward()
    made.step()
    return state, model, made


def parts_of(state: State, parts: int) -> list[list[tuple[str, str]]]:
    digests = StateDigests(state)
    return [digests.digests(part, parts)() for part in range(parts)]


def test_equal_replicas_have_equal_digests() -> None:
    assert parts_of(replica()[0], 7) == parts_of(replica()[0], 7)


@pytest.mark.parametrize("what", ["weight", "bias", "exp_avg", "exp_avg_sq", "step"])
def test_one_changed_element_shows_in_exactly_one_part(what: str) -> None:
    before = parts_of(replica()[0], 7)
    state, model, optimizer = replica()
    tensor = getattr(model, what, None)
    tensor = optimizer.state[model.weight][what] if tensor is None else tensor
    with torch.no_grad():
        tensor.reshape(-1)[-1] += 1e-3
    after = parts_of(state, 7)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_state_that_exists_here_only_shows() -> None:
    state, _model, optimizer = replica()
    fresh = StateDigests(state).digests(0, 1)()
    optimizer.state.clear()
    bare = StateDigests(state).digests(0, 1)()
    assert [name for name, _ in bare] == ["weight", "bias"]
    assert [pair for pair in fresh if "(" not in pair[0]] == bare


def test_a_received_optimizer_has_the_senders_digests() -> None:
    source, _, optimizer = replica()
    target, _, fresh = replica()
    state = optimizer.state_dict()
    copied = {
        "param_groups": state["param_groups"],
        "state": {k: {n: v.clone() for n, v in row.items()} for k, row in state["state"].items()},
    }
    load_optimizer(fresh, copied)
    assert parts_of(source, 3) == parts_of(target, 3)
    assert list(hyperparameters([optimizer])) == list(hyperparameters([fresh]))


def test_a_changed_rate_shows_in_the_hyperparameters() -> None:
    _, _, optimizer = replica("sgd")
    before = dict(hyperparameters([optimizer]))
    optimizer.param_groups[0]["lr"] = torch.tensor(0.2)
    after = dict(hyperparameters([optimizer]))
    assert {name for name in after if before[name] != after[name]} == {"optimizer 0 group 0 lr"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
def test_the_sum_for_devices_sees_changes_and_places(dtype: torch.dtype) -> None:
    flat = torch.zeros(10_000).to(dtype)
    flat[5] = 1
    sums = {int(weighted_sum(flat))}
    for place in (6, 4095, 4096, 4101, 9999):
        moved = torch.zeros(10_000).to(dtype)
        moved[place] = 1
        sums.add(int(weighted_sum(moved)))
    doubled = flat.clone()
    doubled[5] = 2
    sums |= {int(weighted_sum(doubled)), int(weighted_sum(flat[:9_999]))}
    assert len(sums) == 8


def test_blocks_that_are_swapped_change_the_sum_for_devices() -> None:
    blocks = torch.randn(3, 4096, generator=torch.Generator().manual_seed(0))
    swapped = blocks[[1, 0, 2]]
    assert int(weighted_sum(blocks.reshape(-1))) != int(weighted_sum(swapped.reshape(-1)))


def test_unusual_tensors_have_a_digest() -> None:
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(torch.ones(3, 4).to(torch.bfloat16).t())
    model.b = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    model.c = torch.nn.Parameter(torch.ones(0))
    found = StateDigests(State(models=[model])).digests(0, 1)()
    assert [name for name, _ in found] == ["a", "b"]


def test_a_registered_modules_parameters_are_compared_and_its_buffers_are_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
    average = torch.optim.swa_utils.AveragedModel(model)
    before = list(flat_settings("x", compared(average), scalar))
    model(torch.ones(2, 1))
    average.update_parameters(model)
    assert average.state_dict()["module.1.num_batches_tracked"] == 1
    assert list(flat_settings("x", compared(average), scalar)) == before
    with torch.no_grad():
        average.get_parameter("module.0.bias").add_(1)
    after = dict(flat_settings("x", compared(average), scalar))
    assert {name for name, value in before if after[name] != value} == {"x module.0.bias"}


def test_a_schedulers_numbers_are_compared() -> None:
    _, _, optimizer = replica("sgd")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    assert ("x last_epoch", "0.0") in list(flat_settings("x", compared(scheduler), scalar))
