"""What the launcher makes of checkpoint.json: events, each of them once."""

from __future__ import annotations

from pathlib import Path

from edl.launch.checkpoints import CheckpointNews
from edl.launch.jobs import JobFolder
from edl.runtime.standing import note_resumed


def test_each_checkpoint_passed_over_is_an_event_with_its_path_and_reason(tmp_path: Path) -> None:
    news = CheckpointNews(JobFolder(tmp_path))
    why = [("ck/step-000000000100", "model.safetensors does not match its checksum: corrupt")]
    note_resumed(tmp_path, 80, 0.0, "w3", passed_over=why)
    assert news.poll() == [
        ("checkpoint.passed_over", 80, {"worker": "w3", "path": why[0][0], "why": why[0][1]}),
        ("job.resumed", 80, {"from_step": 80, "worker": "w3", "passed_over": 1}),
    ]
    assert news.poll() == []
