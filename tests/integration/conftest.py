"""Real jobs on this machine, in a home of their own; nothing of them outlives the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl.client import Job, run
from edl.errors import EdlError
from tests.integration.networks import Namespace, OpenEtcd, second_network
from tests.integration.templates import running_template

SCRIPTS = Path(__file__).parent / "scripts"

Start = Callable[..., Job]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A process that jobs and their workers are forked off: imports are most of a short test."""
    with running_template(tmp_path_factory.mktemp("template")) as path:
        yield path


@pytest.fixture
def start(tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start jobs by their script's name; whatever still runs at the end is killed."""
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDL_TEMPLATE", template)
    jobs: list[Job] = []

    def begin(
        script: str,
        *args: str,
        workers: int = 2,
        name: str | None = None,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> Job:
        path = str(SCRIPTS / script)
        job = run(path, *args, workers=workers, name=name, env=env, timeout_s=90.0, **options)
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        with contextlib.suppress(EdlError):
            if job.running():
                job.stop(force=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where scripts write their journals."""
    folder = tmp_path / "log"
    folder.mkdir()
    return folder


@pytest.fixture
def elsewhere() -> Iterator[Namespace]:
    """Another network on this machine."""
    with second_network() as made:
        yield made


@pytest.fixture
def open_etcd(tmp_path: Path, elsewhere: Namespace) -> Iterator[OpenEtcd]:
    """An etcd that processes of the other network reach."""
    made = OpenEtcd(tmp_path / "etcd")
    made.host = elsewhere.here
    with made:
        yield made
