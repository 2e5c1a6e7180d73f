"""What people write in training loops, all in one job: each recipe has its own model.

Every step trains every recipe on the same batch, so one job shows them side by side, with many
optimizers and backward passes in a step. `train(edl, ...)` also runs without EDL, given an object
with the same names (see `Alone`), which is what the workers' models are compared with.
"""

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

SAMPLES, BATCH, EPOCHS = 99, 12, 2


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


class Recipe:
    """The usual loop; recipes change what they are about."""

    tolerance = 1e-4

    def __init__(self, edl: Any) -> None:
        self.edl = edl
        self.model: nn.Module = self.build()
        self.optimizer = edl.Optimizer(self.make(), model=self.model)

    def build(self) -> nn.Module:
        return small()

    def make(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(x).float(), y)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(x, y).backward()
        self.optimizer.step()

    def result(self) -> list[Tensor]:
        return [p.detach().double().clone() for p in self.model.parameters()]

    def final(self) -> list[Tensor]:
        """What is the same on all workers when the job is over."""
        return self.result()


class Clip(Recipe):
    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(x, y).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        self.optimizer.step()


class Autocast(Recipe):
    # bfloat16 sums differ by how a batch is cut.
    tolerance = 3e-2

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.cross_entropy(self.model(x), y)


class Scaler(Recipe):
    """GradScaler, and an infinite loss in one step, which it must skip on every worker."""

    def __init__(self, edl: Any) -> None:
        super().__init__(edl)
        self.scaler = edl.register(torch.amp.GradScaler("cpu", init_scale=256, growth_interval=3))

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        if self.edl.step() == 7:
            loss = loss * float("inf")
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def result(self) -> list[Tensor]:
        return [*super().result(), torch.tensor([self.scaler.get_scale()])]


class Groups(Recipe):
    def make(self) -> torch.optim.Optimizer:
        layers: Any = self.model
        return torch.optim.AdamW(
            [
                {"params": layers[0].parameters(), "lr": 0.01},
                {"params": layers[2].parameters(), "weight_decay": 0.3},
            ],
            lr=0.003,
        )


class MixedDtypes(Recipe):
    tolerance = 3e-2

    def build(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.Linear(8, 3))
        model[2].double()
        model[3].bfloat16()
        return model

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        layers: Any = self.model
        hidden = layers[2](layers[1](layers[0](x)).double())
        return functional.cross_entropy(layers[3](hidden.bfloat16()).float(), y)


class Tied(Recipe):
    def build(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
        model[2].weight = model[0].weight
        return model


class Frozen(Recipe):
    def build(self) -> nn.Module:
        model = small()
        model[0].requires_grad_(False)
        return model


class Unused(Recipe):
    """One layer nobody uses (it must not move by decay or momentum), one only some rows use."""

    def build(self) -> nn.Module:
        return nn.ModuleDict({"main": small(), "never": nn.Linear(4, 4), "rare": nn.Linear(6, 3)})

    def make(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        layers: Any = self.model
        out = layers["main"](x)
        chosen = x[:, 0] > 0.9
        if chosen.any():
            out = out.index_add(0, chosen.nonzero()[:, 0], layers["rare"](x[chosen]))
        return functional.cross_entropy(out, y)


class Foreach(Recipe):
    def make(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=0.01, foreach=True)


class Fused(Recipe):
    def make(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)


class TwoOptimizers(Recipe):
    """Two networks that train against each other, two backward passes in a step."""

    def __init__(self, edl: Any) -> None:
        super().__init__(edl)
        self.critic = small()
        made = torch.optim.RMSprop(self.critic.parameters(), lr=0.01)
        self.second = edl.Optimizer(made, model=self.critic)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.second.zero_grad()
        (self.critic(x) - self.model(x).detach()).square().mean().backward()
        self.second.step()
        self.optimizer.zero_grad()
        (self.loss(x, y) - 0.1 * (self.critic(x) - self.model(x)).square().mean()).backward()
        self.optimizer.step()

    def result(self) -> list[Tensor]:
        return [*super().result(), *(p.detach().double().clone() for p in self.critic.parameters())]


class Average(Recipe):
    """A moving average of the weights, and a schedule that moves with every batch."""

    def __init__(self, edl: Any) -> None:
        super().__init__(edl)
        decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self.average = edl.register(
            torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=decay)
        )
        self.schedule = edl.register(
            torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.3, total_steps=40)
        )

    def step(self, x: Tensor, y: Tensor) -> None:
        super().step(x, y)
        self.average.update_parameters(self.model)
        self.schedule.step()

    def result(self) -> list[Tensor]:
        averaged = [p.detach().double().clone() for p in self.average.module.parameters()]
        return [*super().result(), *averaged, torch.tensor([self.schedule.get_last_lr()[0]])]


class Compiled(Recipe):
    def __init__(self, edl: Any) -> None:
        super().__init__(edl)
        # Without a code generator: what matters here are hooks behind a compiled graph.
        self.compiled = torch.compile(self.model, backend="aot_eager", dynamic=True)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.compiled(x), y)


class BatchNorm(Recipe):
    """Statistics are of a worker's own share, as with DDP; `train_in_shares` does that alone."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Tanh(), nn.Linear(10, 3))

    def final(self) -> list[Tensor]:
        return [*self.result(), *(b.detach().double().clone() for b in self.model.buffers())]


RECIPES: dict[str, Callable[[Any], Recipe]] = {
    kind.__name__: kind
    for kind in (
        Recipe, Clip, Autocast, Scaler, Groups, MixedDtypes, Tied, Frozen, Unused, Foreach, Fused,
        TwoOptimizers, Average, Compiled, BatchNorm,
    )
}  # fmt: skip


def made(name: str, edl: Any) -> Recipe:
    """A recipe with its own first weights, whichever others there are."""
    torch.manual_seed(5)
    return RECIPES[name](edl)


def dataset() -> torch.utils.data.TensorDataset:
    made = torch.Generator().manual_seed(11)
    inputs = torch.randn(SAMPLES, 6, generator=made)
    return torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long() + (inputs[:, 1] > 1))


def train(
    edl: Any,
    names: list[str],
    *,
    micro_batch: int | None,
    before: Callable[[], None],
    after: Callable[[dict[str, Recipe]], None],
) -> dict[str, Recipe]:
    """One loop for all recipes."""
    recipes = {name: made(name, edl) for name in names}
    loader = edl.DataLoader(dataset(), batch_size=BATCH, seed=2, micro_batch=micro_batch)
    for _ in edl.epochs(EPOCHS):
        before()
        for x, y in loader:
            for recipe in recipes.values():
                recipe.step(x, y)
            edl.notify_batch_end()
            after(recipes)
    return recipes


def train_in_shares(name: str, shares: list[list[int]]) -> Recipe:
    """One recipe without EDL, each step's batch in the shares it had on the workers."""
    alone = Alone()
    recipe = made(name, alone)
    loader = alone.DataLoader(dataset(), batch_size=BATCH, seed=2, micro_batch=None)
    left = iter(shares)
    for _ in alone.epochs(EPOCHS):
        for x, y in loader:
            rows = [count for count in next(left) if count]
            recipe.optimizer.zero_grad()
            for part, labels in zip(x.split(rows), y.split(rows), strict=True):
                (recipe.loss(part, labels) * (len(part) / len(x))).backward()
            recipe.optimizer.step()
    return recipe


class Alone:
    """The names of `edl.torch` without EDL: one process, whole batches, the same order."""

    def __init__(self) -> None:
        self.steps = 0

    def Optimizer(self, optimizer: Any, *, model: Any) -> Any:  # noqa: N802
        return optimizer

    def register(self, holder: Any) -> Any:
        return holder

    def step(self) -> int:
        return self.steps

    def epochs(self, count: int) -> Iterator[int]:
        for epoch in range(count):
            self.epoch = epoch
            yield epoch

    def notify_batch_end(self) -> None:
        self.steps += 1

    def DataLoader(  # noqa: N802
        self, data: Any, *, batch_size: int, seed: int, micro_batch: Any
    ) -> Any:
        from edl.protocol.permutation import Permutation

        alone = self

        class Whole:
            def __iter__(self) -> Iterator[Any]:
                order = Permutation(len(data), seed=seed, epoch=alone.epoch)
                for start in range(0, len(data), batch_size):
                    rows = [order[i] for i in range(start, min(start + batch_size, len(data)))]
                    yield data[rows]

        return Whole()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--recipes", required=True)
    parser.add_argument("--go", required=True, help="founders begin when this file exists")
    parser.add_argument("--fast", required=True, help="steps are slow until this file exists")
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--compression")
    options = parser.parse_args()
    import journal  # type: ignore[import-not-found]

    import edl.torch as edl

    edl.init(bucket_mb=options.bucket_mb, compression=options.compression)
    log = journal.Log(options.log)
    founder = not os.environ.get("EDL_REQUEST")

    def before() -> None:
        while founder and not Path(options.go).exists():
            threading.Event().wait(0.05)

    def after(recipes: dict[str, Recipe]) -> None:
        seen = {
            name: journal.digest(recipe.result()) + journal.state_digest(recipe.optimizer)
            for name, recipe in recipes.items()
        }
        log.write(
            step=edl.step(),
            size=edl.size(),
            rank=edl.rank(),
            rows=edl.local_batch_size(),
            seen=seen,
        )
        if not Path(options.fast).exists():
            time.sleep(1.5)

    names = options.recipes.split(",")
    recipes = train(edl, names, micro_batch=options.micro_batch, before=before, after=after)
    edl.shutdown()
    found = {name: [t.tolist() for t in recipe.final()] for name, recipe in recipes.items()}
    Path(options.log, f"{os.environ['EDL_WORKER']}.result").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
