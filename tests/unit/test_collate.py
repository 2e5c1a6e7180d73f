"""A batch is what torch makes of the samples, whichever way it was made and came."""

from __future__ import annotations

import pickle
from collections import namedtuple
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from edl.torch.collate import Parcels, collated, columns_of

Named = namedtuple("Named", "x y")

BATCHES: list[list[Any]] = [
    [(torch.tensor([1.0, 2.0]), 3), (torch.tensor([4.0, 5.0]), 6)],
    [(1, 2.5, True), (2, 3.5, False)],
    [(1,), (2.5,)],
    [(1.5,), (2,)],
    [(1,), (True,)],
    [("a", b"b"), ("c", b"d")],
    [({"x": 1}, [2, 3]), ({"x": 4}, [5, 6])],
    [((1, torch.tensor(2)), 3), ((4, torch.tensor(5)), 6)],
    [Named(1, 2), Named(3, 4)],
    [(), ()],
    [1, 2],
    [torch.tensor(1), torch.tensor(2)],
]


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("samples", BATCHES, ids=repr)
def test_a_batch_is_as_torch_makes_it(samples: list[Any]) -> None:
    assert same(collated(samples), default_collate(samples))


@pytest.mark.parametrize(
    ("samples", "refusal"), [([(1, 2), (3,)], RuntimeError), ([(1,), None], TypeError)]
)
def test_samples_that_do_not_fit_are_refused_as_torch_does(
    samples: list[Any], refusal: type[Exception]
) -> None:
    for collate in (default_collate, collated):
        with pytest.raises(refusal):
            collate(samples)


def test_columns_are_of_plain_tensors_alone() -> None:
    class Mine(TensorDataset):
        pass

    plain, sparse = torch.eye(3), torch.eye(3).to_sparse()
    assert len(columns_of(TensorDataset(plain, plain))) == 2
    assert columns_of(TensorDataset(plain, sparse)) == ()
    assert columns_of(Mine(plain)) == ()
    assert columns_of([1, 2]) == ()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.arange(12).reshape(3, 4).t(),
        torch.tensor(1.5),
        torch.empty(0, 3),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.ones(1 << 17),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_what_arrives_is_what_was_sent(tensor: torch.Tensor) -> None:
    sent = [tensor, {"x": (tensor, "text")}, Named(tensor, 1)]
    parcels = Parcels(lambda samples: samples)
    arrived = pickle.loads(ForkingPickler.dumps(parcels(sent)))
    assert same(arrived, sent)
    arrived[0].zero_()  # a batch may be changed in place
