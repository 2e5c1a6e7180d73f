"""`edl` as a shell runs it, scripts that misbehave, and what tests ask about running processes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import psutil

from edl.client import Job
from edl.types import Address
from tests.e2e.test_cli import Edl, until

__all__ = [
    "HOLDS",
    "UNTIDY",
    "WRAPPED",
    "Terminal",
    "closed",
    "gone",
    "listening",
    "pids",
    "shout",
    "started",
]

UNTIDY = """
import atexit, sys, threading
text, raw = open(sys.argv[1], "w"), open(sys.argv[1] + ".raw", "wb")
text.write("text")
raw.write(b"raw")
late = threading.Timer(0.2, lambda: print("a thread", flush=True))
late.start()
atexit.register(print, "at exit")
sys.exit("no reason")
"""
HOLDS = """
import os, sys
from edl.store.base import open_store
if os.environ["EDL_WORKER"] == "w1":
    secret = bytes.fromhex(open(os.environ["EDL_SECRET_FILE"]).read())
    store = open_store(os.environ["EDL_STORE"], job=os.environ["EDL_JOB"], secret=secret)
    lease = f"w1-{os.getpid()}"
    store.keep_alive(lease, 300.0)
    assert store.compare_and_swap("mine", expected=0, value=b"x", lease=lease).done
    open(sys.argv[1], "w").close()
    os._exit(0)
"""
WRAPPED = """
import sys, torch
import torch.distributed as dist
import edl.torch as edl
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
edl.init()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
opt = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
"""


class Terminal(Edl):
    """Each command is in a process group of its own, so a test's Ctrl-C reaches it alone."""

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "edl.cli.main", *arguments],
            env=self.environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self._started.append(process)
        return process

    def refused(self, *arguments: str) -> str:
        """What was said to the one who asked; it must fail, in the user's words."""
        status, out, err = self(*arguments)
        assert status == 2, (status, out, err)
        assert err.startswith("edl: "), err
        assert "Traceback" not in err
        return err


def pids(job: Job) -> dict[str, int]:
    return {worker.id: worker.pid for worker in job.status().workers}


def started(edl: Terminal, name: str, *arguments: str) -> tuple[subprocess.Popen[str], Job]:
    """`edl run`, once it trains."""
    process = edl.start("run", "--name", name, "--gpus", "none", *arguments)
    info = edl.folder / "home/jobs" / name / "job.json"
    until(lambda: process.poll() is not None or info.exists())
    assert process.poll() is None, process.communicate()
    job = Job(name)
    until(lambda: job.status().state == "training" and job.status().step > 0)
    return process, job


def gone(numbers: list[int]) -> bool:
    """Whether none of them runs; a zombie does not."""
    for number in numbers:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def listening(numbers: list[int]) -> list[Address]:
    found = [each for number in numbers for each in psutil.Process(number).net_connections("tcp")]
    return [Address(*each.laddr) for each in found if each.status == psutil.CONN_LISTEN]


def shout(address: Address, noise: bytes) -> socket.socket:
    sock = socket.create_connection((address.host, address.port), timeout=2.0)
    with contextlib.suppress(OSError):  # closed before it had sent all, as it should be
        sock.sendall(noise)
    return sock


def closed(sock: socket.socket) -> bool:
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
