"""What a template of PyTorch workers does before and after a fork (see launch/template.py).

torch loads a thousand modules when its first optimizer is made: here, once, for all workers. No
backward pass and no group, which would start threads; no random number, so that an unseeded script
draws the same ones as in a fresh process.
"""

from __future__ import annotations

import os
import sys

import torch

import edl.torch  # noqa: F401  loaded for those to come

__all__ = ["after_fork", "before_fork"]


def before_fork() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        parameter.grad = torch.zeros(1)
        optimizer = kind([parameter], lr=0.1)
        optimizer.step()
        optimizer.zero_grad()


def after_fork() -> None:
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit():
        # Read by torch when it was loaded, in the template's environment.
        torch.set_num_threads(int(threads))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # A fresh process draws from the system; a fork would draw what its siblings draw.
        numpy.random.seed()
