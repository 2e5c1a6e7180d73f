"""What a newcomer's first step needs is made before it, and leaves no trace in the model."""

from __future__ import annotations

import pytest
import torch

from edl.plugin.reducing import Reduction
from edl.torch.optimizer import elastic
from edl.torch.plugin import Plugin


def prepared(kind: str, dtype: torch.dtype = torch.float32) -> tuple[Plugin, torch.nn.Module]:
    plugin = Plugin(None, Reduction())
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 2)).to(dtype)
    options = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
    elastic(optimizer, model, plugin)
    for _ in plugin.warm_up():
        continue
    return plugin, model


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_optimizers_state_has_memory_of_its_own(kind: str, dtype: torch.dtype) -> None:
    plugin, model = prepared(kind, dtype)
    (optimizer,) = plugin.state.optimizers
    assert len(optimizer.state) == 4
    rows = {bucket.flat.untyped_storage().data_ptr() for bucket in plugin.reducer._buckets_now()}
    held = [v for state in optimizer.state.values() for v in state.values() if v.dim()]
    assert held
    # The state was made with gradients that lay in the buckets, which every step overwrites.
    assert not rows & {tensor.untyped_storage().data_ptr() for tensor in held}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_may_fail_is_the_first_piece() -> None:
    plugin = Plugin(None, Reduction())
    model = torch.nn.Linear(6, 4)
    elastic(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, plugin)
    pieces = plugin.warm_up()
    next(pieces)
    assert plugin.reducer._buckets is not None
    # On a CPU the rest is left for when there is time.
    assert not plugin.state.optimizers[0].state
