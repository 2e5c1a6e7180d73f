"""What travels between a client and the launcher, and the codec of the launcher's port.

The leader never starts processes: whoever owns the slots does. So a scale-out speaks to both, and
the request id ties the two halves together. Every request may be repeated: the same id gets the
same answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.protocol.messages import MESSAGES as PROTOCOL_MESSAGES
from edl.protocol.messages import Joiner
from edl.store.service import MESSAGES as STORE_MESSAGES
from edl.types import Address, Gpu, WorkerId
from edl.wire.codec import Codec

__all__ = [
    "MESSAGES",
    "AskLauncher",
    "AskOutcome",
    "AwaitGone",
    "EndJob",
    "Gone",
    "LauncherStatus",
    "Release",
    "Reserve",
    "Reserved",
    "StartWorkers",
    "Started",
    "Unsettled",
    "port_codec",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Set slots aside, and give ids for the workers on them: `gpus` by name, or any `count`."""

    request_id: str
    count: int
    gpus: tuple[Gpu, ...]
    for_s: float  # so long from now their processes have ended again; 0: they stay for good


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    request_id: str
    joiners: tuple[Joiner, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers:
    """The leader has accepted: start the processes of this reservation."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The requester gave up. Workers that the job has already taken in stay."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOutcome:
    """Whether a run of the job that is over carried out this request: `Adjusted` or `Unsettled`.

    The leader of the present run cannot know.
    """

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """No earlier run carried out the request; the present leader is to be asked."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitGone:
    """Answer when the processes of these leavers have ended, and their slots are free.

    And when the job's history tells how the request ended, so that whoever asked can read it there.
    """

    request_id: str
    workers: tuple[WorkerId, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    request_id: str
    still: tuple[WorkerId, ...]  # those that had not ended in the time given


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob:
    """Everybody leaves at the next boundary; `force`: everybody is killed now."""

    request_id: str
    why: str
    force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskLauncher:
    """What the launcher knows by itself, without a question to the store."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherStatus:
    request_id: str
    leader: Address | None  # the leader that the launcher follows; None before the first one
    store_silent_s: float  # since the job's store last answered the launcher


MESSAGES: tuple[type, ...] = (
    AskLauncher,
    LauncherStatus,
    AskOutcome,
    Unsettled,
    Reserve,
    Reserved,
    StartWorkers,
    Started,
    Release,
    AwaitGone,
    Gone,
    EndJob,
)


def port_codec() -> Codec:
    """Everything that is spoken at the launcher's port: protocol, store and launcher."""
    return Codec((*PROTOCOL_MESSAGES, *STORE_MESSAGES, *MESSAGES))
