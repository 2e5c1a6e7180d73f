"""What a template of PyTorch workers does before and after a fork (see launch/template.py).

torch loads a thousand modules when its first optimizer is made: here, once, for all workers. No
backward pass and no group, which would start threads; no random number, so that an unseeded script
draws the same ones as in a fresh process.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys

import torch

import edl.torch  # noqa: F401  loaded for those to come
from edl.errors import UsageError

__all__ = ["after_fork", "before_fork"]

# So many numbers are added on several threads, and in a millisecond.
ENOUGH = 1 << 20
# A fork that has not added them by then never will.
PATIENCE_S = 5.0


def before_fork() -> None:
    if torch.cuda.is_initialized():
        raise UsageError(
            "what is preloaded opened a GPU, so workers cannot be forked off it; leave that "
            "--preload out, or open the GPU where the script begins"
        )
    _try_fork()
    # What the first connection to a store loads.
    importlib.import_module("edl.store.embedded")
    "localhost".encode("idna")
    parameter = torch.nn.Parameter(torch.zeros(1))
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        parameter.grad = torch.zeros(1)
        optimizer = kind([parameter], lr=0.1)
        optimizer.step()
        optimizer.zero_grad()


def _try_fork() -> None:
    """Whether a fork can compute on several threads, as a worker may.

    It cannot if torch has computed so here: OpenMP would wait for threads that the fork lacks.
    """
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(2)
            torch.ones(ENOUGH).sum()
        finally:
            os._exit(0)
    end = os.pidfd_open(child)
    computed = bool(select.select([end], [], [], PATIENCE_S)[0])
    os.close(end)
    if not computed:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not computed:
        raise UsageError(
            "what is preloaded computed with torch on several threads, so workers that are forked "
            "off it would hang; compute where the script begins, or leave that --preload out"
        )


def after_fork() -> None:
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit():
        # Read by torch when it was loaded, in the template's environment.
        torch.set_num_threads(int(threads))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # A fresh process draws from the system; a fork would draw what its siblings draw.
        numpy.random.seed()
