"""Frozen settings of one job: unit, default and reason per field.

Each field can be set by the environment variable `EDL_` + its name in capitals, so a launcher
hands them to its workers without another channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from edl.errors import UsageError

__all__ = ["DIVERGENCE_POLICIES", "STRAGGLER_POLICIES", "Settings"]

# What is done when replicas are found to differ.
DIVERGENCE_POLICIES = ("stop", "warn", "resync")

# What becomes of a worker that is slower than the others.
STRAGGLER_POLICIES = ("off", "warn", "remove", "replace", "rebalance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be tuned in a job without changing its meaning."""

    # Time between announcing a switch and making it: the paper's T_a. Loaders use it to fetch
    # for the new split.
    switch_allowance_s: float = 0.5
    # 1: where no loader reads ahead, a switch is made as soon as everybody knows of it.
    switch_at_once: int = 1
    # How long a leaving worker may take to end its process once its last step is done.
    leave_allowance_s: float = 30.0
    # How long a worker that got SIGTERM may take to its next boundary; then it is a forced exit, as
    # by a second SIGTERM. 0: as long as it takes.
    grace_s: float = 0.0
    # A started process that has not registered by then will not come: imports happen later.
    register_timeout_s: float = 60.0
    # Imports, model and data of a newcomer; long, since nobody waits for it.
    ready_timeout_s: float = 600.0
    # Building a group takes milliseconds once everybody is ready; the rest is for slow machines.
    build_timeout_s: float = 30.0
    # Two members that cannot connect to each other make every group of both fail. After so many
    # failed builds one of the two is left out of the job; 0: never, builds are repeated for ever.
    unreached_builds: int = 3
    # Once connected, the members of a group prove the secret to each other within this time; it
    # doubles after each build that failed, up to build_timeout_s, in case they are only slow.
    proof_timeout_s: float = 5.0
    # The leader's key in the store lapses after this long without renewal. A launcher that saw
    # the leader's process end does not wait for it.
    lease_s: float = 2.5
    # A process whose agent has not answered for so long is frozen or cut off, and is lost.
    silence_s: float = 10.0
    # A process that runs, but whose agent does not answer, as while its script holds the GIL, is
    # waited for this long. 0: it is lost after silence_s, and no watchdog is started beside it.
    unresponsive_s: float = 300.0
    # A connection that closed may come back; after this long its worker counts as lost.
    reconnect_s: float = 2.0
    # Once no worker of the launcher's own is left: how long it waits for members on other machines
    # that do not answer before the job has failed.
    elsewhere_s: float = 300.0
    # After a failure: 0 brings replicas to the same state, 1 only to the same step (the paper's
    # USE_APPX_RECOVERY, which may be set by that name too).
    approximate_recovery: int = 0
    # The shortest time that a refused requester is told to wait.
    retry_after_s: float = 0.2
    # How long a client asks again before it gives up (the paper's 60 s).
    request_timeout_s: float = 60.0
    # Checkpoints (with `edl run --checkpoint`): every so many steps or seconds, whichever comes
    # first, 0 being never; and how many are kept.
    checkpoint_steps: int = 1000
    checkpoint_s: float = 600.0
    checkpoint_keep: int = 3
    # A worker that computes longer than so many times the median in so many steps in a row is a
    # straggler (the paper's 1.2 and 10), and one of STRAGGLER_POLICIES says what is done about it.
    stragglers: str = "warn"
    straggler_factor: float = 1.2
    straggler_steps: int = 10
    # And in so many more that it has computed for so long in them: ten steps of a few milliseconds
    # in a row are one slow spell of a busy machine.
    straggler_s: float = 0.5
    # One of DIVERGENCE_POLICIES says what is done when replicas differ. Hyperparameters are
    # compared at every step; parameters and optimizer state a part at a time, all within so many
    # steps (0: nothing is compared).
    on_divergence: str = "stop"
    digest_steps: int = 200
    # Joint limits of every request; 0 means no upper limit.
    min_workers: int = 1
    max_workers: int = 0

    @property
    def patience_s(self) -> float:
        """How long workers without a leader, or a leader without its founders, wait for them."""
        return self.register_timeout_s + self.silence_s + self.lease_s

    def to_environment(self) -> dict[str, str]:
        return {f"EDL_{f.name.upper()}": str(getattr(self, f.name)) for f in fields(self)}

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Settings:
        values: dict[str, float | int | str] = {}
        for field in fields(Settings):
            text = environment.get(f"EDL_{field.name.upper()}")
            if text is None and field.name == "approximate_recovery":
                text = environment.get("USE_APPX_RECOVERY")
            if text is None:
                continue
            if field.type == "str":
                values[field.name] = _policy(field.name, text)
                continue
            kind = int if field.type == "int" else float
            try:
                value = kind(text)
            except ValueError:
                raise UsageError(
                    f"EDL_{field.name.upper()}={text!r} is not {kind.__name__}; unset it or "
                    f"give a number such as {getattr(Settings(), field.name)}"
                ) from None
            # Also refuses "nan", which is neither.
            if not value >= 0:
                raise UsageError(f"EDL_{field.name.upper()}={text!r} is not 0 or more")
            values[field.name] = value
        return Settings(**values)  # type: ignore[arg-type]


def _policy(name: str, text: str) -> str:
    known = {"stragglers": STRAGGLER_POLICIES, "on_divergence": DIVERGENCE_POLICIES}[name]
    if text not in known:
        raise UsageError(
            f"EDL_{name.upper()}={text!r} is no policy; give one of {', '.join(known)}"
        )
    return text
