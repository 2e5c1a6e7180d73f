"""One job of local processes, from its first worker to its last, through restarts.

Everything here runs in the hub's thread, which also starts the processes: it lives as long as the
job, so no locks are needed and no worker is orphaned. Owns: the processes, and how the job ends.
Holds: a worker that dies costs the job that worker; when nobody is left the job is started again
from its last checkpoint, or is over; then no process of it is left, and result.json says how it
ended. Each start is a run, with keys, workers and a census of its own.
"""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from edl.config import Settings
from edl.errors import Refused, UsageError
from edl.launch.base import Backend, Ended, JobSpec
from edl.launch.census import Census, Judged
from edl.launch.checkpoints import CheckpointNews
from edl.launch.crew import Crew
from edl.launch.departures import Departures
from edl.launch.dismissal import Dismissal
from edl.launch.elsewhere import Elsewhere, Presence
from edl.launch.ending import Ending
from edl.launch.follow import Follower
from edl.launch.history import History
from edl.launch.jobs import Failure, JobFolder, Result
from edl.launch.processes import how_it_ended
from edl.launch.restarts import Again, Restarts
from edl.launch.seen import Lookout, Seen
from edl.launch.service import KEPT_REQUESTS, LaunchService
from edl.launch.slots import SlotBook
from edl.launch.wishes import Wishes, workers_in
from edl.protocol.conductor import GENERATION_KEY
from edl.protocol.election import LEADER_KEY
from edl.protocol.leader import STATE_KEY
from edl.protocol.messages import AdjustmentRecord, Happened, Joiner, Status, StopJob
from edl.store.base import Versioned
from edl.types import WorkerId
from edl.wire.hub import Hub, Peer

__all__ = ["Life"]

log = logging.getLogger("edl.launch")

# After a fault of its own the launcher waits so long for its workers, which it killed, to end.
FAULT_S = 10.0
# A newcomer whose adjustment was undone hears of it by itself; this is for one that does not.
UNDONE_S = 5.0
# So many lost workers are listed for `edl status`; events.jsonl has them all.
LOST_KEPT = 20


class Life:
    """The `Floor` of the launch service. `history.told` carries what a user should see.

    `begin_run` has the keys of a run watched, and `on_key` told of them; `revoke` ends a lease in
    the store, by its name; `fence` deletes a run's generation of a revision, then calls back.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        spec: JobSpec,
        settings: Settings,
        folder: JobFolder,
        slots: SlotBook,
        processes: Backend,
        environment: dict[str, str],
        begin_run: Callable[[str], None],
        revoke: Callable[[str], None],
        fence: Callable[[str, int, Callable[[], None]], None],
    ) -> None:
        self._hub = hub
        self._spec = spec
        self._settings = settings
        self._folder = folder
        self._processes = processes
        self._begin_run = begin_run
        self._revoke = revoke
        self._fence = fence
        self._crew = Crew(
            spec=spec,
            settings=settings,
            folder=folder,
            slots=slots,
            processes=processes,
            environment=environment,
        )
        self._interrupts = 0
        self._fault_at: float | None = None  # when the launcher itself failed
        # Requests that earlier runs carried out: the leader of a later run does not know them.
        self._outcomes: dict[str, AdjustmentRecord] = {}
        self._restarts = Restarts(most=spec.restarts, checkpoint=bool(spec.checkpoint))
        self._due: float | None = None  # when the next run begins, between two
        self.history = History(folder)
        self._checkpoints = CheckpointNews(folder)
        self.service = LaunchService(self, slots, hub.send)
        self._dismissal = Dismissal(hub, processes, folder, lambda: self.result is not None)
        self._began = time.monotonic()
        self.status: Status | None = None
        self._lookout = Lookout(folder)
        self._lost: list[Failure] = []  # over all restarts
        self.result: Result | None = None
        self.over_event = threading.Event()
        self._wishes = Wishes(
            spec=spec,
            allowance_s=settings.switch_allowance_s,
            folder=folder,
            service=self.service,
            history=self.history,
            give_up=partial(self.give_up, why="its time is over before it has joined"),
        )
        self._census = Census(())
        self._new_run(spec.founders(slots.gpus))

    def _new_run(self, count: int, before: Iterable[WorkerId] = (), *, least: int = 0) -> None:
        """Refused if there are not enough slots, or not `least` if that is given."""
        self.founders = self.service.found(count, before, least=least)
        self.run = secrets.token_hex(4)
        self._census = Census((j.worker for j in self.founders), records=self._census.records)
        self._ending = Ending(self._folder, self._census)
        self.follower = Follower(
            self._hub,
            on_event=self._on_event,
            on_status=self._on_status,
            on_answer=lambda answer: self._wishes.on_answer(answer, time.monotonic()),
        )
        self._departures = Departures(self.follower, self._census)
        self._elsewhere = Elsewhere(
            self._hub, patience_s=self._settings.elsewhere_s, note=self._note_elsewhere
        )
        self._fenced_since: float | None = None
        self._wishes.restart(self.follower, self.founders)

    def close(self) -> None:
        self.history.close()

    # -- what the launch service asks ------------------------------------------------------

    def over(self) -> str:
        name = self._folder.name
        if self._ending.stopping and self.result is None:
            return f"job {name} is stopping"
        ended = self._census.over or (self._ending.failed and self._due is None)
        return f"job {name} is over" if ended or self.result is not None else ""

    def away(self) -> str:
        return "" if self._due is None else f"job {self._folder.name} is restarting"

    def outcome(self, request_id: str) -> AdjustmentRecord | None:
        return self._outcomes.get(request_id)

    def start(self, joiners: Iterable[Joiner], request_id: str) -> None:
        started = self._crew.start(
            tuple(joiners),
            request_id,
            run=self.run,
            founders=len(self.founders),
            attempt=self._restarts.count,
        )
        for worker in started:
            self._census.on_started(worker, request_id)
            self._wishes.on_started([worker], request_id)

    def give_up(self, request_id: str, why: str = "its requester gave up") -> None:
        """The leader decides: it undoes the adjustment, unless the switch has begun."""
        self._departures.withdrawn(request_id, why)

    def alive(self) -> tuple[WorkerId, ...]:
        return self._processes.alive()

    def end(self, why: str, *, force: bool) -> None:
        self._stop(why, status=128 + signal.SIGTERM, force=force)

    # -- the launcher's callbacks ----------------------------------------------------------

    def begin(self) -> None:
        if self._ending.stopping:  # before there was anybody to tell it to
            return self._conclude(self._result())
        try:
            self._folder.write_run(self.run)
            self._begin_run(self.run)
            self.start(self.founders, "")
        except Exception as error:
            expected = isinstance(error, OSError | UsageError)
            log.error("launch.begin failed why=%r", str(error), exc_info=not expected)
            self._ending.fail_without_worker(f"the workers could not be started: {error}")
            self._census.on_not_started(joiner.worker for joiner in self.founders)
            self._kill_all()

    def on_interrupt(self, signum: int) -> None:
        """The first asks everybody to leave at the step's end, the second kills."""
        self._interrupts += 1
        name = signal.Signals(signum).name
        self._stop(f"interrupted ({name})", status=128 + signum, force=self._interrupts > 1)
        if self._interrupts == 1 and self.result is None:
            self.history.say("stopping at the end of this step; once more kills the workers")

    def on_message(self, peer: Peer, message: object) -> None:
        if self.follower.on_message(peer, message):
            return
        if self.service.handles(message):
            self.service.on_message(peer, message, time.monotonic())
        else:
            log.warning("launch.stray peer=%s message=%s", peer.name, type(message).__name__)

    def on_key(self, run: str, key: str, news: Versioned) -> None:
        """What stands at a key of that run, at first and after each change."""
        if run != self.run or self.result is not None or self._due is not None:
            return
        if key == LEADER_KEY:
            self._census.on_leader(news.value, time.monotonic())
            self.follower.on_leader(news.value, news.revision)
        elif key == GENERATION_KEY and news.value is not None:
            try:
                self._census.on_generation(news.value, news.revision)
                self._fenced_since = None
            except (ValueError, KeyError, TypeError) as error:
                log.warning("launch.generation unreadable why=%r", repr(error))
        elif key == STATE_KEY and news.value is not None:
            self._census.on_state(news.value.decode(errors="replace"))

    def on_tick(self) -> None:
        if self.result is not None:
            return
        now = time.monotonic()
        if self._fault_at is None:
            try:
                self._look_around(now)
                return
            except Exception as error:
                log.exception("launch.tick failed")
                self._ending.fail_without_worker(f"the launcher failed: {error!r}")
                self._fault_at = now
                self._try("kill", self._kill_all)
        self._end_after_fault(self._fault_at, now)

    def _end_after_fault(self, since: float, now: float) -> None:
        """Wait for the killed workers to end, then conclude, whatever else fails."""
        self._try("reap", self._processes.ended)
        if self._processes.alive() and now - since < FAULT_S:
            return
        try:
            result = self._result()
        except Exception as error:
            log.exception("launch.result failed")
            result = Result(
                state="failed",
                exit_status=1,
                why=f"the launcher failed: {error!r}",
                first_failure=None,
                steps=self._census.step,
                seconds=round(now - self._began, 3),
                adjustments=(),
                restarts=self._restarts.count,
            )
        self._conclude(result)

    def _try(self, what: str, action: Callable[[], object]) -> None:
        """One part of ending a job; a fault in it must not keep the others from being done."""
        try:
            action()
        except Exception:
            log.exception("launch.%s failed", what)

    def _look_around(self, now: float) -> None:
        self.service.on_tick(now)
        if self._due is not None:
            if now >= self._due:
                self._begin_again()
            return
        for ended in self._processes.ended():
            self._on_ended(ended, now)
        for cold in self._processes.cold_starts():
            step = self._census.step
            self.history.note("worker.cold_start", step=step, worker=cold.worker, why=cold.why)
        for judged in self._census.judge(now):
            self._on_judged(judged)
        self.follower.on_tick(now)
        for what, step, fields in self._checkpoints.poll():
            self.history.note(what, step=step, **fields)
        self._departures.tidy()
        if self._census.founded and not self.over():
            self._wishes.on_tick(self._census, self._processes.alive(), now)
        self._notice_expelled(now)
        if self._census.over:
            self._dismiss([*self._census.pending(), *self._census.expelled()])
        elif self._census.deserted(now) and not self._ending.forced:
            self._end_all()
        if not self._census.open:
            self._look_elsewhere(now)

    # -- members that somebody else started ------------------------------------------------

    def on_open(self, peer: Peer) -> None:
        if not self._elsewhere.on_open(peer):
            self.follower.on_open(peer)

    def on_closed(self, peer: Peer, why: str) -> None:
        if not self._elsewhere.on_closed(peer, why):
            self.follower.on_closed(peer, why)

    def _look_elsewhere(self, now: float) -> None:
        """No process of ours is left: finish, unless members on other machines may live.

        The generation is fenced before a restart, also where no such member is known: the store
        may hold a generation, or an end, that the launcher has not seen yet.
        """
        members = {} if self._ending.forced else self._census.elsewhere()
        presence = Presence.GONE
        if members:
            presence = self._elsewhere.look(members, led=self._census.has_leader, now=now)
            waiting = self._elsewhere.waiting
            told = f"waiting for {self._elsewhere.waiting_for(now)}" if waiting else ""
            self._lookout.wait(told, now)
        elif not self._may_restart():
            self._finish()
            return
        if presence is Presence.GONE:
            self._fence_off(now)
        else:
            self._fenced_since = None
        if presence is Presence.EXPIRED:
            self._give_up_elsewhere(
                f"lost contact with {self._elsewhere.waiting_for(now)} and may still train, so the "
                "job was not started again; end it there, or raise EDL_ELSEWHERE_S to wait longer"
            )
        elif self._fence_overdue(now):
            self._give_up_elsewhere(
                f"no worker is left, and the store has not answered for "
                f"{self._settings.elsewhere_s:g} s, so the job was not started again"
            )

    def _may_restart(self) -> bool:
        census = self._census
        ended = census.over or self._ending.stopping
        return not ended and self._restarts.possible(began=census.founded)

    def _give_up_elsewhere(self, why: str) -> None:
        """Never a restart: a second job must not train beside one that may live."""
        self._ending.fail_without_worker(why)
        self._conclude(self._result())

    def _fence_off(self, now: float) -> None:
        """Nobody goes on in the old generation once its key is deleted: only then it is over."""
        if self._fenced_since is None:
            self._fenced_since = now
            self._fence(self.run, self._census.revision, partial(self._on_fenced, self.run))

    def _fence_overdue(self, now: float) -> bool:
        since = self._fenced_since
        return since is not None and now - since >= self._settings.elsewhere_s

    def _on_fenced(self, run: str) -> None:
        waits = self._fenced_since is not None and self._due is None
        if run != self.run or not waits or self.result is not None:
            return
        if not self._ending.forced and (lost := self._census.elsewhere()):
            self._ending.lose_elsewhere(lost)
        self._finish()

    def _note_elsewhere(self, what: str, **fields: str | int | float) -> None:
        self.history.note(what, step=self._census.step, **fields)

    # -- processes end ---------------------------------------------------------------------

    def _on_ended(self, ended: Ended, now: float) -> None:
        worker, how = ended.worker, how_it_ended(ended.status)
        log.info("launch.ended worker=%s how=%r", worker, how)
        # Whatever it held in the store need not wait until it lapses.
        self._revoke(self._crew.lease_of(worker))
        self.service.on_process_ended(worker, now)
        self._census.on_ended(ended, now)
        self._ending.also_ended(ended)
        if not self._census.over:
            self._departures.tell(worker, self._census.request_of(worker), how)

    def _on_judged(self, judged: Judged) -> None:
        worker = judged.ended.worker
        if judged.failed or judged.lost:
            self._note_divergence(judged)
        if judged.failed:
            self._ending.fail(judged)
            self._end_all()
        elif judged.lost:
            self._on_lost(judged)
        elif judged.why:
            self.history.say(f"worker {worker}: {judged.why}; the job goes on")
            log.warning("launch.harmless worker=%s why=%r", worker, judged.why)

    def _on_lost(self, judged: Judged) -> None:
        """A forced exit: the others go on without it, if there are any and they can."""
        worker, how = judged.ended.worker, judged.why or how_it_ended(judged.ended.status)
        left, least = self._census.working(), self._spec.min_workers
        failure = self._ending.failure(judged)
        told = {"worker": worker, "how": how, "log": failure.log}
        if failure.error:
            told["error"] = failure.error
        self.history.note("process.ended", step=self._census.step, **told)
        self._lost = [*self._lost, failure][-LOST_KEPT:]
        self._try("lost", partial(self._folder.write_lost, self._lost))
        reason = self._ending.lose(judged)
        if not self._departures.was_expelled(worker):
            self._wishes.on_lost(worker, time.monotonic())
        if reason:
            self.history.say(f"{reason}: the job ends")
            self._end_all()
            return
        if left or self._spec.checkpoint:  # otherwise the result says it
            for text in _loss_texts(failure, own=self._ending.own_fault(judged)):
                self.history.say(text)
        if 0 < left < least:
            self.history.note("job.short", step=self._census.step, workers=left, min=least)

    def _note_divergence(self, judged: Judged) -> None:
        """Workers that stop because replicas differ have no time to emit an event of their own."""
        note = self._ending.note(judged.ended)
        if note is None or not note.diverged or self._ending.failed:
            return
        step = note.step if note.step is not None else self._census.step
        self.history.note("replicas.diverged", step=step, policy="stop", why=note.headline)

    def _notice_expelled(self, now: float) -> None:
        """One that is frozen is lost too, and cannot go by itself: it has its time, as leavers."""
        for worker in self._departures.newly_expelled():
            self._wishes.on_lost(worker, now)
            log.warning("launch.expelled worker=%s", worker)
            allowance_s = self._settings.leave_allowance_s
            self._hub.call_later(allowance_s, partial(self._dismiss, [worker]))

    # -- what the leader says --------------------------------------------------------------

    def _on_status(self, status: Status) -> None:
        self.status = status
        self._census.on_status(status)
        self._wishes.on_status(status)
        self._lookout.glance(status, restarts=self._restarts.count, now=time.monotonic())

    def _on_event(self, event: Happened) -> None:
        self._census.on_event(event)
        self.history.add(event)
        self._wishes.on_event(event)
        if event.what == "adjust.complete":
            self._wishes.on_complete(event, time.monotonic())
            leave = partial(self._dismiss, workers_in(event, "left"))
            self._hub.call_later(self._settings.leave_allowance_s, leave)
        if event.what == "adjust.undone":
            pending = self._census.of_request(event.request_id)
            # Those that were lent a time need theirs to have ended by then.
            lent = self.service.lent_until(event.request_id) is not None
            self._hub.call_later(0.0 if lent else UNDONE_S, partial(self._dismiss, pending))
        if event.what in ("adjust.complete", "adjust.undone"):
            # The adjustment is settled, so nobody needs to hear again whose process ended.
            self._departures.settled(event.request_id)
            self.service.on_settled(event.request_id, time.monotonic())

    # -- ending ----------------------------------------------------------------------------

    def _stop(self, why: str, *, status: int, force: bool) -> None:
        self._ending.stop(why, status=status)
        if self._due is not None:
            self._conclude(self._result())
        elif force:
            self._kill_all()
        elif self._census.founded and not self._census.over:
            stop = StopJob(request_id=f"stop-{self._folder.name}", why=why)
            self.follower.tell("stop", stop)
        else:
            self._end_all()

    def _end_all(self) -> None:
        self._census.ending = self._ending.forced = True
        self._dismissal.everybody()

    def _kill_all(self) -> None:
        self._census.ending = self._ending.forced = True
        self._dismissal.kill(self._processes.alive())

    def _dismiss(self, workers: Iterable[WorkerId]) -> None:
        """End processes that are no members (any more)."""
        alive = set(self._processes.alive())
        for worker in workers:
            if worker not in alive or self._census.is_member(worker):
                continue
            if self._census.on_dismissed(worker):
                self._dismissal.one(worker)

    def _result(self) -> Result:
        seconds = time.monotonic() - self._began
        return self._ending.result(seconds, restarts=self._restarts.count)

    def _finish(self) -> None:
        """Every process has ended: the job is over, or begins again."""
        result, census = self._result(), self._census
        if result.state == "failed" and not self._ending.stopping:
            decided = self._restarts.decide(
                began=census.founded,
                over=bool(census.over),
                step=census.step,
                cause=self._ending.cause,
                twice=self._ending.twice,
            )
            if isinstance(decided, Again):
                last = self._ending.last_failure()
                why = result.why
                if last is not None:
                    why = f"{why} (the last was {last.worker}: {last.reason})"
                self._pause(decided, why)
                return
            if decided.why:
                result = replace(result, why=f"{result.why}; not started again: {decided.why}")
        self._conclude(result)

    def _pause(self, again: Again, why: str) -> None:
        step = self._result().steps
        self._due = time.monotonic() + again.pause_s
        self.follower.close()
        self.status = None
        self._lookout.see(replace(self._lookout.last, step=step, restarts=again.number))
        self.history.note(
            "job.restarting", step=step, restart=again.number, why=why, pause_s=again.pause_s
        )

    def _begin_again(self) -> None:
        """With as many workers as the last generation had, and those that were being replaced.

        Where other jobs have taken slots meanwhile: with fewer workers, but at least `--min`.
        """
        self._due = None
        self.service.forget()
        known = self._outcomes | self._census.outcomes()
        self._outcomes = dict(list(known.items())[-KEPT_REQUESTS:])
        size = self._census.size - self._wishes.over(time.monotonic())
        least = self._spec.min_workers
        count = max(size, least, self._wishes.lost)
        before = self._wishes.in_order(self._census.members())
        try:
            self._new_run(min(count, self._spec.max_workers or count), before, least=least)
        except Refused as error:
            self._await_slots(f"the job could not be started again: {error}")
            return
        self.begin()

    def _await_slots(self, why: str) -> None:
        """Other jobs hold the slots. That was one restart, and the next one comes after a pause."""
        decided = self._restarts.without_slots()
        if isinstance(decided, Again):
            self._pause(decided, why)
            return
        self._ending.fail_without_worker(f"{why}; {decided.why}")
        self._conclude(self._result())

    def _conclude(self, result: Result) -> None:
        self._due = None
        self.result = result
        self._try("seen", partial(self._write_seen, result))
        self._try("result", partial(self._folder.write_result, result))
        if result.state == "failed":
            self._try("history", partial(self.history.failed, result))
        log.info("launch.over state=%s status=%d", result.state, result.exit_status)
        over = f"job {self._folder.name}: {result.state}"
        self._try("answers", partial(self.service.on_job_over, over))
        self._try("follower", self.follower.close)
        self.over_event.set()

    def _write_seen(self, result: Result) -> None:
        told = self.status if self.status and self.status.generation else None
        last = Seen.of(told, restarts=result.restarts) if told else self._lookout.last
        step = max(last.step, result.steps)
        self._lookout.see(replace(last, step=step, workers=self._census.size))


def _loss_texts(failure: Failure, *, own: bool) -> Iterator[str]:
    """For the screen of a job that goes on: what happened, the traceback, and the log."""
    if not own:
        yield f"worker {failure.worker} was lost: {failure.error or failure.reason}"
    else:
        step = "" if failure.step is None else f" at step {failure.step}"
        trace = "".join(f"\n  {line}" for line in failure.traceback.rstrip().splitlines())
        yield f"worker {failure.worker} failed{step}: {failure.error}{trace}"
    yield f"its log: {failure.log}"
