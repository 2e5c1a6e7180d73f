"""Files by path or URL, read in ranges, and tried again where that may help.

Owns: what is a passing trouble and what is not. Holds: whatever goes wrong is a DataError that
names the file; nothing is held open, so a forked process shares nothing with its parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from edl.errors import DataError, EdlError, UsageError

__all__ = ["Urls", "expand", "open_file", "read_range", "size_of", "system_of", "tried"]

Urls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_Result = TypeVar("_Result")

# Between tries, doubling; so about 3 s in all.
TRIES, PAUSE_S = 5, 0.2
# Another try would find the same.
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def expand(urls: Urls) -> list[str]:
    """Every file that is meant, in the order of the list, each pattern's files by name."""
    found: dict[tuple[str, str], str] = {}
    given = [urls] if isinstance(urls, str | os.PathLike) else urls
    for url in [name for each in given for name in _matches(os.fspath(each))]:
        system, path = system_of(url)
        # The same file may be spelled in two ways, on a disk at least.
        local = "file" in system.protocol
        place = (type(system).__name__, os.path.normpath(path) if local else path)
        if place in found:
            also = f", as {found[place]!r} too" if found[place] != url else ""
            raise UsageError(
                f"{url!r} is given twice{also}; its samples would be used twice an epoch"
            )
        found[place] = url
    if not found:
        raise UsageError("no files are given")
    return list(found.values())


def _matches(url: str) -> list[str]:
    # In a web address a question mark begins what the server is asked for.
    signs = "*[" if url.startswith(("http://", "https://")) else "*?["
    if not any(sign in url for sign in signs):
        return [url]
    system, path = system_of(url)
    if "*" not in url and tried(partial(system.exists, path), url):
        return [url]  # a file that is really called so
    matches = sorted(str(match) for match in tried(partial(system.glob, path), url))
    if not matches:
        raise UsageError(f"no file matches {url!r}")
    return [_spelled(match, url) for match in matches]


def _spelled(match: str, pattern: str) -> str:
    """A file that was found, as a URL of the pattern's kind."""
    # In a chain, as in simplecache::s3://bucket/*, the first URL is the one with the pattern.
    links = pattern.split("::")
    at = next((n for n, link in enumerate(links) if "://" in link), len(links) - 1)
    scheme, separator, _ = links[at].partition("://")
    links[at] = match if not separator or "://" in match else f"{scheme}://{match}"
    return "::".join(links)


def size_of(url: str) -> int:
    system, path = system_of(url)
    about = tried(partial(system.info, path), url)
    if about.get("type") == "directory":
        raise UsageError(f"{url!r} is a folder; give its files, as in {url.rstrip('/') + '/*'!r}")
    if about.get("size") is None:
        raise DataError(f"{url} does not say how long it is, so it cannot be read in ranges")
    return int(about["size"])


def read_range(url: str, start: int, end: int) -> bytes:
    """Bytes from `start` up to `end`; DataError where the file has fewer."""
    if end <= start:
        return b""
    system, path = system_of(url)

    def read() -> bytes:
        return bytes(system.cat_file(path, start=start, end=end))

    content = tried(read, url)
    if len(content) != end - start:
        raise DataError(
            f"{url} has no bytes {start} to {end} (got {len(content)}): it is shorter than when it "
            "was indexed"
        )
    return content


def open_file(url: str) -> Any:
    """A file to seek in, for readers that know their format themselves."""
    system, path = system_of(url)
    return tried(lambda: system.open(path, "rb"), url)


def tried(action: Callable[[], _Result], url: str) -> _Result:
    """Do it, again and again if that may help."""
    pause_s = PAUSE_S
    for left in reversed(range(TRIES)):
        try:
            return action()
        except EdlError:
            raise
        except LASTING as error:
            reason = error.strerror or type(error).__name__
            raise DataError(f"{url} cannot be read: {reason}") from error
        except Exception as error:
            if not left:
                raise DataError(
                    f"{url} cannot be read after {TRIES} tries: {type(error).__name__}: {error}"
                ) from error
        threading.Event().wait(pause_s)
        pause_s *= 2
    raise AssertionError("the last try has returned or raised")


def system_of(url: str) -> tuple[Any, str]:
    """The file system that a URL names, and the path in it."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url!r} cannot be opened: {error}") from error
    return system, str(path)
