"""The URL of a store that others serve: where it is, where in it our keys lie, how to log in.

Owns the form, so that both kinds refuse the same mistakes in the same words. Holds: a name made
by `segment` is one level of a path and reaches into nobody else's; a password is never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from edl.errors import UsageError
from edl.redaction import HIDDEN, redact_url
from edl.types import Address

__all__ = ["StoreUrl", "segment", "with_run"]

DEFAULT_PREFIX = "/edl"


def segment(text: str) -> str:
    """One level of a path, whatever a job, a key or a lease is called.

    A per cent sign is always followed by two digits here, so names of our own such as `%leases`
    never meet one of these.
    """
    quoted = quote(text, safe="") or "%"
    return quoted.replace(".", "%2E") if quoted in {".", ".."} else quoted


def with_run(url: str, run: str) -> str:
    """The same store, but keys of one run of a job alone; the URL as it is without a run."""
    return f"{url}{'&' if '?' in url else '?'}run={quote(run, safe='')}" if run else url


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUrl:
    """`SCHEME://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...][/PREFIX][?OPTION=VALUE]`, taken apart.

    A host may be a name here, because certificates are made out to names. The prefix begins with
    a slash and does not end with one. `run` is known to every kind: see `with_run`.
    """

    scheme: str
    servers: tuple[Address, ...]
    prefix: str = DEFAULT_PREFIX
    user: str | None = None
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    run: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(str(server) for server in self.servers)}"

    def folder(self, job: str) -> str:
        """What all names of a job begin with, without a slash at its end."""
        folder = f"{self.prefix}/{segment(job)}"
        return f"{folder}/{segment(self.run)}" if self.run else folder

    @staticmethod
    def parse(url: str, *, login: bool = False, options: frozenset[str] = frozenset()) -> StoreUrl:
        """`login`: whether this kind takes a user; `options`: the ones that this kind knows."""
        shown = redact_url(url)
        try:
            parts = urlsplit(url)
        except ValueError as error:
            # Its text may quote the password.
            why = "" if "@" in url else f": {error}"
            raise UsageError(f"store {shown!r} is no URL{why}") from None
        if url.count("@") > parts.netloc.count("@"):
            # What was taken for the host is a part of the login.
            scheme, _, rest = url.partition("://")
            hidden = f"{scheme}://{HIDDEN}@{rest.rpartition('@')[2]}"
            raise UsageError(
                f"store {redact_url(hidden)!r} has an '@' behind a '/', '?' or '#'; "
                "percent-encode /, ?, # and @ in the password (%2F, %3F, %23, %40), and @ in a "
                "prefix or an option"
            )
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        run = given.pop("run", "")
        if unknown := sorted(set(given) - options):
            known = ", ".join(sorted(options)) or "none"
            raise UsageError(f"store {shown!r} has option {unknown[0]!r}; known here: {known}")
        account, at, hosts = parts.netloc.rpartition("@")
        user, colon, password = account.partition(":")
        if at and not (login and user and colon):
            wanted = "USER:PASSWORD@" if login else "no user: this kind of store takes none"
            raise UsageError(f"store {shown!r} has a login of another form; expected {wanted}")
        return StoreUrl(
            scheme=parts.scheme,
            servers=tuple(Address.parse(host) for host in hosts.split(",")),
            prefix=_prefix(parts.path, shown),
            user=unquote(user) if at else None,
            password=unquote(password),
            options=given,
            run=run,
        )


def _prefix(path: str, shown: str) -> str:
    if path in {"", "/"}:
        return DEFAULT_PREFIX
    levels = path.rstrip("/").split("/")[1:]
    if any(level in {"", ".", ".."} for level in levels):
        raise UsageError(
            f"store {shown!r} has prefix {path!r}; expected names between slashes, as in /team/edl"
        )
    return "/" + "/".join(levels)
