"""The URLs of stores: what is taken apart, what is refused, and what is never shown."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.redaction import redact_url
from edl.store.base import open_store
from edl.store.url import StoreUrl, segment, with_run
from edl.types import Address


def test_all_parts_are_found() -> None:
    url = StoreUrl.parse(
        "etcds://me:p%40ss@one:2379,[::1]:2380/team/edl/?ca=/etc/ca%20file.pem",
        login=True,
        options=frozenset({"ca"}),
    )
    assert url.servers == (Address("one", 2379), Address("::1", 2380))
    assert (url.user, url.password, url.prefix) == ("me", "p@ss", "/team/edl")
    assert url.options == {"ca": "/etc/ca file.pem"}
    assert url.folder("job") == "/team/edl/job"
    assert str(url) == "etcds://one:2379,[::1]:2380"
    assert "p@ss" not in repr(url)


@pytest.mark.parametrize("end", ["", "/"])
def test_without_a_prefix_keys_lie_below_edl(end: str) -> None:
    assert StoreUrl.parse(f"zookeeper://host:2181{end}").folder("job") == "/edl/job"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("etcd://", "HOST:PORT"),
        ("etcd://host", "HOST:PORT"),
        ("etcd://host:1,", "HOST:PORT"),
        ("etcd://host:1,other:port", "HOST:PORT"),
        ("etcd://[::1", "no URL"),
        ("etcd://host:1/a//b", "names between slashes"),
        ("etcd://host:1/../b", "names between slashes"),
        ("etcd://host:1?ca=x", "known here: none"),
        ("etcds://host:1?cafile=x", "known here: ca, cert, key"),
        ("etcd://user@host:1", "USER:PASSWORD@"),
        ("etcd://:password@host:1", "USER:PASSWORD@"),
        ("zookeeper://user:password@host:1", "takes none"),
        ("zookeeper://host:1?ca=x", "known here: none"),
    ],
)
def test_a_mistake_is_told_with_what_was_expected(url: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        open_store(url, job="a", secret=b"")
    assert ":password" not in str(caught.value)


def test_an_unknown_kind_is_told_all_that_are_known_without_the_password() -> None:
    with pytest.raises(UsageError) as caught:
        open_store("etdc://me:password@host:1", job="a", secret=b"")
    for kind in ("edl://HOST:PORT", "etcd://", "etcds://", "zookeeper://HOST:PORT"):
        assert kind in str(caught.value)
    assert "me:***@host" in str(caught.value)


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    for url in ("etcd://host:1/prefix", "etcd://me@host:1", "edl://[::1]:7007"):
        assert redact_url(url) == url


def test_every_name_is_one_level_and_no_two_meet() -> None:
    names = ["a", "a/b", "a%2Fb", "", "%", ".", "..", "%2E", "...", "%leases", "a@b", "é", " "]
    made = [segment(name) for name in names]
    assert len(set(made)) == len(names)
    assert not any(
        "/" in each or "@" in each or each in {"", ".", "..", "%leases"} for each in made
    )


def test_a_run_is_a_folder_of_its_own_below_the_job() -> None:
    for url in ("etcd://host:1/team", "etcds://host:1/team?ca=x"):
        parsed = StoreUrl.parse(with_run(url, "1/2"), options=frozenset({"ca"}))
        assert parsed.folder("job") == "/team/job/1%2F2"
        assert "run" not in parsed.options
    assert with_run("etcd://host:1", "") == "etcd://host:1"


@pytest.mark.parametrize(
    "password", ["s3cret", "s3@cret", "s3/cret", "s3/c@ret", "s3?c#ret", "s3:cret@"]
)
def test_no_part_of_a_password_is_shown(password: str) -> None:
    shown = redact_url(f"etcd://edl:{password}@10.0.0.1:2379/jobs?ca=x")
    assert shown == "etcd://edl:***@10.0.0.1:2379/jobs?ca=x"


@pytest.mark.parametrize("user", ["edl", "e/dl"])
@pytest.mark.parametrize("password", ["s3/cret", "s3?cret", "s3#cret", "12/34", "s3@12/34", "p?"])
def test_a_password_that_is_not_encoded_is_not_quoted(user: str, password: str) -> None:
    with pytest.raises(
        UsageError, match="percent-encode /, \\?, # and @ in the password"
    ) as caught:
        StoreUrl.parse(f"etcd://{user}:{password}@10.0.0.1:2379/jobs", login=True)
    assert "etcd://***@10.0.0.1:2379/jobs" in str(caught.value)
    for part in ("s3", "cret", "12", "34", "edl"):
        assert part not in str(caught.value).replace("10.0.0.1:2379", "")


@pytest.mark.parametrize("password", ["[s3cret]", "s3cret\u2100", "[s3cret"])
def test_a_password_that_makes_no_url_is_not_quoted(password: str) -> None:
    with pytest.raises(UsageError, match="is no URL") as caught:
        StoreUrl.parse(f"etcd://edl:{password}@10.0.0.1:2379", login=True)
    assert "cret" not in str(caught.value)


def test_an_at_sign_that_is_encoded_is_no_login() -> None:
    url = StoreUrl.parse("etcds://host:1?ca=/etc/a%40b.pem", options=frozenset({"ca"}))
    assert (url.user, url.options) == (None, {"ca": "/etc/a@b.pem"})
