"""The journal script, but its joiners fail at the point that EDL_TEST_FAIL names.

`until:FILE` is none: they wait there for the file.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

JOINER = bool(os.environ.get("EDL_REQUEST"))
FAIL = os.environ.get("EDL_TEST_FAIL", "") if JOINER else ""

if FAIL == "import":
    sys.exit(3)
if FAIL == "unregistered":
    threading.Event().wait()

while FAIL.startswith("until:") and not Path(FAIL.removeprefix("until:")).exists():
    time.sleep(0.02)

sys.path.insert(0, str(Path(__file__).parent))

import edl.torch as edl  # noqa: E402
from edl.runtime import agent  # noqa: E402


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if FAIL == "building":
    agent.Agent._start_building = lambda self, generation: die()  # type: ignore[method-assign]

import journal  # type: ignore[import-not-found]  # noqa: E402

if FAIL in ("never", "registered"):
    begin = edl.init

    def init(*, bucket_mb: float = 25.0, compression: str | None = None) -> None:
        # The background thread registers; the main thread never gets its context ready.
        begin(bucket_mb=bucket_mb, compression=compression)
        threading.Event().wait()

    edl.init = init

journal.main()
