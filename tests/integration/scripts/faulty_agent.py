"""The journal script, with an agent that fails on order.

--orders FOLDER    a file `fault-w1` makes the agent of w1 raise; with a file `stuck-w1` its
                   script waits for ever at its next batch
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from edl.failpoints import set_hook
from tests.integration.scripts import journal


class StuckLog(journal.Log):
    """Waits at a batch once it is ordered to."""

    def intent(self, *args: Any) -> None:
        super().intent(*args)
        if order("stuck").exists():
            order("waits").touch()
            threading.Event().wait()


def order(what: str) -> Path:
    return FOLDER / f"{what}-{os.environ['EDL_WORKER']}"


def fail() -> None:
    if order("fault").exists():
        raise RuntimeError("a planted fault")


if __name__ == "__main__":
    at = sys.argv.index("--orders")
    FOLDER = Path(sys.argv[at + 1])
    del sys.argv[at : at + 2]
    set_hook("agent.event", fail)
    journal.Log = StuckLog  # type: ignore[misc]
    journal.main()
