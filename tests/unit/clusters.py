"""Small clusters for tests of policies: a stage for cases worked by hand, and whole drawn runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from edl.policy.base import Policy
from edl.policy.book import Book
from edl.policy.decisions import Decision, Migrate, Preempt, Requeue, ScaleIn, Start
from edl.policy.elastic_tiresias import ElasticTiresias
from edl.policy.fifo import Fifo
from edl.policy.gittins import Gittins
from edl.policy.optimus import Optimus
from edl.policy.srtf import Srtf
from edl.policy.static import Static
from edl.policy.throughput import Curve
from edl.policy.tiresias import Tiresias
from edl.policy.together import Together
from edl.policy.uniform import Uniform
from edl.policy.view import Job
from edl.policy.water_filling import WaterFilling, WaterFillingBlind
from edl.simulator.engine import Arrival, Engine
from edl.simulator.setting import MECHANISMS
from edl.simulator.timeline import Recorder

__all__ = [
    "FALLING",
    "LINEAR",
    "MAKERS",
    "Drawn",
    "Scripted",
    "Stage",
    "arrival",
    "drawn",
    "engine",
    "placed",
    "plain",
]

# Twice the GPUs, twice the speed; and one where each GPU brings a little less than the one before.
LINEAR = Curve([float(p) for p in range(65)], label="linear")
FALLING = Curve([0.0, 10, 18, 25, 31, 36, 40, 43, 45], label="falling")


def plain(decisions: Sequence[Decision]) -> list[str]:
    """Decisions without their reasons: `start 3: 4`."""
    return [_plain(decision) for decision in decisions]


def placed(decisions: Sequence[Decision]) -> list[str]:
    """The same with places: `start 3: 4 at 0*4`, machine 0 and 4 GPUs of it."""
    found = []
    for decision in decisions:
        where = () if isinstance(decision, Preempt | Requeue) else decision.where
        place = " ".join(f"{node}*{count}" for node, count in where)
        found.append(_plain(decision) + (f" at {place}" if place else ""))
    return found


def _plain(decision: Decision) -> str:
    assert decision.reason
    if isinstance(decision, Preempt):
        return f"stop {decision.job}"
    if isinstance(decision, Requeue):
        return f"queue {decision.job}: {decision.queue}"
    if isinstance(decision, Start):
        return f"start {decision.job}: {decision.gpus}"
    if isinstance(decision, ScaleIn):
        return f"in {decision.job}: {decision.gpus}"
    if isinstance(decision, Migrate):
        return f"move {decision.job}: {decision.gpus}"
    return f"out {decision.job}: {decision.gpus}"


class Scripted(Policy):
    """Decides what it is told to, once."""

    name = "scripted"
    resizes = True

    def __init__(self, *decisions: Decision) -> None:
        self.script: list[Decision] = list(decisions)
        self.forgotten = False
        self.wakes: float | None = None

    def decide(self, view: object) -> list[Decision]:
        decided, self.script = self.script, []
        return decided

    def wake(self, view: object) -> float | None:
        return self.wakes

    def forget(self) -> None:
        self.forgotten = True


class Stage:
    """A book and a policy. What is decided is carried out at once, and costs nothing."""

    def __init__(
        self, policy: Policy, *, nodes: int = 1, gpus_per_node: int = 8, together: bool = False
    ) -> None:
        self.policy = policy
        self.book = Book(nodes=nodes, gpus_per_node=gpus_per_node, together=together)
        self.view = self.book.view

    def submit(
        self,
        gpus: int,
        *,
        left_s: float | None = 100.0,
        curve: Curve = LINEAR,
        least: int = 1,
        most: int = 0,
        elastic: bool = True,
    ) -> Job:
        """`left_s`: how long it takes with its user's GPUs."""
        return self.book.submit(
            self.view.now,
            f"j{len(self.view.jobs)}",
            gpus=gpus,
            curve=curve,
            least=least,
            most=most,
            elastic=elastic,
            left_gpu_s=None if left_s is None else left_s * gpus,
        )

    def finish(self, key: int) -> None:
        self.book.finish(self.view.now, key)

    def decide(self, now: float | None = None) -> list[Decision]:
        if now is not None:
            self.view.now = now
        decisions = self.policy.decide(self.view)
        self.apply(decisions)
        return decisions

    def apply(self, decisions: Sequence[Decision]) -> None:
        now = self.view.now
        for decision in decisions:
            job = self.view.jobs[decision.job]
            left = job.left_at(now)
            self.book.apply(now, decision)
            self.book.check()
            if left is not None:
                rate = job.curve.rate
                self.book.tell(now, job, left, job.gpus * rate[job.held] / rate[job.gpus])

    def held(self) -> dict[int, int]:
        return {key: job.held for key, job in self.view.jobs.items()}


# -- whole runs ------------------------------------------------------------------------------------

# Quanta and intervals that small jobs get to feel.
QUANTA = (60.0, 500.0)
MAKERS: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "static": Static,
    "srtf": Srtf,
    "tiresias": lambda: Tiresias(quanta=QUANTA),
    "tiresias-gittins": lambda: Gittins(quanta=QUANTA),
    "elastic-tiresias": lambda: ElasticTiresias(quanta=QUANTA, crowd=2),
    "optimus": lambda: Optimus(interval_s=60.0),
    "uniform": Uniform,
    "wf-srpt": WaterFilling,
    "wf-las": WaterFillingBlind,
}


def arrival(
    submit_s: float,
    gpus: int,
    seconds: float,
    *,
    curve: Curve = LINEAR,
    least: int = 1,
    most: int = 64,
    elastic: bool = True,
    name: str = "j",
) -> Arrival:
    return Arrival(
        submit_s=submit_s,
        name=name,
        gpus=gpus,
        size_gpu_s=gpus * seconds,
        curve=curve,
        least=least,
        most=most,
        elastic=elastic,
    )


def engine(
    arrivals: Sequence[Arrival],
    policy: Policy,
    *,
    nodes: int = 1,
    gpus_per_node: int = 8,
    together: bool = False,
    mechanism: str = "ideal",
    window_s: tuple[float, float] = (0.0, 0.0),
) -> Engine:
    book = Book(nodes=nodes, gpus_per_node=gpus_per_node, together=together)
    recorder = Recorder(arrivals[-1].submit_s, 10)
    prices = MECHANISMS[mechanism]
    return Engine(arrivals, policy, book, prices, recorder, window_s=window_s, check=True)


@dataclass(frozen=True)
class Drawn:
    nodes: int
    gpus_per_node: int
    mechanism: str
    arrivals: list[Arrival]

    def engine(self, policy: Policy, *, together: bool) -> Engine:
        if together and not isinstance(policy, Uniform):
            policy = Together(policy)
        return engine(
            self.arrivals,
            policy,
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            together=together,
            mechanism=self.mechanism,
        )


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """A cluster and up to ten jobs, some of them larger than a machine, some as large as all."""
    nodes, gpus_per_node = draw(st.sampled_from([(1, 4), (2, 4), (4, 2), (3, 4)]))
    capacity = nodes * gpus_per_node
    asked = sorted({1, 2, 3, 4, gpus_per_node + 1, capacity} - set(range(capacity + 1, 99)))
    # One curve for each number asked for, as fitted ones are: so no two kinds lose or gain alike.
    curves = {gpus: _curve(draw, gpus, capacity) for gpus in asked}
    now, arrivals = 0.0, []
    for number in range(draw(st.integers(1, 10))):
        now += draw(st.sampled_from([0.0, 0.0, 1.0, 7.5, 33.3]))
        gpus = draw(st.sampled_from(asked))
        arrivals.append(
            arrival(
                now,
                gpus,
                draw(st.sampled_from([0.5, 10.0, 60.0, 333.3, 1000.0])),
                curve=curves[gpus],
                least=1 + gpus // 3,
                most=min(capacity, gpus + 3),
                elastic=draw(st.sampled_from([True, True, False])),
                name=f"j{number}",
            )
        )
    return Drawn(nodes, gpus_per_node, draw(st.sampled_from(sorted(MECHANISMS))), arrivals)


def _curve(draw: st.DrawFn, gpus: int, capacity: int) -> Curve:
    """Speeds up to the whole cluster; with falls and jumps in it, if the draw is bad."""
    rates, step = [0.0], 10.0
    shape = draw(st.sampled_from([(0.7, 0.95), (0.99, 0.999), (-0.3, 1.2)]))
    for p in range(1, capacity + 1):
        rates.append(max(0.5, rates[-1] + step))
        # Not by draws: a few are enough to tell a curve, and one for each GPU is slow. And for
        # each number asked for a little different.
        step *= shape[(p * (gpus + 2)) % 2] - gpus / 997
    return Curve(rates, label=f"for {gpus}")
