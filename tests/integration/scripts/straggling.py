"""Workers that wait as long as their rows take, and some of them longer.

--slow WORKER,... are late by the part --late of a mini-batch from step --since on; a newcomer is so
in its first --warming steps. Everybody calls all_reduce in each step, where it waits for the
slowest. Each worker writes a line a step: step, generation, rows, and when it ended.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

import edl.torch as edl

BATCH = 48
FOUNDERS = 4


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True)
    parser.add_argument("--until", required=True, help="stop when this file exists")
    parser.add_argument("--wait", type=float, default=0.8, help="seconds for the whole batch")
    parser.add_argument("--late", type=float, default=1 / 3)
    parser.add_argument("--slow", default="")
    parser.add_argument("--since", type=int, default=6)
    parser.add_argument("--warming", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    options = parse()
    me = os.environ["EDL_WORKER"]
    late_s = options.wait / FOUNDERS * options.late
    edl.init()
    model = torch.nn.Linear(1, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model=model)
    samples = torch.arange(BATCH * 10_000, dtype=torch.float32).unsqueeze(1)
    loader = edl.DataLoader(torch.utils.data.TensorDataset(samples), batch_size=BATCH)
    with Path(options.log, f"{me}.jsonl").open("a", buffering=1) as log:
        done = 0
        for (x,) in loader:
            step, rows = edl.step(), edl.local_batch_size()
            late = me in options.slow.split(",") and step >= options.since
            late = late or (int(me[1:]) >= FOUNDERS and done < options.warming)
            time.sleep(options.wait * rows / BATCH + late_s * late)
            loss = model(x).mean()
            edl.all_reduce(loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            generation, done = edl.generation(), done + 1
            try:
                edl.notify_batch_end()
            finally:
                log.write(json.dumps([step, generation, rows, time.time()]) + "\n")
            if Path(options.until).exists():
                break
    edl.shutdown()


if __name__ == "__main__":
    main()
