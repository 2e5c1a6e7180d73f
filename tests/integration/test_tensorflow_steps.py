"""What becomes of a traced step and of Keras' callbacks in a worker that is alone."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from tests.integration.test_tensorflow_face import alone

pytestmark = [
    pytest.mark.paired,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]


def test_a_callback_that_is_registered_remembers_through_the_beginning_of_fit() -> None:
    """What a joiner receives in `fit`'s beginning outlives what callbacks forget there."""
    script = """
from edl.tensorflow.registered import holder_of

edl.init()
model = net()
stop = keras.callbacks.EarlyStopping(monitor="loss", patience=4, restore_best_weights=True)
assert edl.register(stop) is stop
stop.set_model(model)
stop.on_train_begin()
stop.on_epoch_end(0, {"loss": 1.0})
for epoch in (1, 2):
    stop.on_epoch_end(epoch, {"loss": 2.0})
theirs = edl._here().registered[1].state_dict()
assert theirs["wait"] == 2 and float(theirs["best"]) == 1.0
assert "monitor_op" not in theirs and "on_train_begin" not in theirs
assert len(theirs["best_weights"]) == 4

assert "patience" not in theirs and "monitor" not in theirs
joined = keras.callbacks.EarlyStopping(monitor="loss", patience=4, restore_best_weights=True)
joined.set_model(net())
holder = holder_of(joined)
holder.load_state_dict(theirs)
joined.on_train_begin()
assert joined.wait == 2 and float(joined.best) == 1.0
joined.on_epoch_end(3, {"loss": 1.0})
assert joined.wait == 3 and joined.min_delta == stop.min_delta
joined.wait = 2
assert same(joined.best_weights, stop.best_weights)
# And what it was given it gives to whoever joins after it, though it did nothing to change it.
joined.wait = 0
assert holder.state_dict().keys() == theirs.keys() - {"wait"}
keeps = keras.callbacks.ModelCheckpoint("here.keras", save_best_only=True)
second = holder_of(keeps)
second.load_state_dict({"best": 0.5, "seen": {"a": [1, 2]}})
keeps.on_train_begin()
assert second.state_dict() == {"best": 0.5, "seen": {"a": [1, 2]}}
# What had not changed when it was held is put back too, and what was new since is gone.
joined.wait, joined.new = 5, 1
holder.load_state_dict({name: theirs[name] for name in theirs.keys() - {"wait"}})
assert joined.wait == 0 and not hasattr(joined, "new")
assert same(joined.best_weights, stop.best_weights)
# What is put back while it trains is for now, not for the next fit.
holder.load_state_dict({**theirs, "wait": 3})
assert joined.wait == 3
joined.on_train_end()
joined.on_train_begin()
assert joined.wait == 0
print("remembered")
"""
    assert "remembered" in alone(script)


OWN = """
class Own(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path, self.best, self.rank = path, None, -1

    def on_train_begin(self, logs=None):
        self.rank = edl.rank()

    def on_epoch_end(self, epoch, logs=None):
        self.best = logs["loss"]

import logging, sys
edl.init()
logging.getLogger("edl").addHandler(logging.StreamHandler(sys.stdout))
model = net()
model.compile(optimizer=edl.Optimizer(keras.optimizers.Adam(), model=model), loss=loss_of)
loader = edl.DataLoader((x, y), batch_size=8)
memories = edl._here().registered[0]
own = Own("a")
"""


def test_fit_carries_what_its_callbacks_remember_and_nothing_that_is_their_own() -> None:
    script = """
# With these it says itself what it remembers.
class Told(Own):
    def state_dict(self):
        return {"mine": self.best}

    def load_state_dict(self, state):
        self.best = state["mine"]

told, early = Told("b"), keras.callbacks.EarlyStopping("loss", patience=9)
edl.register(early)

class Look(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        first, registered = edl._here().registered
        assert registered.state_dict()["best"] is not None
        # Each once, by fit and place, and none that only tells.
        assert first.state_dict() == {
            "1.0.Own": {"best": own.best},
            "1.1.Told": {"mine": told.best},
            "1.2.Look": {},
        }, first.state_dict()

model.fit(loader, epochs=2, callbacks=[early, edl.Callback(), own, told, Look()], verbose=0)
assert edl.step() == 10, edl.step()
assert memories.state_dict() == {} and "on_train_begin" not in vars(own)
edl.shutdown()
"""
    assert "EarlyStopping stands before edl.Callback()" in alone(OWN + script)


def test_callbacks_hear_of_every_piece_of_a_step_once() -> None:
    """They are not put back between micro-batches, and a list of theirs stays the script's own."""
    script = """
edl.init()
model = net()
model.compile(optimizer=edl.Optimizer(keras.optimizers.SGD(0.01), model=model), loss="mse")
x, y = np.ones((32, 4), np.float32), np.ones((32, 2), np.float32)
losses = []

class Count(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.pieces, self.losses = 0, losses

    def on_train_batch_end(self, batch, logs=None):
        self.pieces += 1
        self.losses.append(logs["loss"])

count = Count()
loader = edl.DataLoader((x, y), batch_size=16, micro_batch=4)
model.fit(loader, epochs=3, callbacks=[edl.Callback(), count], verbose=0)
assert edl.step() == 6
assert count.pieces == len(losses) == 24 and count.losses is losses
print("heard")
"""
    assert "heard" in alone(script)


def test_another_fit_has_memories_of_its_own_and_says_if_it_has_nothing_to_do() -> None:
    """A worker that joins there finds them when it comes to it."""
    script = """
model.fit(loader, epochs=2, callbacks=[edl.Callback(), own], verbose=0)
memories.load_state_dict({"2.0.Own": {"best": 7.0}})
other = Own("c")

class Once(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        assert other.best == 7.0
        assert memories.state_dict() == {"2.0.Own": {"best": 7.0}, "2.1.Once": {}}

model.fit(loader, epochs=2, callbacks=[edl.Callback(), other, Once()], verbose=0)
assert edl.step() == 10
# Its first epoch begins as any other does: nobody came into it.
slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
model.fit(loader, epochs=3, callbacks=[edl.Callback(), own, slower], verbose=0)
assert edl.step() == 15
assert abs(float(model.optimizer.learning_rate) - 5e-4) < 1e-9
edl.shutdown()
"""
    said = alone(OWN + script)
    assert "fit(epochs=2) has nothing to do" in said
    assert "has epochs=4" in said


def test_alone_a_traced_step_asks_nobody_and_its_update_is_known_all_the_same() -> None:
    """Calls out of a graph are what a step of a worker without others would be slower by."""
    script = """
from edl.tensorflow.optimizer import _Crossing
from edl.tensorflow.told import UPDATE

asked, ask = [], _Crossing._ask
_Crossing._ask = lambda self: asked.append(1) or ask(self)
edl.init()
model = net()
opt = edl.Optimizer(keras.optimizers.SGD(0.1), model=model)
loader = edl.DataLoader((x, y), batch_size=8)

@edl.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables),
                            model.trainable_variables))

told = edl._here().told
for epoch in edl.epochs(4):
    for batch in loader:
        if epoch == 3:
            # What is exchanged within a step may break after its update, which has to be known.
            step(*batch)
            edl.all_reduce(1.0)
            edl.notify_batch_end()
            continue
        assert told._place[0] == UPDATE and not edl._here().reduced
        before = values(model)
        if epoch == 1:
            break  # before it has made use of the batch: the step is void
        step(*batch)
        assert not same(before, values(model)) and edl._here().reduced
        if epoch == 2:
            break  # the update is made: the step is done
        edl.notify_batch_end()
    assert edl.step() == (5, 5, 6, 11)[epoch], edl.step()
assert told._place[0] != UPDATE
assert len(asked) == 4, len(asked)  # but for the first, of which that was not known
assert int(opt.iterations) == 11
edl.shutdown()
# Between steps and after the job it asks, and may.
step(x[:2], y[:2])
assert len(asked) == 5 and int(opt.iterations) == 12
print("asked nobody")
"""
    assert "asked nobody" in alone(script)


def test_gradients_cross_to_the_buckets_and_back_without_copies() -> None:
    """The session reads TensorFlow's memory, and TensorFlow reads the buckets' own."""
    script = """
from types import SimpleNamespace
from edl.plugin.adapter import Variable
from edl.plugin.buckets import ArrayBucket
from edl.tensorflow.optimizer import _Crossing

def places(arrays):
    return [array.__array_interface__["data"][0] for array in arrays]

shapes, names = [(300, 7), (5,), (100, 100)], ["a", "b", "c"]
kinds = [Variable(name=name, kind="weight", shape=shape, dtype=np.dtype("float32"))
         for name, shape in zip(names, shapes)]
bucket, seen, held = ArrayBucket(kinds, {}), {}, []

def look(when):
    def note(*arrays):
        held.extend(arrays)  # memory that is held is not another's
        seen[when] = places(arrays)
        return np.True_
    return note

def reduce_tensors(names, arrays):
    look("crossed")(*arrays)
    for view, array in zip(bucket.views, arrays):
        view[...] = 2.0 * array
    return [view[...] for view in bucket.views]

session = SimpleNamespace(before_update=lambda index: True, updated=lambda index: None)
plugin = SimpleNamespace(rehearsing=False, session=session, reduce_tensors=reduce_tensors)

@tf.function
def step(*values):
    gradients = [3.0 * value for value in values]
    before = tf.numpy_function(look("before"), gradients, tf.bool)
    with tf.control_dependencies([before]):
        may, *common = _Crossing(plugin, 0)._reduce_in(gradients, names)
    after = tf.numpy_function(look("after"), common, tf.bool)
    with tf.control_dependencies([after]):
        return [tf.identity(each) for each in common]

found = step(*[tf.ones(shape) for shape in shapes])
assert all(np.all(each.numpy() == 6.0) for each in found)
assert seen["before"] == seen["crossed"], seen
assert seen["after"] == places(bucket.views), seen
print("no copies")
"""
    assert "no copies" in alone(script)


def test_how_a_callback_compares_is_left_to_it() -> None:
    """Keras finds out how to compare, and turns a sign, in the first epoch that it compares in."""
    script = """
from edl.tensorflow.registered import Memory

stop = keras.callbacks.EarlyStopping("loss", min_delta=0.1, patience=9)
stop.set_model(net())
memory = Memory(stop)
stop.on_train_begin()
stop.on_epoch_end(0, {"loss": 1.0})
held = memory.state_dict()
compares, delta = stop.monitor_op, stop.min_delta
stop.on_epoch_end(1, {"loss": 1.0})
assert compares is not None and delta == -0.1 and stop.wait == 1
memory.load_state_dict(held)
assert stop.monitor_op is compares and stop.min_delta == delta and stop.wait == 0
stop.on_epoch_end(1, {"loss": 0.95})
assert stop.min_delta == delta and stop.wait == 1
print("compared")
"""
    assert "compared" in alone(script)


def test_what_a_callback_makes_that_cannot_be_sent_is_left_to_it_and_told() -> None:
    script = """
import collections, datetime
from edl.plugin.tree import ArrayLeaves, Tree
from edl.tensorflow.registered import Memory

Best = collections.namedtuple("Best", "epoch loss")

class Odd(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.began, self.last = None, 0
        self.given = [object()]  # cannot be sent, and does not change

    def on_epoch_begin(self, epoch, logs=None):
        self.began = datetime.datetime.now()
        self.last = epoch
        self.best = Best(epoch, 0.5)
        self.objects, self.when = np.array([None]), np.datetime64("2020-01-01")
        self.pair, self.wide = 1j * np.ones(2), np.longdouble(1)
        self.ordered = collections.defaultdict(list)
        self.fine = [np.float32(2), {"a": (1, "b", None), 3: {4, 5}}, np.ones(3), b"c"]
        self.counts = collections.Counter(a=2)

import logging, sys
logging.getLogger("edl").addHandler(logging.StreamHandler(sys.stdout))
odd = Odd()
memory = Memory(odd)
odd.on_train_begin()
assert memory.state_dict() == {}
odd.on_epoch_begin(1)
told = memory.state_dict()
assert told.keys() == {"last", "fine", "counts"}, told
leaves = []
again = Tree(ArrayLeaves()).flatten(told, "odd", leaves)
again = Tree(ArrayLeaves()).unflatten(again, leaves)
assert again["fine"][1] == odd.fine[1] and type(again["counts"]) is collections.Counter
memory.state_dict()
odd.last = 7
memory.load_state_dict(told)
assert odd.last == 1 and odd.began is not None and odd.best == (1, 0.5)
print("left")
"""
    said = alone(script)
    assert "left" in said
    told = re.findall(r"Odd\.(\w+) \(\w+\) changes while it trains and cannot be sent", said)
    assert sorted(told) == ["best", "objects", "ordered", "pair", "when", "wide"]


def test_a_callback_made_of_functions_hears_all_and_can_be_used_again() -> None:
    script = """
heard = []
hooks = keras.callbacks.LambdaCallback(
    on_train_begin=lambda logs: heard.append("begin"), on_train_end=lambda logs: heard.append("end")
)

class Half(keras.callbacks.Callback):
    def state_dict(self):
        raise AssertionError("it cannot be put back, so it is not asked")

edl.init()
model = net()
model.compile(optimizer=edl.Optimizer(keras.optimizers.SGD(0.01), model=model), loss=loss_of)
loader = edl.DataLoader((x, y), batch_size=8)
for epochs in (1, 2):
    model.fit(loader, epochs=epochs, callbacks=[edl.Callback(), hooks, Half()], verbose=0)
assert heard == ["begin", "end"] * 2, heard
print("heard")
"""
    assert "heard" in alone(script)
