"""Real servers of the outside stores, on free ports of the loopback, with data in a test's folder.

They can be killed and started again on the same port and data, as after a power cut.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pytest

__all__ = ["Certificates", "Etcd", "Server", "ZooKeeper", "until"]

PATIENCE_S = 30.0
ZOOKEEPER_SCRIPT = "/usr/share/zookeeper/bin/zkServer.sh"
INSTALL = "install both servers as root: apt-get install -y etcd-server zookeeper (make test does)"


def until(holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition of another process, which nothing announces."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {patience_s} s for {what}"
        time.sleep(0.02)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class Server(ABC):
    """A process in a group of its own, and the folder with its data and log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    @abstractmethod
    def url(self) -> str:
        """What open_store takes."""

    @abstractmethod
    def command(self) -> list[str]: ...

    def ready(self) -> bool:
        """Whether it takes connections; what it does with them is the client's affair."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def start(self) -> None:
        assert self._process is None
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), cwd=self.folder, stdout=log, stderr=log, process_group=0
            )
        process = self._process
        until(lambda: process.poll() is not None or self.ready(), f"{self.url} to listen")
        text = (self.folder / "server.log").read_text(errors="replace")
        assert process.poll() is None, f"{self.command()} ended:\n{text[-2000:]}"

    def kill(self) -> None:
        """At once, without a goodbye to anybody."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(PATIENCE_S)
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        process.suspend()
        until(lambda: process.status() == psutil.STATUS_STOPPED, "the server to stand still")

    def thaw(self) -> None:
        assert self._process is not None
        psutil.Process(self._process.pid).resume()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


class Certificates:
    """An authority of our own, a server's certificate by it, and a client's."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        self._run(*new, "-x509", "-days", "2", "-subj", "/CN=EDL test", "-keyout", "ca-key.pem",
                  "-out", "ca.pem")  # fmt: skip
        (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self._new = new
        self.issue("server")
        self.issue("client")

    def issue(self, name: str, *, days: int = 2) -> None:
        """One more by the same authority; with negative days, one that has expired."""
        self._run(*self._new, "-subj", f"/CN={name}", "-keyout", f"{name}-key.pem",
                  "-out", f"{name}.csr")  # fmt: skip
        self._run("openssl", "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey",
                  "ca-key.pem", "-CAcreateserial", "-days", str(days), "-extfile", "extensions",
                  "-out", f"{name}.pem")  # fmt: skip

    def of(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.pem", self.folder / f"{name}-key.pem"

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()


class Etcd(Server):
    def __init__(self, folder: Path, certificates: Certificates | None = None) -> None:
        super().__init__(folder)
        self._certificates = certificates
        self._peer_port = free_port()

    @property
    def url(self) -> str:
        return f"{'etcd' if self._certificates is None else 'etcds'}://{self.address}"

    def command(self) -> list[str]:
        binary = shutil.which("etcd")
        if binary is None:
            pytest.fail(f"there is no etcd here; {INSTALL}")
        here = f"{'http' if self._certificates is None else 'https'}://{self.address}"
        peers = f"http://127.0.0.1:{self._peer_port}"
        options = {
            "data-dir": str(self.folder / "data"),
            "listen-client-urls": here,
            "advertise-client-urls": here,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            # What is lost in a crash of the machine is not what these tests are about.
            "unsafe-no-fsync": "true",
        }
        if self._certificates is not None:
            cert, key = self._certificates.of("server")
            options |= {"cert-file": str(cert), "key-file": str(key), "client-cert-auth": "true"}
            options["trusted-ca-file"] = str(self._certificates.ca)
        return [binary, *(f"--{name}={value}" for name, value in options.items())]


class ZooKeeper(Server):
    @property
    def url(self) -> str:
        return f"zookeeper://{self.address}"

    def command(self) -> list[str]:
        if not Path(ZOOKEEPER_SCRIPT).exists():
            pytest.fail(f"there is no {ZOOKEEPER_SCRIPT} here; {INSTALL}")
        config = self.folder / "zoo.cfg"
        config.write_text(
            f"tickTime=500\ndataDir={self.folder / 'data'}\nadmin.enableServer=false\n"
            f"clientPort={self.port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n"
            "maxSessionTimeout=60000\n"
        )
        # The script ends by becoming java, so killing it kills the server.
        return ["bash", ZOOKEEPER_SCRIPT, "start-foreground", str(config)]
