"""etcd behind TLS and behind logins."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.errors import StoreError, UsageError
from edl.store.base import Store, Versioned, open_store
from edl.store.etcd import EtcdStore
from edl.store.gateway import Gateway, Json
from edl.store.url import StoreUrl
from tests.contract.servers import Certificates, Etcd
from tests.integration.test_outside_stores import Seen, eventually

USER, PASSWORD = "trainer", "p@ss/word:?"
QUOTED = "trainer:p%40ss%2Fword%3A%3F"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("secure"), certificates) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """Knows one user, who may write below /edl alone."""
    with Etcd(tmp_path_factory.mktemp("guarded")) as server:
        gateway = Gateway(StoreUrl.parse(server.url), timeout_s=10.0)
        below = {"key": "L2VkbC8=", "range_end": "L2VkbDA="}
        steps: list[tuple[str, Json]] = [
            ("role/add", {"name": "root"}),
            ("user/add", {"name": "root", "password": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("role/add", {"name": "edl"}),
            ("role/grant", {"name": "edl", "perm": {"permType": "READWRITE", **below}}),
            ("user/add", {"name": USER, "password": PASSWORD}),
            ("user/grant", {"user": USER, "role": "edl"}),
            ("enable", {}),
        ]
        for path, body in steps:
            gateway.call(f"/v3/auth/{path}", body)
        gateway.close()
        yield server


def check_everything(store: Store, other: Store) -> None:
    seen = Seen()
    store.watch("leader", seen)
    other.keep_alive("me", 30.0)
    swap = other.compare_and_swap("leader", expected=0, value=b"x", lease="me")
    assert swap.done
    seen.wait_until(lambda all: all[-1] == swap.current)
    other.keep_alive("me", 0)
    seen.wait_until(lambda all: all[-1] == Versioned(None, 0))


def opened(url: str) -> Store:
    return open_store(url, job="access", secret=b"")


def refused(url: str) -> str:
    """Why a call failed, of a client that does not try for long."""
    options = frozenset({"ca", "cert", "key"})
    store = EtcdStore(StoreUrl.parse(url, login=True, options=options), job="a", timeout_s=1.0)
    with pytest.raises(StoreError) as caught:
        store.get("a")
    store.close()
    return str(caught.value)


def test_all_goes_over_tls(secure: Etcd, certificates: Certificates) -> None:
    cert, key = certificates.of("client")
    url = f"{secure.url}?ca={certificates.ca}&cert={cert}&key={key}"
    store, other = opened(url), opened(url)
    check_everything(store, other)
    store.close()
    other.close()


def test_a_server_of_an_unknown_authority_is_refused(secure: Etcd) -> None:
    assert "certificate verify failed" in refused(secure.url)


def test_a_client_without_a_certificate_is_refused(
    secure: Etcd, certificates: Certificates
) -> None:
    assert "unreachable" in refused(f"{secure.url}?ca={certificates.ca}")


def test_the_wrong_scheme_is_told(secure: Etcd, guarded: Etcd) -> None:
    assert "does it want TLS (etcds://)?" in refused(f"etcd://{secure.address}")
    assert "does it speak TLS (etcd:// if not)?" in refused(f"etcds://{guarded.address}")


def hung_up(listener: socket.socket, answers: list[bytes]) -> None:
    """Gives each client the next answer, and resets the connections of all that come after."""
    with listener:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.settimeout(10.0)
                client.recv(1 << 16)
                if answers:
                    client.sendall(answers.pop(0))
                else:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("answers", [0, 1])
def test_a_reset_is_a_question_of_tls_to_whom_nobody_ever_answered(answers: int) -> None:
    body = b'{"header":{"revision":"1"}}'
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    listener = socket.create_server(("127.0.0.1", 0))
    url = StoreUrl.parse(f"etcd://127.0.0.1:{listener.getsockname()[1]}")
    thread = threading.Thread(target=hung_up, args=(listener, [head + body] * answers))
    thread.start()
    store = EtcdStore(url, job="a", timeout_s=1.0)
    try:
        for _ in range(answers):
            assert store.get("a") == Versioned(None, 0)
        with pytest.raises(StoreError, match="reset by peer") as caught:
            store.get("a")
        assert ("does it want TLS" in str(caught.value)) == (answers == 0)
    finally:
        store.close()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_files_that_cannot_be_used_are_named(tmp_path: Path, certificates: Certificates) -> None:
    for options in (f"ca={tmp_path}/none.pem", f"cert={tmp_path}/none.pem"):
        with pytest.raises(UsageError, match=r"none\.pem"):
            opened(f"etcds://127.0.0.1:1?{options}")
    with pytest.raises(UsageError, match="without cert="):
        opened(f"etcds://127.0.0.1:1?key={certificates.of('client')[1]}")


def test_a_user_may_what_its_role_allows(guarded: Etcd) -> None:
    url = f"etcd://{QUOTED}@{guarded.address}"
    store, other = opened(url), opened(url)
    check_everything(store, other)
    elsewhere = opened(f"{url}/elsewhere")
    with pytest.raises(StoreError, match="permission denied"):
        elsewhere.get("a")
    for each in (store, other, elsewhere):
        each.close()


@pytest.mark.parametrize("login", ["trainer:wrong", "nobody:at-all"])
def test_a_wrong_login_is_told_at_once_and_never_shown(guarded: Etcd, login: str) -> None:
    why = refused(f"etcd://{login}@{guarded.address}")
    assert "refused user" in why
    assert login.partition(":")[2] not in why


def test_without_a_login_it_is_refused(guarded: Etcd) -> None:
    assert "user name" in refused(guarded.url)


def test_a_login_that_the_server_forgot_is_made_again(guarded: Etcd) -> None:
    """Tokens lie in the server's memory, so a restart is the end of them all."""
    store, seen = opened(f"etcd://{QUOTED}@{guarded.address}"), Seen()
    first = store.compare_and_swap("kept", expected=0, value=b"x").current
    store.watch("kept", seen)
    guarded.kill()
    guarded.start()
    eventually(lambda: store.get("kept"))
    swap = store.compare_and_swap("kept", expected=first.revision, value=b"y")
    assert swap.done
    seen.wait_until(lambda all: all[-1] == swap.current)
    store.close()
