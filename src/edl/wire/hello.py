"""The handshake: both sides prove the job's secret before anything else is parsed.

Pure: bytes in, bytes out; the nonce is given. Both sides send a greeting of fixed size at once, and
on the other's greeting a proof: HMAC-SHA256 over magic, version, the prover's role, both nonces and
the job, and over the listener's address and port, or inside TLS over both certificates, so that
one who is dialled cannot pass the proofs on to another listener. The role is in the proof so that
an echo of our own bytes proves nothing, and the nonces so that an old recording proves nothing.

Holds: a reader that never takes more than `wanted` bytes off the socket has read nothing but
greeting and proof when `done` turns true, at most `HELLO_BYTES` in all.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
import struct
from typing import ClassVar, Literal

from edl.errors import PeerError, UsageError, WrongCertificate, WrongSecret
from edl.wire.codec import PROTOCOL_VERSION

__all__ = ["HELLO_BYTES", "NONCE_BYTES", "Hello", "Role", "check_secret"]

Role = Literal["dial", "listen"]

MAGIC = b"EDL-wire"
# Begins the text of a proof inside TLS, so that no proof of one kind is ever one of the other.
MAGIC_TLS = b"EDL-tls1"
MAGIC_ADDRESS = b"EDL-addr"
BINDING_BYTES = 32
# How a TLS record begins: an alert, and a handshake.
TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
NONCE_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size
# The job travels as a digest: nothing to parse, and still a clear message when it differs.
JOB_BYTES = 16
GREETING = struct.Struct(f">{len(MAGIC)}sH{JOB_BYTES}s{NONCE_BYTES}s")
HELLO_BYTES = GREETING.size + PROOF_BYTES


class Hello:
    """One side of one handshake. Send `greeting`, then what `feed` returns, until `done`."""

    # What `SealedHello` may have and this one never has.
    cipher: ClassVar[None] = None
    rest: ClassVar[bytes] = b""
    last_words: ClassVar[bytes] = b""

    def __init__(
        self,
        role: Role,
        *,
        job: str,
        secret: bytes,
        nonce: bytes,
        version: int = PROTOCOL_VERSION,
    ) -> None:
        check_secret(secret)
        assert len(nonce) == NONCE_BYTES
        self._role: Role = role
        self._job = job
        self._secret = secret
        self._nonce = nonce
        self._version = version
        self._binding = b""
        self._magic = MAGIC
        self._peer_nonce: bytes | None = None
        self._buffer = bytearray()
        self.done = False
        self.greeting = GREETING.pack(MAGIC, version, _digest(job), nonce)

    @property
    def wanted(self) -> int:
        """How many more bytes belong to the handshake at most at this point."""
        if self.done:
            return 0
        whole = GREETING.size if self._peer_nonce is None else PROOF_BYTES
        return whole - len(self._buffer)

    def bind(self, binding: bytes) -> None:
        """The channel that the proofs are to hold for, and no other; before the first `feed`."""
        assert len(binding) == BINDING_BYTES
        self._binding = binding
        self._magic = MAGIC_TLS

    def bind_address(self, sock: socket.socket) -> None:
        """Bind the proofs to the address that the dialler dialled; before the first `feed`."""
        where = sock.getpeername() if self._role == "dial" else sock.getsockname()
        host = ipaddress.ip_address(where[0].partition("%")[0])
        # A listener for both families sees an IPv4 dialler by a mapped address.
        host = getattr(host, "ipv4_mapped", None) or host
        self._binding = hashlib.sha256(f"{host} {where[1]}".encode()).digest()
        self._magic = MAGIC_ADDRESS

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; return what must be sent now. Raises PeerError or WrongSecret."""
        if len(data) > self.wanted:
            raise PeerError(f"the handshake is longer than its {HELLO_BYTES} bytes")
        self._buffer += data
        if self._peer_nonce is None:
            return self._on_greeting()
        if len(self._buffer) == PROOF_BYTES:
            self._on_proof(bytes(self._buffer))
        return b""

    def _on_greeting(self) -> bytes:
        # A stranger is recognised by its first bytes, without waiting for a whole greeting.
        if self._buffer.startswith(TLS_RECORDS):
            raise WrongCertificate(
                "the other side speaks TLS and this side does not; set EDL_TLS_CERT, EDL_TLS_KEY "
                "and EDL_TLS_CA on both or on neither"
            )
        if not MAGIC.startswith(self._buffer[: len(MAGIC)]):
            raise PeerError("the other side does not speak EDL's protocol (wrong magic)")
        if len(self._buffer) < GREETING.size:
            return b""
        _, version, job, nonce = GREETING.unpack(self._buffer)
        if version != self._version:
            raise PeerError(
                f"the other side speaks protocol version {version}, this side {self._version}; "
                "install the same EDL on both"
            )
        if job != _digest(self._job):
            raise WrongSecret(f"the other side belongs to another job than {self._job!r}")
        self._peer_nonce = nonce
        self._buffer.clear()
        return self._proof(self._role)

    def _on_proof(self, proof: bytes) -> None:
        other: Role = "listen" if self._role == "dial" else "dial"
        if not hmac.compare_digest(proof, self._proof(other)):
            raise WrongSecret(
                f"the other side could not prove the secret of job {self._job!r} for this "
                "connection: the two sides hold different secrets (copy the file `secret` from the "
                "job's folder again), or the address that was dialled is not the listener's own "
                "(a stranger relays it, or it is translated: then use TLS)"
            )
        self._buffer.clear()
        self.done = True

    def _proof(self, role: Role) -> bytes:
        assert self._peer_nonce is not None
        dial, listen = self._nonce, self._peer_nonce
        if self._role == "listen":
            dial, listen = listen, dial
        # Every part but the last has a fixed size, so no two inputs make the same text.
        text = b"".join(
            (
                self._magic,
                struct.pack(">H6s", self._version, role.encode()),
                dial,
                listen,
                self._binding,
                self._job.encode(),
            )
        )
        return hmac.digest(self._secret, text, "sha256")


def check_secret(secret: bytes) -> None:
    """Early, so that the one who gave it hears of it and not a thread of ours."""
    if not secret:
        raise UsageError("the job's secret is empty, so everybody could prove it; give one")


def _digest(job: str) -> bytes:
    return hashlib.sha256(job.encode()).digest()[:JOB_BYTES]
