"""What is shown of URLs: never a part of a credential."""

from __future__ import annotations

import ftplib
import logging
from pathlib import Path

import pytest

from edl.cli.run import checkpoint_url
from edl.errors import CheckpointError, UsageError
from edl.launch.checkpoints import own
from edl.redaction import redact_text, redact_url
from edl.runtime.checkpoint import CheckpointFolder

SHOWN = [
    ("etcd://edl:s3cret@10.0.0.1:2379/jobs?ca=x", "etcd://edl:***@10.0.0.1:2379/jobs?ca=x"),
    ("etcd://edl:s3@cret@h:1", "etcd://edl:***@h:1"),
    ("etcd://edl:s3/cret@h:1/p", "etcd://edl:***@h:1/p"),
    ("etcd://edl:s3:cret@h:1", "etcd://edl:***@h:1"),
    ("etcd://edl:s3%40cret%2F@h:1", "etcd://edl:***@h:1"),
    ("etcd://:s3cret@h:1", "etcd://:***@h:1"),
    ("etcd://me@corp.com:s3cret@h:1", "etcd://me@corp.com:***@h:1"),
    ("s3://AKIA:s3/cr+et@bucket/job", "s3://AKIA:***@bucket/job"),
    ("ftp://user:s3cret@host/ckpt", "ftp://user:***@host/ckpt"),
    ("filecache::ftp://user:s3cret@host/a", "filecache::ftp://user:***@host/a"),
    ("ftp://u:s3cret@h/a::s3://k:s3cret2@b/c", "ftp://u:***@b/c"),
    ("zip://a.zip::ftp://u:s3cret@h/x.zip", "zip://a.zip::ftp://u:***@h/x.zip"),
    ("s3://bucket/a?secret=s3cret", "s3://bucket/a?secret=***"),
    ("s3://bucket/a?key=AKIA&secret=s3cret&b=1", "s3://bucket/a?key=AKIA&secret=***&b=1"),
    ("gs://bucket/a?TOKEN=s3#cret", "gs://bucket/a?TOKEN=***"),
    ("abfs://c@acc/a?account_key=s3c/ret==", "abfs://c@acc/a?account_key=***"),
    ("https://h/a?X-Amz-Credential=s3cret&X-Amz-Signature=s3cret",
     "https://h/a?X-Amz-Credential=***&X-Amz-Signature=***"),
    ("https://acc.blob/a?sv=2&sig=s3cret", "https://acc.blob/a?sv=2&sig=***"),
    ("ftp://h/a?password=s3@cret", "ftp://h/a?password=***"),
]  # fmt: skip
UNCHANGED = [
    "etcd://host:1/prefix",
    "etcd://me@host:1",
    "edl://[::1]:7007",
    "etcds://host:1?ca=/a&cert=/b&key=/etc/key.pem",
    "s3://bucket/dir/job",
    "abfs://container@account/job",
    "/data/runs:1/a@b",
    "runs/mnist",
    "memory://a",
]


@pytest.mark.parametrize(("url", "shown"), SHOWN)
def test_no_part_of_a_credential_is_shown(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert redact_url(shown) == shown
    said = redact_text(f"cannot open {url}: refused", url)
    assert "s3" not in said.replace("s3://", "")
    assert "cret" not in said.replace("secret=", "")


@pytest.mark.parametrize("url", UNCHANGED)
def test_url_without_a_credential_is_shown_as_it_is(url: str) -> None:
    assert redact_url(url) == url
    assert redact_text(f"{url}: refused", url) == f"{url}: refused"


def test_credential_is_hidden_where_a_library_quotes_it_unquoted() -> None:
    assert redact_text("530 no login for p@ss", "ftp://me:p%40ss@host/a") == "530 no login for ***"


def test_credential_is_hidden_in_every_part_of_a_chain() -> None:
    chain = "ftp://u:s3cret@h/a::s3://k:t0p@b/c"
    assert redact_text("neither s3cret nor t0p is right", chain) == "neither *** nor *** is right"


class Refusing:
    """A file system that quotes what it was given, as several do."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def makedirs(self, path: str, exist_ok: bool) -> None:
        raise self._error

    def ls(self, path: str, detail: bool) -> list[object]:
        raise self._error

    def invalidate_cache(self) -> None:
        """Nothing is remembered."""


URL = "ftp://me:s3cret@host/ckpt"


@pytest.mark.parametrize(
    "error",
    [
        ftplib.error_perm(f"530 {URL}: login refused"),
        PermissionError(13, f"no entry with s3cret to {URL}"),
        OSError(f"{URL} is away"),
        ValueError("the password s3cret is wrong"),
    ],
)
def test_errors_and_logs_of_checkpoints_hide_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (Refusing(error), "/ckpt"))
    caplog.set_level(logging.DEBUG)
    folder = CheckpointFolder(URL)
    said = []
    for action in (folder.prepare, folder.steps, folder.latest):
        with pytest.raises(CheckpointError) as caught:
            action()
        each: BaseException | None = caught.value
        while each is not None:
            said.append(repr(each))
            each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    with pytest.raises(UsageError) as refused:
        own(URL, job="mnist", resume=False)
    said += [str(refused.value), folder.where, repr(folder.passed_over), caplog.text]
    assert folder.where == "ftp://me:***@host/ckpt"
    assert "s3cret" not in " ".join(said)


def test_checkpoint_url_can_be_read_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "url").write_text(f"{URL}\n")
    assert checkpoint_url(f"@{tmp_path / 'url'}") == URL
    assert capsys.readouterr().err == ""
    assert checkpoint_url(URL) == URL
    warned = capsys.readouterr().err
    assert "others can see the password in --checkpoint" in warned
    assert "s3cret" not in warned
    assert checkpoint_url("runs/mnist") == "runs/mnist"
    assert checkpoint_url(None) == ""
    assert capsys.readouterr().err == ""
    with pytest.raises(UsageError, match="--checkpoint is empty"):
        checkpoint_url("")
