"""Where checkpoint files lie: a folder of this machine, or any fsspec URL.

Two fillings of one small port, so that the checkpoint room has one protocol for all: write files,
then one that says they are complete. Holds: a name written by `write` on this machine is either
there with all its bytes, on the disk, or not there; elsewhere that holds for what the other side
writes in one go (`write_small`). Every failure is an OSError, whatever the other side raised.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from edl.redaction import redact_text, redact_url

__all__ = ["LocalPlace", "Place", "RemotePlace", "open_place"]

_TEMPORARY = ".tmp"
_LOCAL_SCHEMES = ("file://", "local://")
_READ = 8 << 20


class Place(Protocol):
    """Folders of files beneath one root."""

    where: str

    def make(self) -> None:
        """Make the root unless it is there."""
        ...

    def entries(self) -> dict[str, bool]:
        """What lies in the root, and whether it is a folder; FileNotFoundError without a root."""
        ...

    def files(self, folder: str) -> dict[str, int]:
        """The files of a folder and their sizes; empty for a folder that is not there."""
        ...

    def read(self, folder: str, name: str, size: int) -> bytearray:
        """The file's first `size` bytes, or fewer if there are no more."""
        ...

    def write(self, folder: str, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file, replacing one of that name; the folder is made if need be."""
        ...

    def write_small(self, folder: str, name: str, content: bytes) -> None:
        """The same in one go: nobody ever sees a part of it."""
        ...

    def remove(self, folder: str, name: str) -> None: ...

    def remove_folder(self, folder: str, *, first: str = "") -> None:
        """Remove a folder if it is there, beginning with the file `first`."""
        ...


def open_place(url: str) -> Place:
    """The place that a path or URL means. Touches nothing yet."""
    for scheme in _LOCAL_SCHEMES:
        if url.startswith(scheme):
            return LocalPlace(Path(url.removeprefix(scheme)))
    if "://" in url or "::" in url:
        return RemotePlace(url)
    return LocalPlace(Path(url).expanduser())


class LocalPlace:
    """A folder of this machine, or one mounted on it."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.where = str(self._root)

    def make(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)

    def entries(self) -> dict[str, bool]:
        with os.scandir(self._root) as found:
            return {entry.name: entry.is_dir() for entry in found}

    def files(self, folder: str) -> dict[str, int]:
        try:
            with os.scandir(self._root / folder) as found:
                return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}
        except FileNotFoundError:
            return {}

    def read(self, folder: str, name: str, size: int) -> bytearray:
        content = bytearray(size)
        view = memoryview(content)
        reached = 0
        with _open_regular(self._root / folder / name) as file:
            while reached < size and (count := file.readinto(view[reached : reached + _READ])):
                reached += count
        view.release()
        del content[reached:]
        return content

    def write(self, folder: str, name: str, parts: Iterable[bytes | memoryview]) -> None:
        inside = self._root / folder
        # Only this one level: a root that has vanished may be a disk that is not mounted now.
        with contextlib.suppress(FileExistsError):
            inside.mkdir()
            _sync_folder(self._root)
        at = _open_folder(inside)
        # Others may write here, and may put a link in the folder's place: names are relative to
        # the opened folder.
        opener = partial(os.open, mode=0o666, dir_fd=at)
        temporary = f".{name}.{secrets.token_hex(4)}{_TEMPORARY}"
        try:
            try:
                with open(temporary, "xb", buffering=0, opener=opener) as file:
                    for part in parts:
                        _write_all(file, part)
                    os.fsync(file.fileno())
                os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                # A full disk gets its space back now; the first error says what went wrong.
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=at)
                raise
            _sync(at)
        finally:
            os.close(at)

    def write_small(self, folder: str, name: str, content: bytes) -> None:
        self.write(folder, name, [content])

    def remove(self, folder: str, name: str) -> None:
        (self._root / folder / name).unlink(missing_ok=True)

    def remove_folder(self, folder: str, *, first: str = "") -> None:
        path = self._root / folder
        if path.is_symlink():
            # Somebody made this link; what it leads to is theirs.
            path.unlink()
            return
        if first:
            self.remove(folder, first)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


class RemotePlace:
    """A folder behind an fsspec URL: an object store, another machine, this process's memory."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self.where = redact_url(self._url)
        self._opened: tuple[Any, str] | None = None

    def _open(self) -> tuple[Any, str]:
        """The file system and the root's path in it; made at first use, for it may connect."""
        if self._opened is None:
            # Imported here, for it serves those alone who give a URL.
            from fsspec.core import url_to_fs

            system, path = url_to_fs(self._url)
            self._opened = system, str(path).rstrip("/")
        return self._opened

    def make(self) -> None:
        with _as_os_errors(self._url):
            system, root = self._open()
            system.makedirs(root, exist_ok=True)

    def entries(self) -> dict[str, bool]:
        with _as_os_errors(self._url):
            return {name: kind == "directory" for name, kind, _ in self._list("")}

    def files(self, folder: str) -> dict[str, int]:
        with _as_os_errors(self._url):
            try:
                found = self._list(folder)
            except FileNotFoundError:
                return {}
            return {name: size for name, kind, size in found if kind == "file"}

    def _list(self, folder: str) -> list[tuple[str, str, int]]:
        system, root = self._open()
        path = f"{root}/{folder}".rstrip("/")
        # File systems remember listings, and others write here too.
        system.invalidate_cache()
        found = []
        for entry in system.ls(path, detail=True):
            name = str(entry["name"]).rstrip("/")
            # Object stores may list a folder within itself.
            if name.rsplit("/", 1)[-1] and name.strip("/") != path.strip("/"):
                size = int(entry.get("size") or 0)
                found.append((name.rsplit("/", 1)[-1], str(entry["type"]), size))
        return found

    def read(self, folder: str, name: str, size: int) -> bytearray:
        content = bytearray(size)
        reached = 0
        with _as_os_errors(self._url):
            system, root = self._open()
            with system.open(f"{root}/{folder}/{name}", "rb") as file:
                while reached < size and (part := file.read(min(_READ, size - reached))):
                    content[reached : reached + len(part)] = part
                    reached += len(part)
        del content[reached:]
        return content

    def write(self, folder: str, name: str, parts: Iterable[bytes | memoryview]) -> None:
        with _as_os_errors(self._url):
            system, root = self._open()
            system.makedirs(f"{root}/{folder}", exist_ok=True)
            with system.open(f"{root}/{folder}/{name}", "wb") as file:
                for part in parts:
                    file.write(part)

    def write_small(self, folder: str, name: str, content: bytes) -> None:
        with _as_os_errors(self._url):
            system, root = self._open()
            system.pipe_file(f"{root}/{folder}/{name}", content)

    def remove(self, folder: str, name: str) -> None:
        with _as_os_errors(self._url), contextlib.suppress(FileNotFoundError):
            system, root = self._open()
            system.rm_file(f"{root}/{folder}/{name}")

    def remove_folder(self, folder: str, *, first: str = "") -> None:
        if first:
            self.remove(folder, first)
        with _as_os_errors(self._url), contextlib.suppress(FileNotFoundError):
            system, root = self._open()
            system.rm(f"{root}/{folder}", recursive=True)


def _write_all(file: Any, part: bytes | memoryview) -> None:
    """An unbuffered file may take less than it was given."""
    view = memoryview(part)
    while len(view):
        view = view[file.write(view) :]


def _sync_folder(path: Path) -> None:
    """Put a folder's names on the disk; some network file systems cannot and need not."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _open_folder(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        if not path.is_symlink():
            raise
        raise OSError(errno.ELOOP, "is a symbolic link", str(path)) from None


def _open_regular(path: Path) -> FileIO:
    """Open for reading. OSError for a link, a pipe or a device that has taken a file's place."""
    try:
        # Without waiting, since opening a pipe waits for its writer.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "is a symbolic link", str(path)) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return FileIO(file, "rb")


@contextlib.contextmanager
def _as_os_errors(url: str) -> Iterator[None]:
    """Each file system has errors of its own; ours is one kind, with their words in it.

    Those may quote the URL. An error that does is replaced, and not chained, so that no traceback
    shows it either.
    """
    try:
        yield
    except OSError as error:
        words = error.strerror or str(error)
        shown = redact_text(words, url)
        if shown == words and redact_text(str(error), url) == str(error):
            raise
        raise type(error)(error.errno or errno.EIO, shown) from None
    except Exception as error:
        words = str(error) or "no reason given"
        shown = redact_text(words, url)
        told = OSError(errno.EIO, f"{type(error).__name__}: {shown}")
        if shown != words:
            raise told from None
        raise told from error
