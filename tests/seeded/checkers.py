"""What must hold in every world. Each checker reads a history and says what is wrong with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from edl.protocol.messages import Adjusted
from edl.protocol.record import STOP, Kind
from edl.types import WorkerId
from tests.seeded.history import Committed, History
from tests.seeded.process import KILLED
from tests.seeded.trainer import gradient, updated

__all__ = ["CHECKERS", "check"]

# How long the joiners of an undone adjustment may take to go.
_GONE_S = 25.0

Checker = Callable[[History], list[str]]


def check(history: History) -> dict[str, list[str]]:
    """Every checker that found something, by name."""
    found = {name: faults for name, checker in CHECKERS.items() if (faults := checker(history))}
    if not found and not history.lost:
        # A job that is wrong may well hang, too: that is told by what is wrong with it.
        found = {name: faults for name, checker in ENDINGS.items() if (faults := checker(history))}
    return found


def no_crash(history: History) -> list[str]:
    """No machine raises, whatever happens in whatever order."""
    return history.crashes[:3]


def by_step(history: History) -> dict[int, list[Committed]]:
    """The surviving history: a step counts in the latest generation that committed it."""
    latest: dict[int, int] = {}
    for commit in history.commits:
        latest[commit.step] = max(latest.get(commit.step, 0), commit.generation)
    steps: dict[int, list[Committed]] = defaultdict(list)
    for commit in history.commits:
        if commit.generation == latest[commit.step]:
            steps[commit.step].append(commit)
    return steps


def finished(history: History) -> bool:
    return history.state == "finished" and not history.lost and not history.stuck


def usable(history: History) -> int:
    rest = history.samples % history.batch if history.drop_last else 0
    return history.samples - rest


def once_per_epoch(history: History) -> list[str]:
    """Each sample once in an epoch that ran to its end, and never twice in any."""
    used: dict[int, Counter[int]] = defaultdict(Counter)
    for commits in by_step(history).values():
        for commit in commits:
            used[commit.epoch].update(commit.indexes)
    faults = []
    for epoch, counts in sorted(used.items()):
        twice = sorted(index for index, count in counts.items() if count > 1)
        if twice:
            faults.append(f"epoch {epoch} used samples {twice[:8]} more than once")
    if finished(history):
        for epoch in range(history.epochs):
            short = usable(history) - len(used[epoch])
            if short and epoch not in history.broken_epochs:
                faults.append(f"epoch {epoch} left {short} samples out")
    return faults


def same_batch(history: History) -> list[str]:
    """The aggregate batch is constant, except an epoch's last; and the weights add up to one."""
    faults = []
    position: Counter[int] = Counter()
    for step, commits in sorted(by_step(history).items()):
        total = sum(len(commit.indexes) for commit in commits)
        epoch = commits[0].epoch
        due = min(history.batch, usable(history) - position[epoch])
        position[epoch] += total
        complete = len(commits) == history.generations[commits[0].generation].size
        if complete and total != due:
            faults.append(f"step {step} used {total} samples instead of {due}")
        weights = sum(commit.weight for commit in commits)
        if complete and abs(weights - 1.0) > 1e-9:
            faults.append(f"the weights of step {step} add up to {weights}")
    return faults


def same_replicas(history: History) -> list[str]:
    """All replicas are equal before and after each step, and follow from the samples used."""
    faults = []
    before: tuple[int, int] | None = None
    for step, commits in sorted(by_step(history).items()):
        complete = len(commits) == history.generations[commits[0].generation].size
        states = {(commit.before, commit.after) for commit in commits}
        if len(states) > 1:
            faults.append(f"replicas differ at step {step}: {sorted(states)[:3]}")
        elif complete:
            (state,) = states
            total = sum(gradient(commit.indexes) for commit in commits)
            if state[1] != updated(state[0], total):
                faults.append(f"step {step} is not the update of its samples")
            if before is not None and state[0] != before:
                faults.append(f"step {step} does not start where the one before it ended")
        before = commits[0].after
    return faults[:5]


def same_switch(history: History) -> list[str]:
    """Everyone of a generation leaves it at the same step, for the same generation."""
    faults = []
    moves: dict[int, dict[WorkerId, tuple[int, int]]] = defaultdict(dict)
    for move in history.moves:
        moves[move.source][move.worker] = (move.target, move.step)
    for number, moved in moves.items():
        if len(set(moved.values())) > 1:
            faults.append(f"generation {number} was left differently: {moved}")
        stayed = [w for w in history.generations[number].workers() if w not in moved]
        if stayed and not history.lost:
            faults.append(f"generation {number} was left by {sorted(moved)}, not by {stayed[:8]}")
        target, step = next(iter(moved.values()))
        if target == STOP:
            continue
        first = {commit.step for commit in history.commits if commit.generation == target} or {step}
        if min(first) != step:
            faults.append(f"generation {target} began at {min(first)}, the switch was at {step}")
        faults += [
            f"{commit.worker} did step {commit.step} in generation {number}"
            for commit in history.commits
            if commit.generation == number and commit.step >= step
        ]
    return faults[:5]


def one_leader(history: History) -> list[str]:
    """A token belongs to one worker, and only a generation's leader announces in its records."""
    faults = []
    owners: dict[int, set[WorkerId]] = defaultdict(set)
    for worker, token in history.leaders:
        owners[token].add(worker)
    for worker, word in history.announcements:
        owners[word.token].add(worker)
    for token, workers in owners.items():
        if len(workers) > 1:
            faults.append(f"token {token} was used by {sorted(workers)}")
    for gathered in history.rounds:
        members = gathered.generation.workers()
        speaking = [w for w, r in zip(members, gathered.records, strict=True) if r.next_generation]
        if any(worker != gathered.generation.leader for worker in speaking):
            number, leader = gathered.generation.number, gathered.generation.leader
            faults.append(f"{speaking} announced in generation {number}, whose leader is {leader}")
    return faults[:5]


def recorded_first(history: History) -> list[str]:
    """A generation is announced only once it is in the store."""
    return history.unrecorded[:3]


def one_answer(history: History) -> list[str]:
    """Nobody gets two different final answers under one request id."""
    faults = []
    for request_id, said in history.answers.items():
        if request_id.startswith("leave-"):
            continue  # the leader's own scale-in, tried again until it succeeds
        kinds = {type(one.answer).__name__ for one in said}
        records = {one.answer.record for one in said if isinstance(one.answer, Adjusted)}
        if len(kinds) > 1 or len(records) > 1:
            faults.append(f"request {request_id} was answered {sorted(kinds)} ({len(said)} times)")
    for request in history.requests:
        kinds = {kind for _, kind in request.finals}
        # What the store says of an ended job stands for an answer that never arrived.
        kinds -= {"Finished"} if len(kinds) > 1 and history.state else set()
        if len(kinds) > 1:
            faults.append(f"request {request.request_id} heard {sorted(kinds)}")
    return faults


def undone_is_harmless(history: History) -> list[str]:
    """Nobody trains in a generation that was undone, and its joiners go at once."""
    faults = []
    for request in history.requests:
        said = history.answers.get(request.request_id, [])
        undone = [one for one in said if type(one.answer).__name__ == "Undone"]
        if not undone or not request.joiners:
            continue
        for commit in history.commits:
            if commit.worker in request.joiners:
                faults.append(f"{commit.worker} trained, but {request.request_id} was undone")
                break
        for worker in request.joiners:
            end = history.exits.get(worker)
            began = max(undone[0].time, history.started.get(worker, 0.0))
            late = (end.time if end else history.ended_at) - began
            if worker in history.started and late > _GONE_S:
                faults.append(f"{worker} was still there {late:.1f} s after it was undone")
    return faults


def everything_ends(history: History) -> list[str]:
    """Once faults stop, the job goes on to its end: nothing waits for ever."""
    faults = []
    if history.stuck:
        faults.append(f"not over after {history.ended_at:.0f} s: {history.stuck}")
    if history.state not in ("finished", "stopped"):
        faults.append(f"the store says {history.state!r} of the job")
    return faults


def every_request_is_answered(history: History) -> list[str]:
    """Whoever asks hears a final answer, and what it hears is true."""
    faults = []
    for request in history.requests:
        kinds = {kind for _, kind in request.finals}
        if not kinds:
            faults.append(f"request {request.request_id} was never answered")
        trained = {commit.worker for commit in history.commits}
        if "Adjusted" in kinds and not set(request.joiners) <= trained:
            idle = [worker for worker in request.joiners if worker not in trained]
            if not _voided(history):
                faults.append(f"{request.request_id} is complete, but {idle} never trained")
    return faults


def _voided(history: History) -> bool:
    """Whether a loop was left early, so that a newcomer's only step may count for nobody."""
    kinds = {record.kind for gathered in history.rounds[-3:] for record in gathered.records}
    return bool(history.broken_epochs) or Kind.END in kinds


def right_exits(history: History) -> list[str]:
    """Members and leavers end with 0; so do joiners that were dismissed, unless for a fault."""
    faults = []
    undone = {
        worker
        for request in history.requests
        for one in history.answers.get(request.request_id, [])
        if type(one.answer).__name__ in ("Undone", "Finished")
        for worker in request.joiners
    }
    for worker in history.started:
        end = history.exits.get(worker)
        if end is None:
            faults.append(f"{worker} never ended")
        elif end.status == 1 and worker not in undone:
            faults.append(f"{worker} failed: {end.why}")
        elif end.status == 1 and "not expected" not in end.why:
            faults.append(f"{worker} failed, though it did nothing wrong: {end.why}")
        elif end.status not in (0, 1, KILLED):
            faults.append(f"{worker} ended with {end.status}")
    return faults


CHECKERS: dict[str, Checker] = {
    "no_crash": no_crash,
    "once_per_epoch": once_per_epoch,
    "same_batch": same_batch,
    "same_replicas": same_replicas,
    "same_switch": same_switch,
    "one_leader": one_leader,
    "recorded_first": recorded_first,
    "one_answer": one_answer,
    "undone_is_harmless": undone_is_harmless,
}

# These can only be judged where nothing died that recovery must replace.
ENDINGS: dict[str, Checker] = {
    "everything_ends": everything_ends,
    "every_request_is_answered": every_request_is_answered,
    "right_exits": right_exits,
}
