"""Every exception that EDL raises on purpose.

EdlError
+-- UsageError          the caller's input or script; says what to do instead
|   +-- UnknownJob      no job of that name
|   +-- Refused         a request that can never be granted as asked
+-- PeerError           another process: gone, foreign, or speaking nonsense
|   +-- WrongSecret     it could not prove the job's secret
|   |   +-- WrongCertificate    nor show a certificate that TLS accepts
|   +-- GroupBroken     a collective group that can no longer be used
|       +-- BuildFailed one that was never built; names the peers it could not reach
+-- StoreError          the coordination store: unreachable or contradictory
|   +-- StoreRefused    the store that `edl run` serves does not accept this process's secret
+-- DataError           a file of the dataset: vanished, shorter than it was, or not what it says
+-- CheckpointError     a checkpoint that could not be written or read; training is not harmed
+-- Diverged            the workers' replicas of the model are not equal any more
+-- AdjustmentFailed    an adjustment that was undone; the job trains on as before
+-- TimedOut            nobody answered, or the work was not done, in the time given
+-- JobFinished         the job ended before the request could be carried out
+-- JobFailed           the job itself ended in failure
SystemExit
+-- Leave               this worker's part is over (status 0)
"""

from __future__ import annotations

__all__ = [
    "AdjustmentFailed",
    "BuildFailed",
    "CheckpointError",
    "DataError",
    "Diverged",
    "EdlError",
    "GroupBroken",
    "JobFailed",
    "JobFinished",
    "Leave",
    "PeerError",
    "Refused",
    "StoreError",
    "StoreRefused",
    "TimedOut",
    "UnknownJob",
    "UsageError",
    "WrongCertificate",
    "WrongSecret",
]


class EdlError(Exception):
    """Root of what EDL raises on purpose."""


class UsageError(EdlError):
    """The caller's input is at fault; the message says what was expected."""


class UnknownJob(UsageError):
    """No job of that name is known to this user."""


class Refused(UsageError):
    """The request can never be granted as asked."""


class PeerError(EdlError):
    """Another process is gone, foreign, or speaks nonsense."""


class WrongSecret(PeerError):
    """The other side could not prove the job's secret, or refused ours."""


class WrongCertificate(WrongSecret):
    """TLS with the other side failed: no certificate, a foreign or expired one, or no TLS."""


class GroupBroken(PeerError):
    """A collective group failed; it must never be used again."""


class BuildFailed(GroupBroken):
    """A group could not be built. `unreached`: ids of the peers that could not be connected to;
    `unproven`: of those that did not prove the job's secret. Both are empty if the failure is
    nobody's in particular."""

    def __init__(
        self, why: str, *, unreached: tuple[str, ...] = (), unproven: tuple[str, ...] = ()
    ) -> None:
        super().__init__(why)
        self.unreached = unreached
        self.unproven = unproven


class StoreError(EdlError):
    """The coordination store is unreachable or contradicts itself."""


class StoreRefused(StoreError):
    """The store and this process hold different secrets, or TLS failed; waiting does not help."""


class DataError(EdlError):
    """A file of the dataset cannot be read; the message names it."""


class CheckpointError(EdlError):
    """A checkpoint could not be written or read; the message says where, why and what to do."""


class Diverged(EdlError):
    """The workers' replicas differ; the message says which worker's, in what, and what to do."""


class AdjustmentFailed(EdlError):
    """The adjustment was undone; the job trains on without it."""


class TimedOut(EdlError):
    """No answer, or no completion, in the time given."""


class JobFinished(EdlError):
    """The job ended before the request could be carried out."""


class JobFailed(EdlError):
    """The job itself ended in failure."""


class Leave(SystemExit):
    """This worker leaves the job. `finally` blocks run; code after the training loop does not."""

    def __init__(self, why: str = "this worker leaves the job") -> None:
        super().__init__(0)
        self.why = why

    def __str__(self) -> str:
        return self.why
