"""Does a step of edl.tensorflow take as long as TensorFlow's own, without any scaling?

    python bench/tensorflow_throughput.py [--workers 2] [--model mlp|conv] [--rounds 6]
        [--blocks 20] [--steps 4] [--batch 64]

With several workers, compared with MultiWorkerMirroredStrategy (ring over loopback); with one, with
the plain traced loop. Both run interleaved in the same processes, block by block, on the same model
and batch, each traced once and fed by its own loader; the ratio of each pair of blocks is one
sample.

Where a model's memory happens to lie makes it faster or slower than its twin by several per cent
for as long as the process lives, so each round is a process of its own, every other round makes the
rival's model first, and what is told is the median of the rounds' medians. With one worker a second
plain loop is compared with the first in the same blocks: how far that is from 1 is noise.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from static_throughput import compare

_FOUND = "found: "


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", choices=["mlp", "conv"], default="mlp")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4, help="in a block")
    parser.add_argument("--batch", type=int, default=64, help="a worker's")
    parser.add_argument("--threads", type=int, default=1, help="of each worker, for one operation")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rival-first", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.wait = 0.0
    return options


def mlp() -> Any:
    """4.2M parameters, 17 MB."""
    import keras

    return keras.Sequential(
        [
            keras.Input((32, 32, 3)), keras.layers.Flatten(),
            keras.layers.Dense(1024, activation="relu"),
            keras.layers.Dense(1024, activation="relu"), keras.layers.Dense(10),
        ]
    )  # fmt: skip


def conv() -> Any:
    """A small convolutional network with BatchNorm: 0.6M parameters in 22 variables."""
    import keras

    layers: list[Any] = [keras.Input((32, 32, 3))]
    for width in (32, 32, 64, 64, 128, 128):
        stride = 2 if layers and width != 32 else 1
        layers += [
            keras.layers.Conv2D(width, 3, stride, padding="same", use_bias=False),
            keras.layers.BatchNormalization(), keras.layers.ReLU(),
        ]  # fmt: skip
    return keras.Sequential(
        [*layers, keras.layers.Flatten(), keras.layers.Dense(512), keras.layers.Dense(10)]
    )


def step_of(model: Any, optimizer: Any, size: int) -> Callable[[Any, Any], Any]:
    """The loss is the worker's mean, divided among so many replicas."""
    import keras
    import tensorflow as tf

    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of(y, model(x, training=True))) / size
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step


def rival(options: argparse.Namespace, strategy: Any) -> Callable[[Any, Any], Any]:
    import keras
    import tensorflow as tf

    make = {"mlp": mlp, "conv": conv}[options.model]
    if strategy is None:
        model, optimizer = make(), keras.optimizers.SGD(1e-3, momentum=0.9)
        optimizer.build(model.trainable_variables)
        return tf.function(step_of(model, optimizer, 1))
    with strategy.scope():
        model, optimizer = make(), keras.optimizers.SGD(1e-3, momentum=0.9)
        optimizer.build(model.trainable_variables)
    step = step_of(model, optimizer, options.workers)
    return tf.function(lambda x, y: strategy.run(step, args=(x, y)))


def strategy_of(options: argparse.Namespace) -> Any:
    """TensorFlow's own, as it must be made: before anything else of TensorFlow's."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    if options.workers == 1:
        return None
    cluster = json.loads(Path(options.inside).read_text())
    index = int(os.environ["EDL_WORKER"].removeprefix("w"))
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": cluster}, "task": {"type": "worker", "index": index}}
    )
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(implementation=ring)
    )


def timed(once: Callable[[], Any], steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        once()
    return time.perf_counter() - began


def inside(options: argparse.Namespace) -> None:
    """One worker: blocks of EDL and of the other, in an order all workers share."""
    import keras
    import numpy as np
    import tensorflow as tf

    import edl.tensorflow as edl

    strategy = strategy_of(options)
    edl.init()
    rows = options.batch
    theirs = rival(options, strategy) if options.rival_first else None
    model = {"mlp": mlp, "conv": conv}[options.model]()
    optimizer = edl.Optimizer(keras.optimizers.SGD(1e-3, momentum=0.9), model=model)
    mine = edl.function(step_of(model, optimizer, 1))
    theirs = theirs or rival(options, strategy)
    twin = rival(options, None) if strategy is None else None
    drawn = np.random.default_rng(0)
    x = drawn.normal(size=(4 * rows, 32, 32, 3)).astype(np.float32)
    y = drawn.integers(0, 10, 4 * rows).astype(np.int32)
    numbers = np.arange(rows * options.workers * (options.blocks * options.steps + 8))
    batches = iter(edl.DataLoader(numbers, rows * options.workers, shuffle=False))
    fed = tf.data.Dataset.from_tensor_slices(numbers).batch(rows)
    their_batches = iter(fed.repeat().prefetch(2))
    batch = (tf.constant(x[:rows]), tf.constant(y[:rows]))
    next(batches)

    def edl_step() -> None:
        mine(*batch)
        edl.notify_batch_end()
        next(batches)

    def rivals_step(once: Callable[[Any, Any], Any]) -> None:
        once(*batch)
        next(their_batches)

    for _ in range(3):
        edl_step()
        rivals_step(theirs)
        if twin is not None:
            rivals_step(twin)
    noise: list[float] = []

    def their_block() -> float:
        took = timed(lambda: rivals_step(theirs), options.steps)
        if twin is not None:
            noise.append(took / timed(lambda: rivals_step(twin), options.steps))
        return took

    ratios, ours, others = compare(options, lambda: timed(edl_step, options.steps), their_block)
    if edl.rank() == 0:
        told = {"ratio": ratios, "ours": ours, "theirs": others, "noise": noise or [0.0]}
        found = {name: statistics.median(each) for name, each in told.items()}
        print(_FOUND + json.dumps(found), flush=True)
    os._exit(0)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def a_round(options: argparse.Namespace, index: int) -> dict[str, float]:
    """In processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Path(folder, "cluster.json")
        hosts = [f"127.0.0.1:{port}" for port in free_ports(options.workers)]
        cluster.write_text(json.dumps(hosts))
        command = [
            *(sys.executable, "-m", "edl.cli.main", "run", "-n", str(options.workers)),
            *(str(Path(__file__)), *sys.argv[1:], "--inside", str(cluster)),
            *(["--rival-first"] if index % 2 else []),
        ]
        environment = {**os.environ, "EDL_HOME": f"{folder}/home", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if _FOUND in line:
            found: dict[str, float] = json.loads(line.partition(_FOUND)[2])
            return found
    raise SystemExit(done.stdout + done.stderr)


def main() -> int:
    options = parse()
    if options.inside:
        inside(options)
        return 0
    name = "MultiWorkerMirroredStrategy" if options.workers > 1 else "the plain loop"
    rounds = []
    for index in range(options.rounds):
        found = a_round(options, index)
        rounds.append(found)
        beside = f"; {name} against its twin {found['noise']:.3f}" if found["noise"] else ""
        print(
            f"round {index + 1} of {options.rounds}: {found['ratio']:.3f} of {name} "
            f"({found['ours'] * 1e3:.1f} against {found['theirs'] * 1e3:.1f} ms a step){beside}",
            flush=True,
        )
    ratios = sorted(found["ratio"] for found in rounds)
    noises = sorted(found["noise"] for found in rounds)
    told = (
        f"{options.model}, {options.workers} of {options.batch} rows each: throughput "
        f"{statistics.median(ratios):.3f} of {name} ({ratios[0]:.3f} to {ratios[-1]:.3f}, "
        f"{options.rounds} rounds of {options.blocks} paired blocks)"
    )
    if noises[-1]:
        told += (
            f"; {name} against its twin {statistics.median(noises):.3f} "
            f"({noises[0]:.3f} to {noises[-1]:.3f})"
        )
    print(told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
