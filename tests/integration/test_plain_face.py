"""The public face of `edl.plain`: its names are promises, and it refuses what it cannot do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import edl.plain as edl
import edl.torch as other
from tests.integration.test_face import alone

pytestmark = pytest.mark.paired

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
OWN = {"average", "share", "share_buffers", "share_state"}


def test_the_names_are_those_of_every_face_and_its_own() -> None:
    assert set(edl.__all__) == set(other.__all__) - {"Optimizer", "device"} | OWN
    assert all(hasattr(edl, name) for name in edl.__all__)


def test_what_all_faces_have_exists_once() -> None:
    own = {"DataLoader", "all_reduce", "init", *OWN}
    for name in set(edl.__all__) - own:
        assert getattr(edl, name) is getattr(other, name)


REFUSALS = {
    "call edl.init() first": "edl.step()",
    "called before": "edl.init(); edl.init()",
    "share NumPy arrays": "edl.init(); edl.share(w=[1.0])",
    "got 1 gradients in order and 0 by name; give one for each of the 2 shared arrays (w, b)": (
        "edl.init(); edl.share(w=np.zeros(2), b=np.zeros(1)); edl.average(np.zeros(2))"
    ),
    "no array was shared under this name": (
        "edl.init(); edl.share(w=np.zeros(2)); edl.average(v=np.zeros(2))"
    ),
    "the gradient of w is float64 (3,); it must be of floats, and (2,)": (
        "edl.init(); edl.share(w=np.zeros(2)); edl.average(np.zeros(3))"
    ),
    "op='median' is not one of": (
        "edl.init(); l = edl.DataLoader(np.zeros(4), 2); next(iter(l)); edl.all_reduce(1, 'median')"
    ),
    "one of None, 'bf16', 'fp16'": "edl.init(compression='int8')",
    "map-style dataset": "edl.init(); edl.DataLoader(iter([]), batch_size=2)",
    "edl.init() was that of edl.plain, this call is edl.torch's": (
        "edl.init(); import edl.torch; edl.torch.device()"
    ),
}


@pytest.mark.parametrize("told", REFUSALS)
def test_misuse_is_refused(told: str) -> None:
    done = alone(f"import numpy as np; import edl.plain as edl; {REFUSALS[told]}")
    assert done.returncode != 0
    assert "UsageError" in done.stderr
    assert told in done.stderr


EVERYTHING = """
import numpy as np
import edl.plain as edl
from edl.data import Lines

edl.init()
w, b = np.zeros(2, np.float32), np.array(0.0)
edl.share(w=w, b=b)
loader = edl.DataLoader(Lines("numbers.txt"), 4, seed=0, epochs=2, collate_fn=numbers)
seen = []
for rows in loader:
    assert (edl.rank(), edl.size(), edl.generation(), edl.is_leader()) == (0, 1, 1, True)
    seen += rows.tolist()[: edl.local_batch_size()]
    gw = np.ones(2)
    same, gb = edl.average(gw, None)
    assert same is gw and gb is None
    assert edl.average(b=1.0)["b"] == 1.0
    assert edl.all_reduce(np.arange(3)).tolist() == [0, 1, 2]
    assert edl.all_reduce(2, "max") == 2.0
    edl.report(loss=0.5)
    w -= 0.1
    edl.notify_batch_end()
edl.shutdown()
assert (edl.step(), edl.job()) == (6, "solo")
assert sorted(seen) == sorted([*range(10)] * 2), seen
"""


def test_a_script_uses_all_of_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numbers.txt").write_text("".join(f"{n}\n" for n in range(10)))
    monkeypatch.chdir(tmp_path)
    done = alone(f"numbers = lambda lines: np.array([int(line) for line in lines])\n{EVERYTHING}")
    assert done.returncode == 0, done.stderr


PRELUDE = """
import numpy as np
x, y = np.ones((768, 64)), np.zeros(768, int)
def gradients(w, b, xs, ys):
    assert xs.shape == (384, 64) and ys.shape == (384,)
    return np.ones_like(w), np.ones_like(b)
"""


def test_the_script_of_the_page_runs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "training-scripts.md").read_text()
    (block,) = [each for each in BLOCK.findall(page) if "edl.plain" in each]
    done = alone(f"{PRELUDE}{block}\nassert edl.step() == 6 and np.isclose(b[0], -0.6)")
    assert done.returncode == 0, done.stderr


PIPELINE = """
import numpy as np
import edl.plain as edl

edl.init()
w = np.zeros(1)
edl.share(w=w)
shards = edl.elastic_shard_generator([("a", 0, 7), ("b", 10, 6)], epochs=2, seed=0{batch})
seen = []
{loop}
edl.shutdown()
each = [("a", n) for n in range(7)] + [("b", n) for n in range(10, 16)]
assert sorted(seen) == sorted(each * 2), seen
assert w[0] == -edl.step() < 0, (w, edl.step())
"""
BATCHES = """
read = lambda shard: [(shard.path, shard.offset + n) for n in range(shard.length)]
for rows in shards.batches(read):
    seen += rows
    w -= edl.average(np.ones(1))
    edl.notify_batch_end()
"""
OWN_LOOP = """
for shard in shards():
    rows = [(shard.path, shard.offset + n) for n in range(shard.length)]
    seen += rows[: edl.local_batch_size() and len(rows)]
    w -= edl.average(np.ones(1))
    edl.notify_batch_end(samples=len(rows))
"""


@pytest.mark.parametrize(
    ("batch", "loop"), [(", batch_size=4", BATCHES), ("", OWN_LOOP)], ids=["batches", "own"]
)
def test_shards_feed_it(batch: str, loop: str) -> None:
    done = alone(PIPELINE.format(batch=batch, loop=loop))
    assert done.returncode == 0, done.stderr
