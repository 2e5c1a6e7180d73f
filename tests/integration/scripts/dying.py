"""The journal script, of which some workers die at a named point.

    --die '{"w1": ["committed", 12], ...}'   worker -> point and the step at which it dies

A point is a function of EDL's own; the worker kills itself with SIGKILL before or after its call,
so that no `finally`, no `atexit` and no goodbye happens. At "lose-..." it lives on, but one of its
collectives fails after it has completed for everybody else, as it may when a neighbour dies.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import edl.torch as edl
from edl.collective.gloo import GlooGroup
from edl.errors import GroupBroken
from edl.runtime.agent import Agent
from edl.runtime.mending import Mender
from edl.runtime.rounds import Rounds
from edl.runtime.session import Session
from edl.torch.plugin import Plugin
from edl.torch.reducer import Reducer
from edl.torch.state import State
from tests.integration.scripts import journal

# name -> class, method, whether the call is made first
POINTS: dict[str, tuple[type, str, bool]] = {
    # a step
    "step": (Session, "_open_step", False),
    "opened": (Session, "_open_step", True),
    "record": (Rounds, "round", True),
    "bucket": (Reducer, "_launch", True),
    "reduced": (Reducer, "finish", True),
    "update": (Session, "before_update", True),
    "commit": (Session, "_commit", False),
    "committed": (Session, "_commit", True),
    # a switch
    "prepare": (Agent, "_start_building", False),
    "built": (Agent, "_build", True),
    "decided": (Rounds, "_decided", True),
    "switch": (Rounds, "_apply_switch", False),
    "sending": (State, "start_sending", True),
    "moved": (Rounds, "_await_moved", True),
    "evened": (Plugin, "even_out", True),
    # a recovery
    "broke": (Mender, "broke", False),
    "mend": (Mender, "mend", False),
    "level": (Mender, "_level", False),
    "levelled": (Mender, "_level", True),
    "give": (Mender, "_give", False),
    "mended": (Mender, "mend", True),
    # reductions of the script's own, and the closing
    "reduce": (Session, "_reduce", False),
    "reduced-own": (Session, "_reduce", True),
    "closing": (Session, "_finish", False),
    "closing-round": (Rounds, "_finish_round", True),
    "closed": (Session, "_finish", True),
    "shutdown": (Session, "shutdown", False),
    "over": (Agent, "wait_may_go", False),
}


# name -> method of the group, whether inside a step
LOSSES = {
    "lose-gradient": ("all_reduce", True),
    "lose-reduction": ("all_reduce", False),
    "lose-buffers": ("broadcast", False),
}


class Lost:
    """Work that is done, but whose end this worker does not get to see."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        self._work.wait()
        raise GroupBroken("lost on purpose")


def lose(point: str, step: int) -> None:
    name, inside = LOSSES[point]
    inner: Callable[..., Any] = getattr(GlooGroup, name)
    left = [1]

    def lossy(*args: Any, **kwargs: Any) -> Any:
        work = inner(*args, **kwargs)
        plugin = edl._here()
        if left and edl.step() >= step and (plugin.session.plan is not None) is inside:
            left.clear()
            return Lost(work)
        return work

    setattr(GlooGroup, name, lossy)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, step: int) -> None:
    """Die at this point, as soon as so many steps are committed."""
    owner, name, after = POINTS[point]
    inner: Callable[..., Any] = getattr(owner, name)

    def fatal(*args: Any, **kwargs: Any) -> Any:
        due = edl.step() >= step
        if due and not after:
            kill()
        result = inner(*args, **kwargs)
        if due:
            kill()
        return result

    setattr(owner, name, fatal)


def main() -> None:
    at = sys.argv.index("--die")
    plan = json.loads(sys.argv[at + 1])
    del sys.argv[at : at + 2]
    mine = plan.get(os.environ["EDL_WORKER"])
    if mine is not None:
        (lose if mine[0] in LOSSES else arm)(mine[0], mine[1])
    journal.main()


if __name__ == "__main__":
    main()
