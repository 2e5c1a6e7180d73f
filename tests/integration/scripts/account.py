"""Says what it finds in its process, then trains until a file exists: FOLDER, which has it all.

A newcomer fails at once while FOLDER/fail exists.
"""

import json
import os
import random
import sys
from pathlib import Path

import numpy
import torch

import edl.torch as edl

FOLDER = Path(sys.argv[1])


class Where(torch.utils.data.Dataset[int]):
    """Tells in which process its samples are made."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def main() -> None:
    print("not flushed")
    if os.environ["EDL_REQUEST"] and (FOLDER / "fail").exists():
        raise ValueError("this newcomer fails")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    total = torch.ones(1 << 20).sum().item()
    torch.set_num_threads(threads)
    made = torch.utils.data.DataLoader(Where(), num_workers=1, multiprocessing_context="fork")
    told = {
        "argv": sys.argv,
        "name": __name__,
        "preloaded": "beside" in sys.modules,
        "worker": os.environ["EDL_WORKER"],
        "slot": os.environ["EDL_SLOT"],
        "threads": [threads, int(os.environ["OMP_NUM_THREADS"])],
        "total": total,
        "random": random.random(),
        "numpy": float(numpy.random.rand()),
        "made_elsewhere": os.getpid() not in [int(pid) for pid in made],
    }
    edl.init()
    model = torch.nn.Linear(1, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    data = torch.utils.data.TensorDataset(torch.ones(100_000, 1))
    (FOLDER / f"{told['worker']}.part").write_text(json.dumps(told))
    (FOLDER / f"{told['worker']}.part").rename(FOLDER / f"{told['worker']}.json")
    for (x,) in edl.DataLoader(data, batch_size=4):
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        edl.notify_batch_end()
        if edl.all_reduce(float((FOLDER / "end").exists()), "max"):
            break
    edl.shutdown()


if __name__ == "__main__":
    main()
