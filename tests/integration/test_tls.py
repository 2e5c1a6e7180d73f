"""Mutual TLS on control connections: what passes, and who is refused with nothing harmed."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.errors import PeerError, StoreError, UsageError, WrongCertificate, WrongSecret
from edl.launch.access import Access
from edl.launch.jobs import find_job
from edl.store.embedded import EmbeddedServer, EmbeddedStore
from edl.types import Address
from edl.wire.channel import Channel
from edl.wire.hello import HELLO_BYTES, NONCE_BYTES, Hello
from edl.wire.tls import SealedHello, Tls
from tests.contract.servers import Certificates
from tests.integration.conftest import Start
from tests.integration.fuzzing import fuzzed
from tests.integration.hostile import KINDS, Kind, Target, half_proven, insider, mirrored, speak
from tests.integration.test_hub import CODEC, HOST, JOB, PATIENCE_S, SECRET, Make, Owner, note


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Certificates of the job's authority, and of another one."""

    ours: Certificates
    theirs: Certificates

    def tls(self, name: str, *, whose: Certificates | None = None) -> Tls:
        cert, key = (whose or self.ours).of(name)
        return Tls(cert=str(cert), key=str(key), ca=str(self.ours.ca))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    ours = Certificates(tmp_path_factory.mktemp("ours"))
    ours.issue("expired", days=-1)
    return Folders(ours=ours, theirs=Certificates(tmp_path_factory.mktemp("theirs")))


@pytest.fixture
def owners() -> Iterator[Make]:
    made: list[Owner] = []

    def make(**options: Any) -> Owner:
        made.append(Owner(**options))
        made[-1].hub.start()
        return made[-1]

    yield make
    for owner in made:
        owner.hub.stop()


def dial(address: Address, tls: Tls | None, *, secret: bytes = SECRET) -> Channel:
    return Channel(address, job=JOB, secret=secret, codec=CODEC, tls=tls)


def echoing(owner: Owner) -> Address:
    owner.on_note = owner.hub.send
    return owner.hub.listen(HOST)


def assert_serves(address: Address, tls: Tls) -> None:
    with dial(address, tls) as channel:
        channel.send(note(1, b"still there?"))
        assert channel.receive(PATIENCE_S) == note(1, b"still there?")


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "wire.refused" in each.getMessage()]


def test_two_hubs_speak_inside_tls_both_ways_in_order(owners: Make, folders: Folders) -> None:
    one, other = owners(tls=folders.tls("client")), owners(tls=folders.tls("server"))
    address = echoing(other)

    def connect_and_send_at_once() -> None:
        peer = one.hub.connect(address)
        for number in range(500):
            one.hub.send(peer, note(number, b"x" * (number * 37)))

    one.call(connect_and_send_at_once)
    one.wait(lambda: len(one.notes) == 500)
    assert [each.request_id for _, each in one.notes] == list(range(500))
    assert all(each.body == b"x" * (each.request_id * 37) for _, each in one.notes)
    assert not one.errors
    assert not other.errors


def test_a_message_of_many_records_passes(owners: Make, folders: Folders) -> None:
    address = echoing(owners(tls=folders.tls("server")))
    body = bytes(range(256)) * 40_000
    with dial(address, folders.tls("client")) as channel:
        sender = threading.Thread(target=channel.send, args=(note(1, body),))
        sender.start()
        assert channel.receive(PATIENCE_S) == note(1, body)
        sender.join(PATIENCE_S)


def test_nothing_of_a_conversation_can_be_read_on_the_way(owners: Make, folders: Folders) -> None:
    address = echoing(owners(tls=folders.tls("server")))
    tapped: list[bytes] = []
    with socket.create_server((HOST, 0)) as tap:
        thread = threading.Thread(target=_pass_on, args=(tap, address, tapped), daemon=True)
        thread.start()
        with dial(Address(HOST, tap.getsockname()[1]), folders.tls("client")) as channel:
            channel.send(note(1, b"a very private word"))
            assert channel.receive(PATIENCE_S) == note(1, b"a very private word")
        thread.join(PATIENCE_S)
    seen = b"".join(tapped)
    assert len(seen) > 1000
    assert b"private" not in seen
    assert b"EDL-wire" not in seen


def _pass_on(tap: socket.socket, address: Address, tapped: list[bytes]) -> None:
    near, _ = tap.accept()
    far = socket.create_connection((address.host, address.port))

    def carry(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(65536):
            tapped.append(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    back = threading.Thread(target=carry, args=(far, near), daemon=True)
    back.start()
    carry(near, far)
    back.join(PATIENCE_S)
    near.close()
    far.close()


Caller = Callable[[Address, Folders], None]


def without_certificate(address: Address, folders: Folders) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folders.ours.ca)
    with (
        socket.create_connection((address.host, address.port)) as sock,
        pytest.raises(ssl.SSLError, match=r"(?i)certificate"),
        context.wrap_socket(sock) as wrapped,
    ):
        wrapped.recv(1)


def of_another_authority(address: Address, folders: Folders) -> None:
    with pytest.raises(PeerError, match="does not accept this side's certificate"):
        dial(address, folders.tls("client", whose=folders.theirs))


def with_an_expired_one(address: Address, folders: Folders) -> None:
    with pytest.raises(PeerError, match="does not accept this side's certificate"):
        dial(address, folders.tls("expired"))


def in_plain(address: Address, folders: Folders) -> None:
    with pytest.raises(PeerError, match="speaks TLS and this side does not"):
        dial(address, None)


def with_a_wrong_secret(address: Address, folders: Folders) -> None:
    with pytest.raises(WrongSecret, match="could not prove"):
        dial(address, folders.tls("client"), secret=b"wrong")


@pytest.mark.parametrize(
    ("caller", "why"),
    [
        (without_certificate, "peer did not return a certificate"),
        (of_another_authority, "its certificate is not accepted: "),
        (with_an_expired_one, "its certificate is not accepted: certificate has expired"),
        (in_plain, "it does not speak TLS 1.3"),
        (with_a_wrong_secret, "could not prove the secret"),
    ],
)
def test_a_stranger_is_refused_with_one_line(
    owners: Make, folders: Folders, caplog: pytest.LogCaptureFixture, caller: Caller, why: str
) -> None:
    owner = owners(tls=folders.tls("server"))
    address = echoing(owner)
    with caplog.at_level(logging.INFO, logger="edl.wire"):
        caller(address, folders)
        # An honest caller after it: whatever is to be logged of the first one has been by then.
        assert_serves(address, folders.tls("client"))
    lines = refusals(caplog)
    assert len(lines) == 1, lines
    assert why in lines[0]
    assert len(owner.opened) == 1
    assert not owner.errors


@pytest.mark.parametrize("name", ["theirs", "expired"])
def test_a_dialler_says_nothing_to_a_listener_it_does_not_believe(
    owners: Make, folders: Folders, name: str
) -> None:
    bad = (
        folders.tls("server", whose=folders.theirs) if name == "theirs" else folders.tls("expired")
    )
    owner = owners(tls=bad)
    address = echoing(owner)
    with pytest.raises(WrongCertificate, match="its certificate is not accepted"):
        dial(address, folders.tls("client"))
    dialler = owners(tls=folders.tls("client"))
    peer = dialler.call(lambda: dialler.hub.connect(address))
    dialler.wait(lambda: dialler.closed)
    assert dialler.closed[0][0] is peer
    assert "its certificate is not accepted" in dialler.closed[0][1]
    assert not owner.opened
    assert not dialler.opened


def test_a_plain_listener_refuses_a_tls_dialler_with_one_line(
    owners: Make, folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    owner = owners()
    address = echoing(owner)
    with caplog.at_level(logging.INFO, logger="edl.wire"):
        # Its bytes are left unread, so the kernel may reset the connection before it can see why.
        with pytest.raises(PeerError, match=r"does not speak TLS|reset by peer"):
            dial(address, folders.tls("client"))
        with dial(address, None) as channel:
            channel.send(note(1))
            assert channel.receive(PATIENCE_S) == note(1)
    lines = refusals(caplog)
    assert len(lines) == 1, lines
    assert "speaks TLS and this side does not" in lines[0]
    assert not owner.errors


def test_one_with_a_certificate_but_no_secret_cannot_stand_in_the_middle(
    owners: Make, folders: Folders
) -> None:
    """It ends TLS on both sides and passes every plain byte on, the proofs too."""
    owner = owners(tls=folders.tls("server"))
    address = echoing(owner)
    passed: list[bytes] = []
    with socket.create_server((HOST, 0)) as trap:
        where = Address(HOST, trap.getsockname()[1])
        thread = threading.Thread(
            target=_stand_between, args=(trap, address, folders, passed), daemon=True
        )
        thread.start()
        with pytest.raises(PeerError):
            dial(where, folders.tls("client"))
        thread.join(PATIENCE_S)
    # Both greetings and at least one proof went through, and helped nobody.
    assert sum(len(each) for each in passed) > HELLO_BYTES
    assert not owner.opened


def _stand_between(
    trap: socket.socket, address: Address, folders: Folders, passed: list[bytes]
) -> None:
    folders.ours.issue("insider")
    cert, key = folders.ours.of("insider")
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)]
    for context in contexts:
        context.check_hostname = False
        context.load_cert_chain(cert, key)
        context.load_verify_locations(folders.ours.ca)
    contexts[0].verify_mode = ssl.CERT_REQUIRED
    plain, _ = trap.accept()
    near = contexts[0].wrap_socket(plain, server_side=True)
    far = contexts[1].wrap_socket(socket.create_connection((address.host, address.port)))

    def carry(source: ssl.SSLSocket, target: ssl.SSLSocket) -> None:
        try:
            while data := source.recv(65536):
                passed.append(data)
                target.sendall(data)
        except OSError:
            return
        finally:
            # It may be gone already.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(target, socket.SHUT_WR)

    back = threading.Thread(target=carry, args=(far, near), daemon=True)
    back.start()
    carry(near, far)
    back.join(PATIENCE_S)
    near.close()
    far.close()


def test_garbage_at_a_tls_port_gets_nowhere(owners: Make, folders: Folders) -> None:
    owner = owners(tls=folders.tls("server"), hello_timeout_s=0.5)
    address = echoing(owner)
    strangers = [kind for kind in KINDS if kind not in (insider, half_proven, mirrored)]

    @settings(fuzzed, max_examples=60)
    @given(st.sampled_from(strangers), st.integers(0, 2**32), st.booleans())
    def converse(kind: Kind, seed: int, hear_out: bool) -> None:
        first = folders.tls("client").cipher("dial").leaving()
        target = Target(address=address, job=JOB, secret=SECRET, recording=first)
        speak(kind, target, seed, hear_out=hear_out)

    converse()
    assert not owner.opened
    assert_serves(address, folders.tls("client"))
    assert not owner.errors


def test_garbage_inside_tls_is_a_peer_error(folders: Folders) -> None:
    """A certificate alone opens nothing: inside, the handshake is as strict as without TLS."""
    tls = folders.tls("server")

    @settings(fuzzed, max_examples=100)
    @given(st.binary(max_size=600), st.integers(1, 40))
    def converse(noise: bytes, size: int) -> None:
        hello = Hello("listen", job=JOB, secret=SECRET, nonce=bytes(NONCE_BYTES))
        near, far = tls.cipher("dial"), SealedHello(tls.cipher("listen"), hello)
        near.feed(far.feed(near.leaving()))
        with contextlib.suppress(PeerError):
            far.feed(near.leaving())
            for at in range(0, len(noise), size):
                far.feed(near.seal(noise[at : at + size]))
        assert near.done
        assert not far.done

    converse()


def test_the_embedded_store_serves_inside_tls_alone(folders: Folders) -> None:
    with EmbeddedServer(job=JOB, secret=SECRET, tls=folders.tls("server")) as server:
        store = EmbeddedStore(server.address, JOB, SECRET, tls=folders.tls("client"))
        assert store.compare_and_swap("leader", expected=0, value=b"w0").done
        assert store.get("leader").value == b"w0"
        store.close()
        # A wrong certificate does not become right by waiting, so it is told at once.
        foreign = folders.tls("client", whose=folders.theirs)
        store = EmbeddedStore(server.address, JOB, SECRET, timeout_s=600.0, tls=foreign)
        with pytest.raises(StoreError, match="does not accept this side's certificate"):
            store.get("leader")
        store.close()
        plain = EmbeddedStore(server.address, JOB, SECRET, timeout_s=1.0)
        with pytest.raises(StoreError, match="speaks TLS"):
            plain.get("leader")
        plain.close()


def test_a_whole_job_trains_inside_tls(
    start: Start, folders: Folders, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = folders.ours.of("client")
    monkeypatch.setenv("EDL_TLS_CERT", str(cert))
    monkeypatch.setenv("EDL_TLS_KEY", str(key))
    monkeypatch.setenv("EDL_TLS_CA", str(folders.ours.ca))
    end = log / "end"
    job = start("journal.py", "--log", str(log), "--epochs", "100000", "--until", str(end))
    job.scale_out(1)
    folder = find_job(job.name)
    access = Access(job=job.name, store=folder.info().store, secret=folder.secret())
    leader = access.leader()
    assert leader is not None
    ports = [leader.address, Address.parse(folder.info().store.partition("://")[2])]
    for port in ports:
        with pytest.raises(PeerError, match="speaks TLS"):
            dial(port, None)
    end.touch()
    assert job.wait(120.0).state == "finished"


@pytest.mark.parametrize("absent", ["EDL_TLS_CERT", "EDL_TLS_KEY", "EDL_TLS_CA"])
def test_tls_by_halves_is_refused(folders: Folders, absent: str) -> None:
    cert, key = folders.ours.of("client")
    whole = {
        "EDL_TLS_CERT": str(cert),
        "EDL_TLS_KEY": str(key),
        "EDL_TLS_CA": str(folders.ours.ca),
    }
    assert isinstance(Tls.from_environment(whole), Tls)
    assert Tls.from_environment({}) is None
    with pytest.raises(UsageError, match=f"{absent} is not set"):
        Tls.from_environment({**whole, absent: ""})
    with pytest.raises(UsageError, match="expected readable PEM files"):
        Tls.from_environment({**whole, absent: "/nowhere.pem"})
