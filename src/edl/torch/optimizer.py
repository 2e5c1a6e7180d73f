"""Any torch optimizer, made elastic in place.

The wrapped object keeps its class in its ancestry, so LR schedulers and GradScaler accept it; only
`step` and `add_param_group` learn something new. Holds: a step that does not count changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edl.errors import UsageError
from edl.torch.plugin import Plugin

__all__ = ["elastic"]

_KNOWN = (
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.SGD,
)
_FOREIGN = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def elastic(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, plugin: Plugin
) -> torch.optim.Optimizer:
    """Make this optimizer average gradients over the workers before it steps."""
    _check(optimizer, model)
    kind = type(optimizer)
    inner_step: Callable[..., Any] = optimizer.step
    inner_add: Callable[..., Any] = optimizer.add_param_group
    inner_zero: Callable[..., Any] = optimizer.zero_grad
    accumulator = plugin.reducer.accumulator
    index = len(plugin.state.optimizers)
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    accumulator.own(owned)

    def step(self: Any, closure: Callable[[], Any] | None = None, **more: Any) -> Any:
        if closure is not None:
            closure = _same_everywhere(closure, plugin)
        may = plugin.session.before_update(index)
        accumulator.close(owned)
        if not may:
            return None
        result = inner_step(closure, **more) if closure is not None else inner_step(**more)
        plugin.session.updated(index)
        return result

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        accumulator.open(owned)
        inner_zero(set_to_none=set_to_none)

    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        inner_add(param_group)
        owned.extend(param_group["params"])
        plugin.reducer.watch(param_group["params"])

    # `hooked` tells torch that step is wrapped for profiling and step hooks already.
    step.hooked = True  # type: ignore[attr-defined]
    attributes = {
        "step": step,
        "zero_grad": zero_grad,
        "add_param_group": add_param_group,
        "edl_elastic": True,
    }
    optimizer.__dict__.pop("step", None)
    optimizer.__class__ = type(f"Elastic{kind.__name__}", (kind,), attributes)
    plugin.reducer.watch(owned)
    plugin.state_makers.append(
        lambda: _make_state(optimizer, kind, inner_step, plugin.reducer.room_for_gradient)
    )
    plugin.state.optimizers.append(optimizer)
    if not any(model is known for known in plugin.state.models):
        plugin.state.models.append(model)
    return optimizer


def _make_state(
    optimizer: torch.optim.Optimizer,
    kind: type,
    inner_step: Callable[..., Any],
    room: Callable[[torch.nn.Parameter], torch.Tensor],
) -> None:
    """Let a newcomer's optimizer make its state, for the job's to be received in its place.

    By a step with gradients of zero: what it does to the parameters does not matter, for those are
    received too. `room` is memory for a gradient. Only torch's own optimizers, whose steps have no
    other effects.
    """
    # A step hook of the script would be called for a step that never was.
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    hooked = any(getattr(optimizer, name, None) for name in names)
    if kind not in _KNOWN or optimizer.state or hooked:
        return
    owned = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if any(p.grad is not None for p in owned):
        return
    for parameter in owned:
        parameter.grad = room(parameter)
    inner_step()
    for parameter in owned:
        parameter.grad = None


def _check(optimizer: object, model: object) -> None:
    """Refuse what cannot work, before anything is changed."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"edl.Optimizer wraps a torch optimizer, not a {type(optimizer).__name__}")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model= must be a torch.nn.Module, not a {type(model).__name__}")
    for module in model.modules():
        if type(module).__name__ in _FOREIGN:
            raise UsageError(
                f"the model is wrapped in {type(module).__name__}: EDL averages gradients "
                "itself; pass the bare model"
            )
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise UsageError(
                "the model has SyncBatchNorm, whose process group EDL would have to change with "
                "every generation; use BatchNorm (buffers are evened out at every switch and at "
                "each loop's end) or GroupNorm"
            )
    if getattr(type(optimizer), "edl_elastic", False):
        raise UsageError("this optimizer is elastic already; wrap it once")


def _same_everywhere(closure: Callable[[], Any], plugin: Plugin) -> Callable[[], Any]:
    """A closure whose loss is the workers' weighted mean, so that all decide alike by it."""

    def evaluate() -> Any:
        loss = closure()
        if loss is None:
            return None
        weight = plugin.session.weight()
        part = torch.as_tensor(loss).detach() * weight
        if weight == 0.0:
            part = torch.zeros_like(part)
        mean = plugin.all_reduce(part, "sum")
        plugin.session.evaluated()
        return mean

    return evaluate
