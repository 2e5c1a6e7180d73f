"""Mutual TLS beneath the handshake, for networks that others share. Off unless it is asked for.

Both sides show a certificate of one authority, and the proof of the secret runs inside, as it does
without TLS. The proof covers both certificates, so one who has a certificate of that authority but
not the secret cannot stand in the middle and pass the proofs on. Names in certificates are not
looked at: a worker has an address that nobody knew when its certificate was made, so whoever the
authority certified may speak, and the secret says of which job it is.

Pure, like the handshake: bytes in, bytes out. Owns: all of `ssl` in this room. Holds: no plain byte
leaves or is believed before the other side's certificate is verified.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path

from edl.errors import PeerError, UsageError, WrongCertificate
from edl.wire.hello import NONCE_BYTES, Hello, Role

__all__ = ["Cipher", "SealedHello", "Tls", "introduce"]

VARIABLES = {"cert": "EDL_TLS_CERT", "key": "EDL_TLS_KEY", "ca": "EDL_TLS_CA"}
PLAIN_BYTES = 64 * 1024
# What a stranger may send at a time, and in all, until it has proved itself: a chain of
# certificates is a few thousand bytes, and OpenSSL itself refuses one above 100 kB.
HELLO_CHUNK_BYTES = 16 * 1024
HELLO_MAX_BYTES = 256 * 1024
# To one that does not speak TLS, OpenSSL says nothing; so its owner would not learn what is wrong.
NO_TLS_ALERT = bytes([21, 3, 3, 0, 2, 2, 70])
PEM_END = "-----END CERTIFICATE-----"


class Tls:
    """What this process shows, and whom it believes. Made once, used by all its connections."""

    def __init__(self, *, cert: str, key: str, ca: str) -> None:
        try:
            self._contexts: dict[Role, ssl.SSLContext] = {
                "dial": _context(ssl.PROTOCOL_TLS_CLIENT, cert, key, ca),
                "listen": _context(ssl.PROTOCOL_TLS_SERVER, cert, key, ca),
            }
            first = Path(cert).read_text().partition(PEM_END)[0]
            own = ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN") :] + PEM_END)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"TLS cannot be used with EDL_TLS_CERT={cert}, EDL_TLS_KEY={key} and "
                f"EDL_TLS_CA={ca}: {error}; expected readable PEM files, the key without a password"
            ) from error
        self._own = hashlib.sha256(own).digest()

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Tls | None:
        """None where it is not asked for; UsageError where it is asked for by halves."""
        given = {name: environment.get(variable, "") for name, variable in VARIABLES.items()}
        if not any(given.values()):
            return None
        absent = [VARIABLES[name] for name, path in given.items() if not path]
        if absent:
            raise UsageError(
                f"TLS needs {', '.join(VARIABLES.values())}, and {', '.join(absent)} is not set; "
                "set all three, or none"
            )
        return Tls(**given)

    def cipher(self, role: Role) -> Cipher:
        return Cipher(self._contexts[role], role, self._own)


def _context(protocol: int, cert: str, key: str, ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    # Both sides are ours, so there is nobody who would need an older one.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(ca)
    # An empty password, or a key that has one would make OpenSSL ask at the terminal.
    context.load_cert_chain(cert, key, password="")
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        # Each connection shows its certificates anew.
        context.num_tickets = 0
    return context


class Cipher:
    """One side of one connection. One thread may seal while another feeds."""

    def __init__(self, context: ssl.SSLContext, role: Role, own: bytes) -> None:
        self._role: Role = role
        self._own = own
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=role == "listen")
        self._lock = threading.Lock()
        # Certificates are verified, so that plain bytes may pass.
        self.done = False
        self._shake()

    @property
    def binding(self) -> bytes:
        """Names both certificates, the same on both sides."""
        theirs = self._tls.getpeercert(binary_form=True)
        assert theirs is not None
        ends = (self._own, hashlib.sha256(theirs).digest())
        return hashlib.sha256(b"".join(ends if self._role == "dial" else ends[::-1])).digest()

    def feed(self, data: bytes | memoryview) -> bytes:
        """What these bytes say in plain. Raises ssl.SSLError; `leaving` then tells the other."""
        with self._lock:
            self._arrived.write(data)
            if not self.done:
                self._shake()
            plain = []
            try:
                while self.done:
                    plain.append(self._tls.read(PLAIN_BYTES))
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                pass  # the rest of a record is still to come, or the other side said goodbye
            return b"".join(plain)

    def seal(self, plain: bytes) -> bytes:
        """What must be sent, in this order, for these plain bytes to arrive. Raises PeerError."""
        view = memoryview(plain)
        with self._lock:
            try:
                while view:
                    view = view[self._tls.write(view) :]
            except ssl.SSLError as error:
                raise PeerError(f"TLS with the other side has ended ({_why(error)})") from error
            return self._leaving.read()

    def leaving(self) -> bytes:
        """What the handshake itself has to send now."""
        with self._lock:
            return self._leaving.read()

    def open(self, data: bytes | memoryview) -> bytes:
        """`feed` after the handshake, when all that can be wrong is a record."""
        try:
            return self.feed(data)
        except ssl.SSLError as error:
            raise PeerError(f"a broken TLS record arrived ({_why(error)})") from error

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.done = True


class SealedHello:
    """A `Hello` inside TLS; it is used in the same way.

    `rest` is what came sealed in one record with the end of the handshake, and `last_words` what
    tells the other side why it is refused.
    """

    def __init__(self, cipher: Cipher, hello: Hello) -> None:
        self.cipher = cipher
        self._hello = hello
        self._heard = 0
        self.greeting = cipher.leaving()
        self.rest = b""
        self.last_words = b""

    @property
    def done(self) -> bool:
        return self._hello.done

    @property
    def wanted(self) -> int:
        return 0 if self.done else HELLO_CHUNK_BYTES

    def bind_address(self, sock: socket.socket) -> None:
        """Nothing: the certificates are bound instead, so addresses may be translated."""

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; return what must be sent now. Raises PeerError or WrongSecret."""
        self._heard += len(data)
        if self._heard > HELLO_MAX_BYTES:
            raise PeerError(f"the handshake is longer than {HELLO_MAX_BYTES} bytes")
        fresh = not self.cipher.done
        try:
            plain = self.cipher.feed(data)
        except ssl.SSLError as error:
            self.last_words = self.cipher.leaving() or NO_TLS_ALERT
            raise WrongCertificate(f"no TLS with the other side: {_why(error)}") from error
        answer = b""
        if fresh and self.cipher.done:
            self._hello.bind(self.cipher.binding)
            answer = self._hello.greeting
        try:
            while plain and not self.done:
                part, plain = plain[: self._hello.wanted], plain[self._hello.wanted :]
                answer += self._hello.feed(part)
        except PeerError:
            # As without TLS, our proof leaves although theirs is wrong: so both can say why.
            self.last_words = self.cipher.seal(answer)
            raise
        self.rest = plain
        return self.cipher.seal(answer) if answer else self.cipher.leaving()


def introduce(role: Role, *, job: str, secret: bytes, tls: Tls | None) -> Hello | SealedHello:
    """This side of a new connection, with a nonce that was never used before."""
    hello = Hello(role, job=job, secret=secret, nonce=secrets.token_bytes(NONCE_BYTES))
    return hello if tls is None else SealedHello(tls.cipher(role), hello)


def _why(error: ssl.SSLError) -> str:
    """In words that name what to look at."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    what = (error.reason or str(error)).lower().replace("_", " ")
    if what in {"wrong version number", "http request", "unsupported protocol", "unknown protocol"}:
        return f"it does not speak TLS 1.3 ({what}); are {', '.join(VARIABLES.values())} set there?"
    if "alert" in what:
        return f"it does not accept this side's certificate ({what}); check {VARIABLES['cert']}"
    return what
