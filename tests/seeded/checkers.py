"""What must hold in every world. Each checker reads a history and says what is wrong with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise

from edl.protocol.divergence import Divergence, find_divergence
from edl.protocol.messages import Adjusted
from edl.protocol.record import STOP
from edl.protocol.topology import Generation
from edl.types import WorkerId
from tests.seeded.endings import ENDINGS
from tests.seeded.history import Answered, Committed, Gathered, History, Tried
from tests.seeded.model import gradient, updated

__all__ = ["CHECKERS", "check", "divergence_of"]

# How long the joiners of an undone adjustment may take to go.
_GONE_S = 25.0

Checker = Callable[[History], list[str]]


def check(history: History) -> dict[str, list[str]]:
    """Every checker that found something, by name."""
    found = {name: faults for name, checker in CHECKERS.items() if (faults := checker(history))}
    if not found:
        # A job that is wrong may well hang, too: that is told by what is wrong with it.
        found = {name: faults for name, checker in ENDINGS.items() if (faults := checker(history))}
    return found


def no_crash(history: History) -> list[str]:
    """No machine raises, whatever happens in whatever order."""
    return history.crashes[:3]


def latest_of(history: History) -> dict[int, int]:
    """The surviving history: a step counts in the latest generation that committed it."""
    latest: dict[int, int] = {}
    for commit in history.commits:
        latest[commit.step] = max(latest.get(commit.step, 0), commit.generation)
    return latest


def by_step(history: History) -> dict[int, list[Committed]]:
    """Who committed each step where it counts."""
    latest = latest_of(history)
    steps: dict[int, list[Committed]] = defaultdict(list)
    for commit in history.commits:
        if commit.generation == latest[commit.step]:
            steps[commit.step].append(commit)
    return steps


def first_step(history: History, number: int) -> int:
    """The step that a generation began with."""
    return min(commit.step for commit in history.commits if commit.generation == number)


def tried_by_step(history: History) -> dict[int, list[Tried]]:
    """Who computed what in each step where it counts, also those that died before the commit."""
    latest = latest_of(history)
    steps: dict[int, list[Tried]] = defaultdict(list)
    for one in history.tried:
        if latest.get(one.step) == one.generation:
            steps[one.step].append(one)
    return steps


def finished(history: History) -> bool:
    return history.state == "finished" and not history.stuck


def usable(history: History) -> int:
    rest = history.samples % history.batch if history.drop_last else 0
    return history.samples - rest


def once_per_epoch(history: History) -> list[str]:
    """Each sample once in an epoch that ran to its end, and never twice in any."""
    used: dict[int, Counter[int]] = defaultdict(Counter)
    for tries in tried_by_step(history).values():
        for one in tries:
            used[one.epoch].update(one.indexes)
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
    tried = tried_by_step(history)
    for step, commits in sorted(by_step(history).items()):
        total = sum(len(one.indexes) for one in tried[step])
        epoch = commits[0].epoch
        due = min(history.batch, usable(history) - position[epoch])
        position[epoch] += total
        members = history.generations[commits[0].generation]
        if members.leaving and step > first_step(history, members.number):
            members = members.settled()
        complete = len(commits) == members.size
        if total != due:
            faults.append(f"step {step} used {total} samples instead of {due}")
        weights = sum(commit.weight for commit in commits)
        if complete and abs(weights - 1.0) > 1e-9:
            faults.append(f"the weights of step {step} add up to {weights}")
    return faults


def same_replicas(history: History) -> list[str]:
    """All replicas are equal before and after each step, and follow from the samples used."""
    faults = []
    before: tuple[int, int] | None = None
    tried = tried_by_step(history)
    for step, commits in sorted(by_step(history).items()):
        states = {(commit.before, commit.after) for commit in commits}
        if len(states) > 1:
            faults.append(f"replicas differ at step {step}: {sorted(states)[:3]}")
        else:
            (state,) = states
            total = sum(gradient(one.indexes) for one in tried[step])
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
        members = history.generations[number].settled().workers()
        stayed = [w for w in members if w not in moved]
        if stayed and not history.lost and not history.faulty:
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


def one_history(history: History) -> list[str]:
    """One job never becomes two: what was recorded is one line, and nobody trains beside it."""
    known: dict[int, Generation] = {}
    faults = []
    for generation in history.recorded:
        once = known.setdefault(generation.number, generation)
        # Who stayed for its first step only is recorded as gone after it.
        if generation not in (once, once.settled()):
            faults.append(f"generation {generation.number} was recorded with two memberships")
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for commit in history.commits:
        number, step = commit.generation, commit.step
        first[number] = min(first.get(number, step), step)
        last[number] = max(last.get(number, step), step)
        if number not in known:
            faults.append(f"{commit.worker} trained in generation {number}, never recorded")
        elif commit.worker not in known[number]:
            faults.append(f"{commit.worker} trained in generation {number} without being in it")
        elif commit.worker in known[number].leaving and step > first[number]:
            faults.append(f"{commit.worker} did step {step}, though it stayed for {first[number]}")
    numbers = sorted(first)
    for earlier, later in pairwise(numbers):
        slack = known[later].mended if later in known else False
        if last[earlier] > first[later] - (0 if slack else 1):
            faults.append(
                f"generation {earlier} went on to step {last[earlier]} "
                f"beside {later}, which began at {first[later]}"
            )
    return faults[:5]


def nobody_rolls_back(history: History) -> list[str]:
    """What a survivor has committed stands: it never does the same step again."""
    faults = []
    at: dict[WorkerId, int] = {}
    for commit in history.commits:
        if commit.step <= at.get(commit.worker, -1):
            faults.append(f"{commit.worker} did step {commit.step} after {at[commit.worker]}")
        at[commit.worker] = commit.step
    for worker, mine, theirs in history.adopted:
        if theirs < mine:
            faults.append(f"{worker} went back from step {mine} to {theirs}")
    return faults[:5]


def same_result(history: History) -> list[str]:
    """A reduction of the script has one result on everybody that goes on.

    Whoever is lost takes its own result with it: a worker that has one from a generation that fell
    may find another with those that went on without it. Nobody else may, however it ended.
    """
    faults = []
    mended = [generation for generation in history.recorded if generation.mended]
    for place, results in history.reduced.items():
        number, truth = max(results.values(), key=lambda held: held[0])
        for worker, (had, result) in results.items():
            went_on = [g for g in mended if had < g.number <= number and worker not in g]
            if result != truth and not went_on:
                faults.append(f"the reduction at {place} is {result} on {worker}, not {truth}")
    return faults[:5]


def nobody_blamed(history: History) -> list[str]:
    """Slow is not dead: nobody is counted as lost that no fault has met.

    A worker that has ended may be gone before its leader knows why. And where others fail, too, a
    leader that a fault has met, or that the job has left behind, is left by those that are well.
    """
    ends = history.exits
    out = {w for w, e in ends.items() if e.why.startswith("dismissed")} | history.touched
    faults = [
        f"{one.leader} called {one.worker} lost ({one.why})"
        for one in history.blamed
        if one.worker not in history.touched
        and not (one.worker in ends and ends[one.worker].time <= one.time)
        and not (history.faulty and one.leader in out)
    ]
    return faults[:3]


def one_leader(history: History) -> list[str]:
    """A token belongs to one worker, and only a generation's leader announces in its records."""
    faults = []
    owners: dict[int, set[WorkerId]] = defaultdict(set)
    for worker, token in history.leaders:
        owners[token].add(worker)
    for worker, word in history.announcements:
        if word.generation == 0:
            continue
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


def divergence_of(gathered: Gathered) -> tuple[Divergence, ...]:
    """What all members of a round conclude about their replicas."""
    members = gathered.generation.workers()
    return find_divergence(dict(zip(members, gathered.records, strict=True)))


def no_false_divergence(history: History) -> list[str]:
    """Replicas that are equal are never said to differ, whatever happens to the workers."""
    if same_replicas(history):
        return []
    found = [found for gathered in history.rounds for found in divergence_of(gathered)]
    return [str(each) for each in found[:3]]


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
        records = {
            (record.kind, record.joined, record.left, record.generation)
            for record in (one.answer.record for one in said if isinstance(one.answer, Adjusted))
        }
        if history.faulty and len(kinds) > 1:
            kinds = _after_crashes(history, said)
        if len(kinds) > 1 or len(records) > 1:
            faults.append(f"request {request_id} was answered {sorted(kinds)} ({len(said)} times)")
    for request in history.requests:
        kinds = {kind for _, kind in request.finals} - {"Gone"}
        if history.faulty and kinds != {"Adjusted", "Undone"}:
            continue  # see `_after_crashes`
        # What the store says of an ended job stands for an answer that never arrived.
        kinds -= {"Finished"} if len(kinds) > 1 and history.state else set()
        if len(kinds) > 1:
            faults.append(f"request {request.request_id} heard {sorted(kinds)}")
    return faults


def _after_crashes(history: History, said: list[Answered]) -> set[str]:
    """What a leader said of things that were never recorded dies with it; the rest stands.

    So leaders may differ, but none of them with itself, nor about what became of an adjustment,
    nor after one is known to be complete. A worker that led before is another leader.
    """
    kinds = {type(one.answer).__name__ for one in said}
    own: dict[tuple[WorkerId, int], set[str]] = defaultdict(set)
    for one in said:
        own[one.worker, one.office].add(type(one.answer).__name__)
    alone = all(len(mine) == 1 for mine in own.values())
    differ = isinstance(said[0].answer, Adjusted) or kinds >= {"Adjusted", "Undone"}
    return kinds if differ or not alone else {type(said[-1].answer).__name__}


def undone_is_harmless(history: History) -> list[str]:
    """Nobody trains in a generation that was undone, and its joiners go at once."""
    faults = []
    for request in history.requests:
        said = history.answers.get(request.request_id, [])
        undone = [one for one in said if type(one.answer).__name__ == "Undone"]
        if not undone or not request.joiners:
            continue
        for worker in request.joiners:
            mine = [commit for commit in history.commits if commit.worker == worker]
            if mine and not _undone_by_a_failure(history, mine, undone[0].time):
                faults.append(f"{worker} trained, but {request.request_id} was undone")
            end = history.exits.get(worker)
            began = max(undone[0].time, history.started.get(worker, 0.0))
            late = (end.time if end else history.ended_at) - began
            # Where nobody is left to lead, nobody is left to tell it either.
            alone = end is not None and "has had no leader" in end.why
            if worker in history.started and late > _GONE_S and not alone:
                faults.append(f"{worker} was still there {late:.1f} s after it was undone")
    return faults


def _undone_by_a_failure(history: History, mine: list[Committed], told: float) -> bool:
    """A failure undoes a recorded scale-out also where a joiner has trained in it already.

    One of the joiners may die in the first step, in a world that is calm otherwise. Then all that
    a joiner ever did was done in that one generation, which was replaced, and before its requester
    heard of the undo; but one that slept ends the step that it was in. A member that notices a lost
    connection after `reconnect_s` is called lost too.
    """
    failed = history.faulty or history.lost or bool(history.touched)
    numbers = {commit.generation for commit in mine}
    replaced = any(g.mended and g.number > min(numbers) for g in history.recorded)
    after = [commit for commit in mine if commit.time > told]
    slept = mine[0].worker in history.touched and after == mine[:1] == mine
    return failed and len(numbers) == 1 and replaced and (not after or slept)


def new_leaders_know_the_step(history: History) -> list[str]:
    """A new leader's first event carries the step that its shell knows to be committed."""
    return [
        f"{leader} led at step {known}, and told {told}"
        for leader, known, told in history.told_steps
        if told < known
    ][:5]


CHECKERS: dict[str, Checker] = {
    "no_crash": no_crash,
    "once_per_epoch": once_per_epoch,
    "same_batch": same_batch,
    "same_replicas": same_replicas,
    "same_switch": same_switch,
    "one_history": one_history,
    "nobody_rolls_back": nobody_rolls_back,
    "same_result": same_result,
    "nobody_blamed": nobody_blamed,
    "one_leader": one_leader,
    "no_false_divergence": no_false_divergence,
    "new_leaders_know_the_step": new_leaders_know_the_step,
    "recorded_first": recorded_first,
    "one_answer": one_answer,
    "undone_is_harmless": undone_is_harmless,
}
