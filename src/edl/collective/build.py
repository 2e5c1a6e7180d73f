"""Groups of a generation, whatever its size; torch is imported with the first that needs it.

Holds: a job of one worker goes without torch, unless its own script imports it.
"""

from __future__ import annotations

from edl.collective.solo import SoloGroup
from edl.errors import UsageError
from edl.protocol.topology import Generation
from edl.runtime.board import Board
from edl.runtime.framework import BuildOptions, Group
from edl.types import WorkerId

__all__ = ["build_group", "load_collectives"]


def build_group(generation: Generation, me: WorkerId, board: Board, options: BuildOptions) -> Group:
    """As `gloo.build_group`, but a group of one needs nothing."""
    if len(generation.workers()) == 1:
        return SoloGroup()
    load_collectives()
    from edl.collective import gloo

    return gloo.build_group(generation, me, board, options)


def load_collectives() -> None:
    """Import what groups of several workers are built on; UsageError if it is not there."""
    try:
        import torch  # noqa: F401  looked for by itself: another module's absence is our own bug
    except ImportError as error:
        raise UsageError(
            "a job of more than one worker sums gradients by torch.distributed, whatever the "
            f"framework, and torch cannot be imported ({error}); pip install 'edl-elastic[torch]'"
        ) from error
    from edl.collective.gloo import check_torch

    check_torch()
