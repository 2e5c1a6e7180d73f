"""Where samples lie in files that do not say so themselves: found once, and kept if asked to.

Owns: the file that `index=` names. Holds: an index is used for a file only while the file has the
size that it had; whatever cannot be read is made anew.
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from edl.data.files import size_of, system_of
from edl.errors import DataError

__all__ = ["kept_index"]

log = logging.getLogger(__name__)

_FORMAT = 2


def kept_index(
    place: str | None, *, kind: str, urls: Sequence[str], make: Callable[[str], list[Any]]
) -> dict[str, list[Any]]:
    """What `make` finds in each file, or found when the index was written."""
    if place is None:
        return {url: make(url) for url in urls}
    known = _read(place, kind)
    sizes = {url: size_of(url) for url in urls}
    found = {
        url: known[url]["found"] if url in known and known[url]["size"] == sizes[url] else make(url)
        for url in urls
    }
    if any(known.get(url, {}).get("size") != sizes[url] for url in urls):
        files = {url: {"size": sizes[url], "found": found[url]} for url in urls}
        _write(place, {"format": _FORMAT, "kind": kind, "files": files})
    return found


def _read(place: str, kind: str) -> dict[str, Any]:
    system, path = system_of(place)
    try:
        content = json.loads(gzip.decompress(system.cat_file(path)))
        if content["format"] == _FORMAT and content["kind"] == kind:
            return dict(content["files"])
        log.warning("index.other place=%s why=made for %s", place, content["kind"])
    except FileNotFoundError:
        log.info("index.new place=%s", place)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        log.warning("index.unreadable place=%s why=%s", place, error)
    return {}


def _write(place: str, content: dict[str, Any]) -> None:
    system, path = system_of(place)
    try:
        data = gzip.compress(json.dumps(content).encode(), mtime=0)
        # Several workers may write it at once, all the same.
        system.pipe_file(path, data)
    except OSError as error:
        raise DataError(f"the index cannot be written to {place}: {error}") from error
