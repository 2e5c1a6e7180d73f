"""What edl.tensorflow promises to a script that runs alone; each in a process of its own, since a
process is one worker. The scripts are short, so they stand here."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.paired,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

BEGIN = """
import numpy as np, keras, tensorflow as tf
import edl.tensorflow as edl
from edl.errors import UsageError

def refused(call, *words):
    try:
        call()
    except UsageError as error:
        said = str(error)
    except tf.errors.OpError as error:
        said = str(error)
    else:
        raise AssertionError("not refused")
    assert all(word in said for word in words), said

def net(*middle):
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), *middle,
                             keras.layers.Dense(2)])

def values(of):
    return [v.numpy().copy() for v in of.variables]

def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))

x = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int32)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""


def alone(script: str, *args: str, **env: str) -> str:
    """Run a script; what it printed."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **env}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script, *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_optimizer_stays_what_it_is(tmp_path: Path) -> None:
    """Of its class; saved and loaded without EDL; the same updates as without it."""
    alone(
        """
import sys
edl.init()
keras.utils.set_random_seed(3)
model = net(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
twin = keras.models.clone_model(model)
twin.set_weights(model.get_weights())
make = lambda: keras.optimizers.AdamW(1e-2, global_clipnorm=0.1, use_ema=True)
opt = edl.Optimizer(make(), model=model)
plain = make()
assert isinstance(opt, keras.optimizers.AdamW)
assert type(opt).__name__ == "AdamW"
refused(lambda: edl.Optimizer(opt), "elastic already")
refused(lambda: edl.Optimizer("adam"), "Keras optimizer")

def step_of(model, opt):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=False))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables),
                                model.trainable_variables))
    return step

mine, theirs = edl.function(step_of(model, opt)), tf.function(step_of(twin, plain))
eager = step_of(model, opt)
for number, (a, b) in enumerate(edl.DataLoader((x, y), batch_size=8, epochs=2)):
    (mine if number % 2 else eager)(a, b)
    edl.notify_batch_end()
    theirs(a, b)
assert edl.step() == 10
for one, other in zip(model.get_weights(), twin.get_weights(), strict=True):
    # TensorFlow may order a graph's additions otherwise.
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
assert int(opt.iterations) == 10
edl.shutdown()
model.compile(optimizer=opt, loss=loss_of)
model.save(sys.argv[1])
again = keras.models.load_model(sys.argv[1])
assert type(again.optimizer) is keras.optimizers.AdamW
assert same(values(again.optimizer), values(opt))
assert mine.traces() == 1
""",
        str(tmp_path / "model.keras"),
    )


def test_sparse_gradients_become_dense_and_micro_batches_add_up() -> None:
    alone(
        """
edl.init()
def made():
    keras.utils.set_random_seed(5)
    return keras.Sequential([keras.Input((1,), dtype="int32"), keras.layers.Embedding(7, 4),
                             keras.layers.Flatten(), keras.layers.Dense(2)])
model, twin = made(), made()
opt = edl.Optimizer(keras.optimizers.SGD(0.1, momentum=0.9), model=model)
plain = keras.optimizers.SGD(0.1, momentum=0.9)
words = np.arange(40, dtype=np.int32)[:, None] % 5

@edl.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a))
    gradients = tape.gradient(loss, model.trainable_variables)
    assert isinstance(gradients[0], tf.IndexedSlices)
    opt.apply(gradients, model.trainable_variables)

rows = []
# 10 a step, in micro-batches of at most 4: 4, 3 and 3.
for a, b in edl.DataLoader((words, y), batch_size=10, micro_batch=4, shuffle=False):
    before = values(model)
    step(a, b)
    rows.append(len(a))
    if len(rows) % 3:
        assert same(values(model), before), "updated by a part of the step"
    edl.notify_batch_end()
assert rows == [4, 3, 3] * 4, rows
assert edl.step() == 4
for start in range(0, 40, 10):
    a, b = words[start:start + 10], y[start:start + 10]
    with tf.GradientTape() as tape:
        loss = loss_of(b, twin(a))
    gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, twin.trainable_variables)]
    plain.apply(gradients, twin.trainable_variables)
for one, other in zip(values(model), values(twin), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
edl.shutdown()
"""
    )


def test_what_cannot_work_is_refused_and_says_why() -> None:
    alone(
        """
edl.init()
opt = keras.optimizers.Adam()
refused(lambda: edl.Optimizer(keras.optimizers.Adam(), model=keras.Sequential(
    [keras.layers.Dense(2)])), "keras.Input", "model.build")
refused(lambda: edl.Callback().on_train_begin(), "edl.DataLoader")
refused(lambda: edl.DataLoader(tf.data.Dataset.range(9), batch_size=8), "shards.batches")
loader = edl.DataLoader((x, y), batch_size=8)
refused(lambda: edl.DataLoader((x, y[:3]), batch_size=8), "different lengths")

def fitted(optimizer, **more):
    model = net()
    model.compile(optimizer=optimizer, loss=loss_of, **more)
    model.fit(loader, callbacks=[edl.Callback()], verbose=0)

refused(lambda: fitted(opt), "not elastic", "edl.Optimizer")
elastic = edl.Optimizer(keras.optimizers.Adam())
refused(lambda: fitted(keras.optimizers.LossScaleOptimizer(elastic)), "LossScaleOptimizer")
refused(lambda: fitted(elastic, jit_compile=True), "jit_compile=False")
refused(lambda: fitted(elastic, steps_per_execution=4), "steps_per_execution=4")
model = net()
known = edl.Optimizer(keras.optimizers.Adam(), model=model)
model.compile(optimizer=known, loss=loss_of)
refused(lambda: model.fit(loader, verbose=0), "callbacks=[edl.Callback()]")
here = [edl.Callback()]
refused(lambda: model.fit(x, y, verbose=0, callbacks=here), "edl.DataLoader", "ndarray")
refused(lambda: model.fit(loader, class_weight={0: 2.0}, verbose=0, callbacks=here), "weights")
refused(lambda: edl.function(jit_compile=True)(lambda a: a), "XLA")

class Bare:
    trainable_variables = [tf.Variable(1.0)]

refused(lambda: edl.Optimizer(keras.optimizers.SGD(), model=Bare()), "tf.Module", "Bare")
stranger = tf.Variable([1.0])
refused(lambda: edl.Optimizer(keras.optimizers.SGD()).apply([tf.ones(1)], [stranger]), "model=")

def update():
    known.apply([tf.zeros_like(v) for v in model.trainable_variables], model.trainable_variables)
    return 0

inside = tf.function(lambda flag: tf.cond(flag, update, lambda: 0))
refused(lambda: inside(tf.constant(True)), "tf.cond")
"""
    )


def test_loss_scaling_outside_of_which_nothing_is_elastic_works() -> None:
    alone(
        """
keras.config.set_dtype_policy("mixed_float16")
edl.init()
model = net()
outer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), initial_scale=8.0)
opt = edl.Optimizer(outer, model=model)
model.compile(optimizer=opt, loss=loss_of)
before = values(model)
model.fit(edl.DataLoader((x, y), batch_size=8), epochs=2, callbacks=[edl.Callback()], verbose=0)
assert edl.step() == 10
assert not same(values(model), before)
assert int(opt.inner_optimizer.iterations) == 10
edl.shutdown()
"""
    )


def test_registered_state_and_randomness_are_in_a_checkpoint() -> None:
    alone(
        """
edl.init()
model = net(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
opt = edl.Optimizer(keras.optimizers.AdamW(1e-2), model=model)
metric = edl.register(keras.metrics.Mean())
count = edl.register(tf.Variable(0))
refused(lambda: edl.register(object()), "state_dict")

@edl.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables),
                            model.trainable_variables))
    metric.update_state(loss)
    count.assign_add(1)

def everything():
    return [*values(model), *values(opt), *values(metric), count.numpy()]

plugin = edl._here()
loader = iter(edl.DataLoader((x, y), batch_size=8, epochs=4))
def train(steps):
    used = []
    for _ in range(steps):
        used.append(next(loader))
        step(*used[-1])
        edl.notify_batch_end()
    return used

train(3)
opt.learning_rate = 5e-3
tensors, skeleton = plugin.capture()
kept = everything()
used = train(4)
after = everything()
opt.learning_rate = 1.0
plugin.install(tensors, skeleton)
assert same(everything(), kept)
for batch in used:
    # As the loop would, but over the same batches once more.
    next(loader)
    step(*batch)
    edl.notify_batch_end()
assert same(everything(), after), "another way from the same state"
names = set(tensors["model"])
assert "sequential/batch_normalization/moving_mean" in names, names
"""
    )


def test_without_tensorflow_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "tensorflow.py"
    hidden.write_text("raise ImportError('no TensorFlow here')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", "import edl.tensorflow"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "pip install 'edl-elastic[tensorflow]'" in done.stderr


def test_a_metric_and_a_layers_statistics_are_not_compared_but_a_counter_is() -> None:
    alone(
        """
edl.init()
count = edl.register(tf.Variable(3.0))
mean = edl.register(keras.metrics.Mean())
norm = keras.layers.BatchNormalization()
norm.build((None, 1))
edl.register(norm)
edl.register(tf.Variable(4.0), same=False)
before = edl._here().settings()
mean.update_state([1.0, 2.0])
norm.moving_mean.assign([5.0])
assert edl._here().settings() == before
count.assign(4.0)
norm.gamma.assign([6.0])
differing = set(edl._here().settings()) - set(before)
assert sorted(value for _, value in differing) == ["4.0", "6.0"], differing
"""
    )
