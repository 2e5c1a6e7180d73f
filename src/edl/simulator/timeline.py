"""The cluster over time, as means over equal bins, collected while a simulation runs.

How long it lasts is known at its end only, so there are more and finer bins first, which are
merged in pairs whenever they become too many. Booking a time span costs the same however many
bins it covers: its ends go to their bins, what lies between to a difference that is summed up at
the end.
"""

from __future__ import annotations

from itertools import accumulate

from edl.simulator.outcome import Timeline

__all__ = ["Recorder"]

FINE = 4  # times as many bins as are asked for, before the last merge


class _Track:
    """One quantity: `add(begin, end, height)` adds height over that time."""

    __slots__ = ("edge", "parts")

    def __init__(self, bins: int) -> None:
        self.parts = [0.0] * bins  # height * seconds, for spans' ends
        self.edge = [0.0] * (bins + 1)  # height that begins to cover whole bins there

    def merge(self, bin_s: float) -> None:
        sums = self.sums(bin_s)
        if len(sums) % 2:
            sums.append(0.0)
        half = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
        bins = len(self.parts)
        self.parts = half + [0.0] * (bins - len(half))
        self.edge = [0.0] * (bins + 1)

    def sums(self, bin_s: float) -> list[float]:
        whole = accumulate(self.edge)
        return [part + height * bin_s for part, height in zip(self.parts, whole, strict=False)]


class Recorder:
    """Bins that cover whatever time comes."""

    def __init__(self, span_s: float, bins: int) -> None:
        self.bins = bins
        self.most = FINE * bins
        self.bin_s = max(span_s, 1.0) / (2 * bins)
        self.used = _Track(self.most)
        self.worth = _Track(self.most)
        self.running = _Track(self.most)
        self.waiting = _Track(self.most)
        self.used_gpu_s = 0.0
        self.worth_gpu_s = 0.0
        self.last_s = 0.0

    def useful(self, begin: float, end: float, worth: float) -> None:
        self.worth_gpu_s += (end - begin) * worth
        self._add(self.worth, begin, end, worth)

    def passed(self, now: float, used: int, running: int, waiting: int) -> None:
        """From the last call until now the cluster was like this."""
        begin = self.last_s
        if now <= begin:
            return
        self.last_s = now
        self.used_gpu_s += (now - begin) * used
        bin_s = self.bin_s
        first = int(begin / bin_s)
        if now < (first + 1) * bin_s and first < self.most:
            # Nearly always: no bin's edge lies between.
            passed = now - begin
            self.used.parts[first] += passed * used
            self.running.parts[first] += passed * running
            self.waiting.parts[first] += passed * waiting
            return
        self._add(self.used, begin, now, used)
        self._add(self.running, begin, now, running)
        self._add(self.waiting, begin, now, waiting)

    def _add(self, track: _Track, begin: float, end: float, height: float) -> None:
        bin_s = self.bin_s
        first, last = int(begin / bin_s), int(end / bin_s)
        while last >= self.most:
            self._merge()
            bin_s = self.bin_s
            first, last = int(begin / bin_s), int(end / bin_s)
        if first == last:
            track.parts[first] += (end - begin) * height
            return
        track.parts[first] += ((first + 1) * bin_s - begin) * height
        track.parts[last] += (end - last * bin_s) * height
        track.edge[first + 1] += height
        track.edge[last] -= height

    def _merge(self) -> None:
        for track in (self.used, self.worth, self.running, self.waiting):
            track.merge(self.bin_s)
        self.bin_s *= 2

    def timeline(self, end_s: float) -> Timeline:
        while end_s / self.bin_s > self.bins:
            self._merge()
        count = int(end_s / self.bin_s) + 1
        bin_s = self.bin_s

        def means(track: _Track) -> tuple[float, ...]:
            found = [total / bin_s for total in track.sums(bin_s)[:count]]
            # The last bin is over when the last job is.
            rest = end_s - (count - 1) * bin_s
            if rest > 0:
                found[-1] *= bin_s / rest
            else:
                found.pop()
            return tuple(found)

        return Timeline(
            bin_s, means(self.used), means(self.worth), means(self.running), means(self.waiting)
        )
