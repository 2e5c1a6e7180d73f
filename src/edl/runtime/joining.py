"""How a process that no launcher of this job started gets into it: it asks for itself.

With EDL_JOIN=1 a process finds the job through its store and asks the leader for a scale-out of
one: itself. From then on it is a newcomer like any other. Holds: the same request is asked until
it is accepted or refused, so a leader that changes meanwhile, or is busy with another adjustment,
is no special case; training does not notice before the newcomer is ready.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address

from edl.errors import (
    EdlError,
    JobFinished,
    PeerError,
    Refused,
    StoreError,
    StoreRefused,
    TimedOut,
    UsageError,
    WrongSecret,
)
from edl.protocol import messages as m
from edl.protocol.election import LEADER_KEY, Known, read_leader
from edl.runtime.clock import now
from edl.runtime.identity import Identity
from edl.store.base import Store, open_store
from edl.store.url import with_run
from edl.types import Address
from edl.wire.channel import Channel
from edl.wire.codec import Codec
from edl.wire.stream import listening

__all__ = ["let_in"]

PAUSE_S = 0.2
ANSWER_S = 5.0
CURRENT_KEY = "current"

Host = IPv4Address | IPv6Address


def let_in(identity: Identity, run: str) -> Identity:
    """Ask until the leader expects this worker; returns who it is then.

    Raises Refused or JobFinished if it is not wanted, TimedOut if nobody answers.
    """
    here = _own_address(identity.bind)
    if not run:
        run = _present_run(identity)
    store = with_run(identity.store, run)
    request_id = f"join-{identity.worker}-{secrets.token_hex(2)}"
    me = m.Joiner(worker=identity.worker, slot=identity.slot)
    request = m.ScaleOut(request_id=request_id, joiners=(me,))
    deadline = now() + identity.settings.request_timeout_s
    last, pause = "nobody answered", threading.Event()
    while now() < deadline:
        try:
            answer = _ask(replace(identity, store=store), request, here)
        except (StoreRefused, WrongSecret):
            # A wrong secret does not become right by waiting.
            raise
        except (PeerError, StoreError, TimedOut) as error:
            answer, last = None, str(error)
        match answer:
            case m.Accepted() | m.Adjusted():
                joined = replace(identity, store=store, request_id=request_id, unsupervised=True)
                joined.announce(
                    f"job {identity.job} accepted worker {identity.worker}; it joins at a step "
                    "boundary"
                )
                return joined
            case m.Refusal(reason=reason) | m.Undone(reason=reason):
                raise Refused(f"job {identity.job} refused worker {identity.worker}: {reason}")
            case m.Finished(reason=reason):
                raise JobFinished(f"job {identity.job}: {reason}")
            case m.Retry(reason=reason, after_s=after_s):
                last = reason
                pause.wait(after_s)
            case _:
                pause.wait(PAUSE_S)
    raise TimedOut(
        f"job {identity.job} did not admit worker {identity.worker} within "
        f"{identity.settings.request_timeout_s:g} s: {last}"
    )


def _present_run(identity: Identity) -> str:
    """Which run of the job is on, by the key that its launcher keeps."""
    store = _open(identity)
    try:
        found = store.get(CURRENT_KEY).value
    finally:
        store.close()
    if found is None:
        raise EdlError(
            f"the store knows of no job {identity.job!r} that runs; check EDL_JOB and EDL_STORE"
        )
    return str(json.loads(found)["run"])


def _ask(identity: Identity, request: m.ScaleOut, here: Host) -> object:
    """The leader's first word on it; None while nobody leads."""
    leader = _leader(identity)
    if leader is None:
        return None
    _check_host(identity, here, leader.address)
    with Channel(
        leader.address,
        job=identity.job,
        secret=identity.secret,
        codec=Codec(m.MESSAGES),
        timeout_s=ANSWER_S,
        tls=identity.tls,
    ) as channel:
        channel.send(request)
        return channel.receive(ANSWER_S)


def _own_address(bind: str) -> Host:
    """The address that this worker will listen on; UsageError if it cannot."""
    try:
        with listening(bind, 0) as probe:
            return _address_of(probe.getsockname()[0])
    except UsageError as error:
        raise UsageError(
            f"EDL_HOST={bind}: {error}; set EDL_HOST to an address of this machine"
        ) from None


def _check_host(identity: Identity, here: Host, leader: Address) -> None:
    """Refuse to join with an address that the other workers cannot reach."""
    if here.is_unspecified:
        what = "every address of this machine and none to dial"
    elif here.is_loopback and not _address_of(leader.host).is_loopback:
        what = "the loopback of this machine"
    else:
        return
    name = identity.bind if identity.bind == str(here) else f"{identity.bind} ({here})"
    address = _address_towards(leader)
    raise UsageError(
        f"EDL_HOST is {name}, {what}, but the leader of job "
        f"{identity.job} listens at {leader}: the other workers could not reach this process; set "
        f"EDL_HOST={address or 'to the address of this machine in that network'}"
    )


def _address_of(host: str) -> Host:
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _address_towards(other: Address) -> str:
    """This machine's address on the route to that one; empty if there is no route."""
    family = socket.AF_INET6 if ":" in other.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((other.host, other.port))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _open(identity: Identity) -> Store:
    return open_store(identity.store, job=identity.job, secret=identity.secret, tls=identity.tls)


def _leader(identity: Identity) -> Known | None:
    store = _open(identity)
    try:
        found = store.get(LEADER_KEY)
    finally:
        store.close()
    return None if found.value is None else read_leader(found.value, found.revision)
