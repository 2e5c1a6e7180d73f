"""The scheduler's side: change, measure and end a running job.

A job is found by its name among this user's job folders, from any directory:

    from edl.client import Job, run

    job = run("train.py", workers=2)
    job.scale_out(2)                    # two more workers, wherever there is a slot
    job.scale_in(["localhost:0"])       # whoever sits on that slot leaves
    job.migrate(["localhost:1"], ["localhost:4"])   # from one slot to another
    print(job.status().throughput)
    job.stop()

A request that is told to retry, or hears nothing, is asked again under the same request id until
its time is up, so it is carried out at most once.
"""

from __future__ import annotations

from edl.client.calls import migrate, profile, run, scale_in, scale_out
from edl.client.job import Job
from edl.launch.slots import parse_slots
from edl.launch.told import Event
from edl.protocol.profiling import Profile

__all__ = [
    "Event",
    "Job",
    "Profile",
    "migrate",
    "parse_slots",
    "profile",
    "run",
    "scale_in",
    "scale_out",
]
