"""The flat rows that gradients travel in."""

from __future__ import annotations

import pytest
import torch

from edl.torch.bucket import Bucket, bucketed


def parameters(*shapes: tuple[int, ...]) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def test_buckets_keep_the_order_and_respect_the_limit() -> None:
    made = parameters((10,), (10,), (100,), (5,), (5,))
    buckets = list(bucketed(made, limit=80))
    assert [len(bucket.parameters) for bucket in buckets] == [2, 1, 2]
    assert [p for bucket in buckets for p in bucket.parameters] == made


def test_a_bucket_has_one_dtype() -> None:
    made = parameters((4,), (4,))
    made[1].data = made[1].data.double()
    assert len(list(bucketed(made, limit=1 << 20))) == 2


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_compression_halves_what_travels_and_rounds_once(narrow: torch.dtype) -> None:
    (parameter,) = parameters((64, 3))
    assert parameter.grad is not None
    gradient = parameter.grad.clone()
    bucket = Bucket([parameter])
    plain = bucket.fill(0.5, None)
    # Filling makes the gradient a part of the row; begin again with one of its own.
    parameter.grad = gradient.clone()
    small = bucket.fill(0.5, narrow)
    assert small.dtype == narrow
    assert small.numel() * small.element_size() * 2 == plain.numel() * plain.element_size()
    bucket.spread(bucket.tail())
    expected = (gradient * 0.5).to(narrow).float()
    assert torch.equal(parameter.grad, expected)
    assert not torch.equal(expected, gradient * 0.5)


def test_only_float32_is_compressed() -> None:
    (parameter,) = parameters((8,))
    parameter.data, parameter.grad = parameter.data.double(), torch.randn(8).double()
    assert Bucket([parameter]).fill(1.0, torch.bfloat16).dtype == torch.float64


def test_a_weightless_worker_sends_zeros_whatever_it_computed() -> None:
    (parameter,) = parameters((8,))
    parameter.grad = torch.full((8,), float("nan"))
    assert not Bucket([parameter]).fill(0.0, None).any()


def test_what_nobody_used_has_no_gradient_afterwards() -> None:
    used, unused = parameters((3,), (3,))
    unused.grad = None
    bucket = Bucket([used, unused])
    bucket.fill(1.0, None)
    bucket.spread(bucket.tail())
    assert used.grad is not None
    assert unused.grad is None


@pytest.mark.parametrize("narrow", [None, torch.bfloat16])
def test_a_row_that_others_reduced_gives_the_gradients_that_they_have(
    narrow: torch.dtype | None,
) -> None:
    mine, theirs = parameters((5, 3), (4,)), parameters((5, 3), (4,))
    theirs[1].grad = None
    elder, newcomer = Bucket(theirs), Bucket(mine)
    sent = elder.fill(0.5, narrow)
    assert sent.nbytes == elder.size(narrow)
    assert elder.row is sent
    received = newcomer.incoming(narrow)
    assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
    received.copy_(sent)
    elder.spread(elder.tail())
    newcomer.spread(newcomer.tail())
    assert mine[0].grad is not None
    assert theirs[0].grad is not None
    assert torch.equal(mine[0].grad, theirs[0].grad)
    assert mine[1].grad is None


def test_gradients_that_are_of_no_use_are_let_go_of() -> None:
    made = parameters((8, 2), (3,))
    made[1].grad = None
    bucket = Bucket(made)
    bucket.let_go()
    assert made[0].grad is bucket.view_of(made[0])
    assert made[1].grad is None


def test_gradients_that_the_row_cannot_hold_stay() -> None:
    parameter = torch.nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))
    parameter.grad = torch.ones(8, dtype=torch.bfloat16)
    bucket = Bucket([parameter])
    bucket.let_go()
    assert not bucket.lets_go
    assert bool((parameter.grad == 1.0).all())


def test_whatever_lay_in_a_row_before_does_not_travel() -> None:
    made = parameters((4,), (4,))
    made[1].grad = None
    bucket = Bucket(made)
    bucket.flat.fill_(float("nan"))
    assert not bucket.fill(1.0, None).isnan().any()
    bucket.flat.fill_(float("nan"))
    assert not bucket.voided(None).isnan().any()
