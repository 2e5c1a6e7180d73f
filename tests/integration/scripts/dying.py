"""The journal script, of which some workers die at a named point.

    --die '{"w1": ["committed", 12], ...}'   worker -> point and the step at which it dies
    --orders FOLDER                          a file named for a worker names its point, from now on
    --leader w1                              this founder leads the job at first

A point is a function of EDL's own; the worker kills itself with SIGKILL before or after its call,
so that no `finally`, no `atexit` and no goodbye happens. At "lose-..." it lives on, but one of its
collectives fails after it has completed for everybody else, as it may when a neighbour dies; at
"lose-reduction-late", only when the others are in their next step.

A file `anyone...` is an order for whoever comes to its point first. A point with "+newcomers"
behind it takes the newcomers of the generation that is being made along, in the same moment.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import edl.torch as edl
from edl.collective.gloo import GlooGroup
from edl.errors import GroupBroken
from edl.protocol.leader import Leader
from edl.protocol.node import Node
from edl.runtime.agent import Agent
from edl.runtime.courier import Courier
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
    "recording": (Courier, "swap", False),
    "recorded": (Agent, "_on_swapped", False),
    "deciding": (Rounds, "_decided", False),
    "decided": (Rounds, "_decided", True),
    "departing": (Rounds, "_depart", False),
    "switch": (Rounds, "_apply_switch", False),
    "switched": (Rounds, "_apply_switch", True),
    "sending": (State, "start_sending", True),
    "receiving": (State, "start_receiving", True),
    "moved": (Rounds, "_await_moved", True),
    "entering": (Session, "_commit", False),
    "levelled-in": (Plugin, "even_out", True),
    "entered": (Session, "_commit", True),
    # a migration's leavers go
    "settle": (Rounds, "_settle", False),
    "settled": (Rounds, "_settle", True),
    "through": (Agent, "wait_let_go", False),
    "let-go": (Agent, "wait_let_go", True),
    "goodbye": (Rounds, "_say_goodbye", True),
    "parting": (Rounds, "_await_parted", False),
    "parted": (Rounds, "_await_parted", True),
    # a change of leaders
    "handed": (Node, "_on_handover", False),
    "taken": (Leader, "take_over", True),
    "released": (Agent, "wait_may_go", True),
    "elected": (Node, "_lead", True),
    # the end of a step, and of a loop
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

# These are passed at other times too; they are points of a switch only where this holds.
ONLY: dict[str, Callable[..., bool]] = {
    "recording": lambda courier, swap: swap.purpose == "generation",
    "recorded": lambda agent, swapped: swapped.purpose == "generation",
    "switch": lambda rounds: rounds._pending is not None,
    "switched": lambda rounds: rounds._pending is not None,
    "moved": lambda rounds: rounds._moving is not None,
    "parting": lambda rounds: rounds._parting is not None,
    "parted": lambda rounds: rounds._parting is not None,
    "entering": lambda session: session.progress.entering,
    "levelled-in": lambda plugin, *_: plugin.session.progress.entering,
    "entered": lambda session: session.progress.entering,
}

# name -> method of the group, whether inside a step
LOSSES = {
    "lose-gradient": ("all_reduce", True),
    "lose-reduction": ("all_reduce", False),
    "lose-reduction-late": ("all_reduce", False),
    "lose-buffers": ("broadcast", False),
}


class Lost:
    """Work that is done, but whose end this worker does not get to see."""

    def __init__(self, work: Any, before: Callable[[], None]) -> None:
        self._work = work
        self._before = before

    def wait(self) -> None:
        self._work.wait()
        self._before()
        raise GroupBroken("lost on purpose")


def await_others(folder: Path) -> None:
    """Until all other workers have written that they are in the step that comes next."""
    me, step = os.environ["EDL_WORKER"], edl.step()
    others = [path for path in folder.glob("w*.jsonl") if path.stem != me]
    assert len(others) == edl.size() - 1
    while others:
        lines = [json.loads(line) for line in others[0].read_text().splitlines()]
        if any(line["what"] == "intent" and line["step"] == step for line in lines):
            others.pop(0)
        else:
            time.sleep(0.01)


def lose(point: str, step: int, folder: Path) -> None:
    name, inside = LOSSES[point]
    before = partial(await_others, folder) if point.endswith("-late") else lambda: None
    inner: Callable[..., Any] = getattr(GlooGroup, name)
    left = [1]

    def lossy(*args: Any, **kwargs: Any) -> Any:
        work = inner(*args, **kwargs)
        plugin = edl._here()
        if left and edl.step() >= step and (plugin.session.plan is not None) is inside:
            left.clear()
            return Lost(work, before)
        return work

    setattr(GlooGroup, name, lossy)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_newcomers() -> None:
    """Those of the generation that comes next, as far as this worker knows it."""
    agent = edl._here().session.agent
    assert agent is not None
    worker = agent.node.worker
    known = [*worker.prepared.values(), worker.generation]
    target = max((each for each in known if each is not None), key=lambda each: each.number)
    for member in target.members:
        if member.worker in target.newcomers:
            os.kill(member.pid, signal.SIGKILL)


def arm(point: str, due: Callable[[str], Callable[[], None] | None]) -> None:
    """At this point do what `due` returns, if anything; it is asked before the call."""
    owner, name, after = POINTS[point]
    inner: Callable[..., Any] = getattr(owner, name)
    only = ONLY.get(point)

    def fatal(*args: Any, **kwargs: Any) -> Any:
        die = due(point) if only is None or only(*args) else None
        if die is not None and not after:
            die()
        result = inner(*args, **kwargs)
        if die is not None:
            die()
        return result

    setattr(owner, name, fatal)


class Orders:
    """What the test wants of this worker now."""

    def __init__(self, folder: Path, me: str) -> None:
        self._folder = folder
        self._me = me

    def due(self, point: str) -> Callable[[], None] | None:
        for name in sorted(os.listdir(self._folder)):
            if name != self._me and not name.startswith("anyone"):
                continue
            path = self._folder / name
            try:
                wanted, _, more = path.read_text().partition("+")
                if wanted != point:
                    continue
                # One order, one death: whoever moves the file away has taken it.
                path.rename(self._folder / f"done-{name}-{self._me}")
            except FileNotFoundError:
                continue
            return self._with_newcomers if more == "newcomers" else kill
        return None

    def _with_newcomers(self) -> None:
        kill_newcomers()
        kill()


def lead_first(leader: str, folder: Path) -> None:
    """The other founders come to the store when this one leads."""
    led, me = folder / "led", os.environ["EDL_WORKER"]
    inner = edl.init

    def init(**options: Any) -> None:
        while me != leader and not led.exists():
            time.sleep(0.01)
        inner(**options)
        agent = edl._here().session.agent
        assert agent is not None
        while me == leader and not agent.leads:
            time.sleep(0.01)
        led.touch()

    edl.init = init


def option(name: str) -> str:
    if name not in sys.argv:
        return ""
    at = sys.argv.index(name)
    value = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    return value


def main() -> None:
    me = os.environ["EDL_WORKER"]
    mine = json.loads(option("--die") or "{}").get(me)
    orders, leader = option("--orders"), option("--leader")
    if mine is not None and mine[0] in LOSSES:
        lose(mine[0], mine[1], Path(sys.argv[sys.argv.index("--log") + 1]))
    elif mine is not None:
        arm(mine[0], lambda _: kill if edl.step() >= mine[1] else None)
    if orders:
        for point in POINTS:
            arm(point, Orders(Path(orders), me).due)
    if leader:
        lead_first(leader, Path(orders))
    journal.main()


if __name__ == "__main__":
    main()
