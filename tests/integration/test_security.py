"""What docs/security.md says about a running job, asked of one: files, ports, environments."""

from __future__ import annotations

import stat
from pathlib import Path

import psutil
import pytest

from edl.client import Job
from edl.launch.jobs import JobFolder, claim, find_job
from tests.contract.servers import until
from tests.integration.conftest import Start


@pytest.fixture
def job(start: Start, log: Path) -> Job:
    end = log / "end"
    job = start("journal.py", "--log", str(log), "--epochs", "100000", "--until", str(end))
    until(lambda: job.status().step > 3, "the job to train", 90.0)
    return job


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def processes(folder: JobFolder) -> list[psutil.Process]:
    launcher = psutil.Process(folder.info().pid)
    return [launcher, *launcher.children(recursive=True)]


def test_a_running_job_shows_itself_to_its_user_alone(job: Job) -> None:
    folder = find_job(job.name)
    assert mode(folder.path) == 0o700
    assert mode(folder.path.parent) == 0o700
    assert mode(folder.secret_file) == 0o600
    assert len(folder.secret()) == 32
    secret = folder.secret_file.read_text().strip()
    listening = 0
    for process in processes(folder):
        # The file's name may be known to all, its content to nobody.
        assert secret not in " ".join(process.cmdline())
        assert secret not in " ".join(process.environ().values())
        for each in process.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN:
                listening += 1
                assert each.laddr.ip == "127.0.0.1", each
    # The launcher's, each worker's, and those of the collectives.
    assert listening >= 5
    for file in folder.path.rglob("*"):
        if file.is_file() and file != folder.secret_file:
            assert secret not in file.read_text(errors="replace"), file


def test_two_jobs_have_different_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    one, other = claim("one", stem="job"), claim("other", stem="job")
    assert one.folder.secret() != other.folder.secret()
    one.release()
    other.release()
