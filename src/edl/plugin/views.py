"""What a loader fetches for a part of a step, for each kind of dataset.

Owns: how a part of the ledger becomes a request to the dataset. Holds: the same part is always the
same request, on whatever worker and in whatever process.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Sized
from typing import Any, Protocol

from edl.data.order import Drawn
from edl.data.source import Source
from edl.errors import DataError, UsageError
from edl.plugin.stream import StreamView
from edl.protocol.ledger import MapLedger, Slice
from edl.protocol.progress import Ledger
from edl.protocol.shards import Piece, ShardLedger, ShardPart
from edl.runtime.partitions import shard_of

__all__ = ["View", "view_of"]

# Rows of the batch that a worker without a share runs its loop on; two, for BatchNorm's sake.
_STAND_IN = 2

Part = Slice | ShardPart | None


class View(Protocol):
    """A dataset as the loader sees it."""

    ledger: Ledger
    dataset: Any  # what is asked for samples: by __getitems__, or sample by sample

    def key(self, epoch: int, part: Part, first: int, count: int) -> Hashable:
        """The rows `first` to `first + count` of a part, to recognise them by.

        Without a part: real samples, so that the loop's body runs as ever; they are not consumed.
        """
        ...

    def samples(self, epoch: int, part: Part, first: int, count: int) -> list[Any]:
        """What to ask the dataset for."""
        ...


class MapView:
    """A dataset with indexes."""

    def __init__(self, dataset: Any, ledger: MapLedger) -> None:
        self.dataset = dataset
        self.ledger: Ledger = ledger
        self._first = ledger
        self._drawn: tuple[int, Drawn] | None = None

    def key(self, epoch: int, part: Part, first: int, count: int) -> tuple[int, int, int, bool]:
        if isinstance(part, Slice):
            return part.epoch, part.start + first, count, False
        return epoch, 0, min(_STAND_IN, self._first.samples), True

    def samples(self, epoch: int, part: Part, first: int, count: int) -> list[Any]:
        epoch, start, count, _ = self.key(epoch, part, first, count)
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, Drawn(self._first.order(epoch), batch=self._first.batch)
        samples: list[Any] = self._drawn[1].take(start, count)
        if isinstance(self.dataset, StreamView):
            # A stream is read from front to back, and anew in each epoch.
            return [(epoch, index) for index in samples]
        return samples


class _Pieces:
    """A source that is asked for pieces of its partitions."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitems__(self, pieces: Sequence[tuple[int, int, int, int]]) -> list[Any]:
        found: list[Any] = []
        for epoch, index, offset, length in pieces:
            shard = shard_of(self._source.partitions, index, offset, length, epoch=epoch)
            samples = list(self._source.read(shard))
            if len(samples) != length:
                raise DataError(
                    f"{type(self._source).__name__}.read gave {len(samples)} samples of "
                    f"{shard.path}, from {shard.offset} on, where {length} were asked for"
                )
            found += samples
        return found


class SourceView:
    """Partitions."""

    def __init__(self, source: Source, ledger: ShardLedger) -> None:
        self.dataset = _Pieces(source)
        self.ledger: Ledger = ledger
        self._lengths = ledger.table.lengths

    def key(self, epoch: int, part: Part, first: int, count: int) -> Hashable:
        return tuple(self.samples(epoch, part, first, count)), part is None

    def samples(self, epoch: int, part: Part, first: int, count: int) -> list[Any]:
        if isinstance(part, ShardPart):
            return [(part.epoch, *piece) for piece in _between(part.pieces, first, first + count)]
        return [(epoch, 0, 0, min(_STAND_IN, self._lengths[0]))]


def _between(pieces: Sequence[Piece], start: int, end: int) -> list[tuple[int, int, int]]:
    """The rows from `start` to `end` of these pieces, which lie one after another."""
    found, at = [], 0
    for piece in pieces:
        begin, stop = max(start, at), min(end, at + piece.length)
        if begin < stop:
            found.append((piece.partition, piece.offset + begin - at, stop - begin))
        at += piece.length
    return found


def view_of(
    dataset: Any,
    *,
    batch: int,
    seed: int,
    shuffle: bool,
    drop_last: bool,
    epochs: int,
    stream: bool = False,
) -> View:
    """The view that fits; UsageError where none does. `stream`: it has no indexes."""
    name = type(dataset).__name__
    if isinstance(dataset, (str, bytes)):
        raise UsageError(
            f"edl.DataLoader needs a dataset, and {dataset!r} is a name; edl.data has readers of "
            "files, such as edl.data.Lines(...)"
        )
    if isinstance(dataset, Source):
        if drop_last:
            raise UsageError(f"drop_last with {name}: partitions are used whole; leave it out")
        lengths = [part.length for part in dataset.partitions]
        return SourceView(
            dataset,
            ShardLedger.opened(lengths, batch=batch, seed=seed, epochs=epochs, shuffle=shuffle),
        )
    view = StreamView(dataset, shuffle=shuffle) if stream else dataset
    if not isinstance(view, Sized):
        raise UsageError(
            "edl.DataLoader needs a map-style dataset, a stream with __len__ or a reader of "
            f"edl.data; {name} has no length"
        )
    ledger = MapLedger(
        samples=len(view),
        batch=batch,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
        epochs=epochs,
    )
    if ledger.usable() == 0:
        raise UsageError(
            f"a dataset of {ledger.samples} samples gives no step with batch_size="
            f"{batch}{' and drop_last' if drop_last else ''}"
        )
    return MapView(view, ledger)
