"""Proof of identity between the ranks of a process group, over the group's own connections.

Gloo assigns an incoming connection to a rank by a small number that the connector sends, so a
stranger who connects first takes that rank's place, and both honest ranks believe that they are
connected to each other. Therefore no group is used before every rank has proved the job's secret
to every peer over the connection that the two will use. A collective would not do: a ring leaves
most pairs out.

The ranks first exchange random nonces in one group that holds them all, and then, in every group,
HMAC-SHA256 over both nonces, the generation, the group, both workers and the direction. Holds:
until `prove` has returned, a peer has been sent nothing but a nonce and proofs.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from edl.errors import BuildFailed
from edl.protocol.topology import Generation
from edl.runtime.clock import now
from edl.types import WorkerId

__all__ = ["ProcessGroup", "prove"]

MAGIC = b"EDL group proof 1"
NONCE_BYTES = 32
PROOF_BYTES = 32
# Messages of the training use tag 0.
NONCE_TAG, PROOF_TAG = 1, 2
# A wait of 0 would mean the group's default, which is years.
SHORTEST_WAIT_S = 0.001


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A Gloo process group, its name, and its workers in rank order."""

    name: str
    gloo: Any
    workers: Sequence[WorkerId]

    def peers(self, me: WorkerId) -> dict[WorkerId, int]:
        """The other workers and their ranks."""
        return {worker: rank for rank, worker in enumerate(self.workers) if worker != me}


def prove(
    groups: Sequence[ProcessGroup],
    generation: Generation,
    me: WorkerId,
    *,
    secret: bytes,
    timeout_s: float,
) -> None:
    """Exchange proofs with every peer of every group; the first group must hold everybody.

    Raises BuildFailed naming the peers whose proof was wrong or did not arrive in time.
    """
    deadline = now() + timeout_s
    members = _members_digest(generation)
    mine = secrets.token_bytes(NONCE_BYTES)
    first = _Round(groups[0], me, NONCE_TAG)
    first.start(dict.fromkeys(first.peers, mine))
    nonces = first.finish(deadline)
    _check(first, timeout_s)
    rounds = [(_Round(group, me, PROOF_TAG), group.name) for group in groups]
    for each, name in rounds:
        each.start(
            {
                peer: _proof(secret, members, name, (me, mine), (peer, nonces[peer]))
                for peer in each.peers
            }
        )
    for each, name in rounds:
        for peer, proof in each.finish(deadline).items():
            expected = _proof(secret, members, name, (peer, nonces[peer]), (me, mine))
            if not hmac.compare_digest(proof, expected):
                each.failed[peer] = "sent a wrong proof"
    # All of them first: one that failed would close the connections of peers that have not.
    _check_all([each for each, _ in rounds], timeout_s)


class _Round:
    """One message of fixed size to and from every peer of a group."""

    def __init__(self, group: ProcessGroup, me: WorkerId, tag: int) -> None:
        self.name = group.name
        self.peers = group.peers(me)
        self.failed: dict[WorkerId, str] = {}
        self._gloo = group.gloo
        self._tag = tag
        self._arriving: dict[WorkerId, tuple[Any, torch.Tensor]] = {}
        self._leaving: dict[WorkerId, tuple[Any, torch.Tensor]] = {}

    def start(self, messages: Mapping[WorkerId, bytes]) -> None:
        """Launch everything without waiting for anybody."""
        for peer, rank in self.peers.items():
            space = torch.empty(NONCE_BYTES, dtype=torch.uint8)
            message = torch.frombuffer(bytearray(messages[peer]), dtype=torch.uint8)
            try:
                self._arriving[peer] = self._gloo.recv([space], rank, self._tag), space
                self._leaving[peer] = self._gloo.send([message], rank, self._tag), message
            except RuntimeError as error:
                self.failed[peer] = _short(error)

    def finish(self, deadline: float) -> dict[WorkerId, bytes]:
        """What arrived from each peer in time; the others are in `failed`."""
        for peer, (work, _) in (*self._arriving.items(), *self._leaving.items()):
            left = timedelta(seconds=max(SHORTEST_WAIT_S, deadline - now()))
            try:
                work.wait(left)
            except RuntimeError as error:
                self.failed.setdefault(peer, _short(error))
        return {
            peer: space.numpy().tobytes()
            for peer, (_, space) in self._arriving.items()
            if peer not in self.failed
        }


assert NONCE_BYTES == PROOF_BYTES  # one size of message for both rounds


def _check(each: _Round, timeout_s: float) -> None:
    _check_all([each], timeout_s)


def _check_all(rounds: Sequence[_Round], timeout_s: float) -> None:
    failed = [(peer, each.name, why) for each in rounds for peer, why in each.failed.items()]
    if not failed:
        return
    told = "; ".join(f"{peer} in group {name!r}: {why}" for peer, name, why in failed[:3])
    more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
    raise BuildFailed(
        f"peers did not prove the job's secret within {timeout_s:g} s ({told}{more}); a stranger "
        "may have taken their place in the group, or they are very slow",
        unproven=tuple(dict.fromkeys(peer for peer, _, _ in failed)),
    )


def _members_digest(generation: Generation) -> bytes:
    """The generation and its members: what is the same in all proofs, and long."""
    numbers = struct.pack(">qq", generation.number, generation.token)
    return hashlib.sha256(_joined(numbers, *(w.encode() for w in generation.workers()))).digest()


def _proof(
    secret: bytes,
    members: bytes,
    group: str,
    prover: tuple[WorkerId, bytes],
    verifier: tuple[WorkerId, bytes],
) -> bytes:
    text = _joined(
        MAGIC,
        members,
        group.encode(),
        prover[0].encode(),
        prover[1],
        verifier[0].encode(),
        verifier[1],
    )
    return hmac.digest(secret, text, "sha256")


def _joined(*parts: bytes) -> bytes:
    """Each part with its length, so that no two lists of parts make the same bytes."""
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def _short(error: RuntimeError) -> str:
    """Gloo's message without the place in its sources and its advice."""
    text = str(error).rpartition("] ")[2] if str(error).startswith("[/") else str(error)
    if "Timed out" in text:
        return "no answer"
    return text.partition(". This is typically")[0].strip()
