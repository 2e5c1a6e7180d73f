"""Judges a job from its script's own log: exactly once, constant batch, equal replicas.

A step counts in the latest generation in which anyone committed it, with the indexes logged for
that generation.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Journal", "read_journal"]


_STATE = ("parameters", "optimizer", "buffers", "rate")


@dataclass
class Journal:
    """Everything the workers of one job wrote."""

    lines: dict[str, list[dict[str, Any]]]

    def counted(self) -> dict[int, int]:
        """For each committed step the generation in which it counts."""
        found: dict[int, int] = {}
        for _, line in self._each("outcome"):
            if line["committed"]:
                found[line["step"]] = max(found.get(line["step"], 0), line["generation"])
        return found

    def used(self) -> dict[int, Counter[int]]:
        """How often each sample was used, by epoch."""
        counted = self.counted()
        epochs: dict[int, Counter[int]] = defaultdict(Counter)
        for _, line in self._each("intent"):
            if counted.get(line["step"]) == line["generation"]:
                epochs[line["epoch"]].update(line["indexes"])
        return dict(epochs)

    def batches(self) -> dict[int, int]:
        """The aggregate batch of each counted step."""
        counted = self.counted()
        total: Counter[int] = Counter()
        for _, line in self._each("intent"):
            if counted.get(line["step"]) == line["generation"]:
                total[line["step"]] += len(line["indexes"])
        return dict(total)

    def losses(self) -> list[float]:
        """The batch-weighted mean loss of each counted step."""
        counted = self.counted()
        weighted: dict[int, float] = defaultdict(float)
        for _, line in self._each("intent"):
            if counted.get(line["step"]) == line["generation"] and line["indexes"]:
                weighted[line["step"]] += line["loss"] * len(line["indexes"])
        batches = self.batches()
        return [weighted[step] / batches[step] for step in sorted(counted)]

    def sizes(self) -> list[int]:
        """How many workers took part in each counted step."""
        counted = self.counted()
        workers: dict[int, set[str]] = defaultdict(set)
        for worker, line in self._each("outcome"):
            if line["committed"] and counted[line["step"]] == line["generation"]:
                workers[line["step"]].add(worker)
        return [len(workers[step]) for step in sorted(workers)]

    def check_exactly_once(self, *, samples: int, epochs: set[int]) -> None:
        used = self.used()
        assert set(used) == epochs
        for epoch, counts in used.items():
            wrong = {i: counts[i] for i in range(samples) if counts[i] != 1}
            assert not wrong, f"epoch {epoch}: samples not used exactly once: {wrong}"
            assert len(counts) == samples

    def check_batches(self, *, batch: int, samples: int) -> None:
        last = samples % batch or batch
        steps_an_epoch = -(-samples // batch)
        for step, total in self.batches().items():
            expected = last if step % steps_an_epoch == steps_an_epoch - 1 else batch
            assert total == expected, f"step {step} used {total} samples, expected {expected}"

    def check_replicas(self) -> None:
        """Parameters and optimizer state are bit-equal on every worker after every step."""
        seen: dict[tuple[int, int], set[tuple[str, str]]] = defaultdict(set)
        for _, line in self._each("outcome"):
            if line["committed"]:
                key = (line["generation"], line["step"])
                seen[key].add((line["parameters"], line["optimizer"]))
        assert seen
        differing = sorted(key for key, digests in seen.items() if len(digests) > 1)
        assert not differing, f"replicas differ after (generation, step) {differing[:5]}"

    def check_end(self, *, steps: int) -> int:
        """Whoever finished the job holds the same state; no step is missing. Returns how many."""
        ends = [line for _, line in self._each("end")]
        assert ends, "nobody finished the job"
        states = {tuple(line[key] for key in _STATE) for line in ends}
        assert len(states) == 1, f"the workers that finished differ: {states}"
        assert {line["steps"] for line in ends} == {steps}
        assert sorted(self.counted()) == list(range(steps)), "steps are missing"
        return len(ends)

    def check_buffers_after_switches(self) -> int:
        """Right after a switch buffers are bit-equal too. Returns how many switches there were."""
        first: dict[int, int] = {}
        for _, line in self._each("outcome"):
            if line["committed"]:
                generation = line["generation"]
                first[generation] = min(first.get(generation, line["step"]), line["step"])
        for generation, step in first.items():
            digests = {
                line["buffers"]
                for _, line in self._each("outcome")
                if line["generation"] == generation and line["step"] == step
            }
            if generation > 1:
                assert len(digests) == 1, f"buffers differ after the switch to {generation}"
        return len(first) - 1

    def _each(self, what: str) -> list[tuple[str, dict[str, Any]]]:
        return [
            (w, line) for w, lines in self.lines.items() for line in lines if line["what"] == what
        ]


def read_journal(folder: Path) -> Journal:
    """The logs of one job."""
    lines = {
        path.stem: [json.loads(text) for text in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    }
    return Journal(lines)
