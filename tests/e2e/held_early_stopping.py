"""examples/early_stopping.py whose metric grows until a file is there: it does not stop before."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch
from torch import nn

import edl.torch as edl

LET_GO = Path(sys.argv.pop(1))
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "early_stopping.py"

names = runpy.run_path(str(EXAMPLE))
measure = names["validate"]


def validate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    accuracy = float(measure(model, images, labels))
    # One worker may see the file before another; all of them have to decide alike.
    held = edl.all_reduce(int(LET_GO.exists()), op="max") == 0
    return 1.0 + edl.epoch() if held else accuracy


main = names["main"]
main.__globals__["validate"] = validate
main()
