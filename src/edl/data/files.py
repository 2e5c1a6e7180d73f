"""Files by path or URL, read in ranges, and tried again where that may help.

Owns: what is a passing trouble and what is not. Holds: whatever goes wrong is a DataError that
names the file; nothing is held open, so a forked process shares nothing with its parent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from edl.errors import DataError, UsageError

__all__ = ["expand", "open_file", "read_range", "size_of", "tried"]

_Result = TypeVar("_Result")

# Between tries, doubling; so about 3 s in all.
TRIES, PAUSE_S = 5, 0.2
# Another try would find the same.
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def expand(urls: str | Sequence[str]) -> list[str]:
    """Every file that is meant, in the order of the list, each pattern's files by name."""
    found: list[str] = []
    for url in [urls] if isinstance(urls, str) else urls:
        if not any(sign in url for sign in "*?["):
            found.append(url)
            continue
        system, path = _system(url)
        matches = tried(partial(system.glob, path), url)
        if not matches:
            raise UsageError(f"no file matches {url!r}")
        prefix = url.split("://", 1)[0] + "://" if "://" in url else ""
        found += [prefix + str(match) for match in sorted(matches)]
    if not found:
        raise UsageError("no files are given")
    twice = {url for url in found if found.count(url) > 1} if len(set(found)) < len(found) else ()
    if twice:
        raise UsageError(f"{min(twice)!r} is given twice; its samples would be used twice an epoch")
    return found


def size_of(url: str) -> int:
    system, path = _system(url)
    return int(tried(lambda: system.size(path), url))


def read_range(url: str, start: int, end: int) -> bytes:
    """Bytes from `start` up to `end`; DataError where the file has fewer."""
    system, path = _system(url)

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
    system, path = _system(url)
    return tried(lambda: system.open(path, "rb"), url)


def tried(action: Callable[[], _Result], url: str) -> _Result:
    """Do it, again and again if that may help."""
    pause_s = PAUSE_S
    for left in reversed(range(TRIES)):
        try:
            return action()
        except LASTING as error:
            raise DataError(f"{url} cannot be read: {error.strerror or error}") from error
        except Exception as error:
            if not left:
                raise DataError(
                    f"{url} cannot be read after {TRIES} tries: {type(error).__name__}: {error}"
                ) from error
        threading.Event().wait(pause_s)
        pause_s *= 2
    raise AssertionError("the last try has returned or raised")


def _system(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url!r} cannot be opened: {error}") from error
    return system, str(path)
