"""Static: every job has its user's GPUs, or waits. In the paper, what elasticity is compared with.

On 4 machines of 8 GPUs the first 8 jobs of 4 GPUs occupy everything and the others wait in line.
"""

from __future__ import annotations

from edl.policy.fifo import Fifo

__all__ = ["Static"]


class Static(Fifo):
    name = "static"
