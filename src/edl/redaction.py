"""What of a URL may be shown: everything but its credentials.

URLs of stores and of checkpoints reach errors, events, logs, `edl status` and files of a job, which
users paste elsewhere. Holds: no part of a password, secret or token is shown, whatever
characters are in it; where it is not clear what belongs to it, too much is hidden.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

__all__ = ["HIDDEN", "redact_text", "redact_url"]

HIDDEN = "***"
# USER:PASSWORD@ after two slashes. A password that is not quoted may hold any character, so all up
# to the last `@` is hidden. In fsspec's chains (`filecache::ftp://...`) any part may have one.
_LOGIN = re.compile(r"(//[^/:]*):(?!:[\w+.-]+:[:/])(.*)@", re.DOTALL)
# Options by which fsspec's file systems and signed URLs carry credentials.
_OPTION = re.compile(
    r"([?&](?:[^=&]*(?:secret|token|passw|passphrase|pwd|credential|signature|auth|connection_str"
    r"|(?:api|access|account|shared|private|sas)[-_]?key)[^=&]*|sig|sas|pass))=([^&]*)",
    re.IGNORECASE | re.DOTALL,
)


def redact_url(url: str) -> str:
    """The URL as it may be shown."""
    return _OPTION.sub(rf"\1={HIDDEN}", _LOGIN.sub(rf"\1:{HIDDEN}@", url))


def redact_text(text: str, url: str) -> str:
    """The words of another library, which may quote the URL or a credential in it."""
    # A library of a chain's later part knows nothing of the others.
    parts = [url, *url.split("::")]
    secrets = [found[2] for form in (_LOGIN, _OPTION) for p in parts for found in form.finditer(p)]
    for secret in sorted({*secrets, *map(unquote, secrets)}, key=len, reverse=True):
        if secret:
            text = text.replace(secret, HIDDEN)
    return text
