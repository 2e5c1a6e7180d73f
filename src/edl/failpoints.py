"""Named points in the code at which a test can make a process fail, wait or look around.

A test names a failpoint instead of replacing a private method, so the code behind it may change
freely. Nothing can set a hook from outside the process: no setting, variable or message does.
Holds: without a hook a failpoint does nothing, and an unknown name is an error.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["FAILPOINTS", "clear_hooks", "hit", "set_hook"]

FAILPOINTS = {
    "agent.event": "the agent's thread: a machine is about to handle an event",
    "group.listening": "the build thread: a process group listens and waits for its peers",
}

_hooks: dict[str, Callable[[], None]] = {}


def set_hook(name: str, hook: Callable[[], None]) -> None:
    """Call `hook` whenever this process reaches the failpoint; what it raises is raised there."""
    if name not in FAILPOINTS:
        raise ValueError(f"unknown failpoint {name!r}, expected one of {', '.join(FAILPOINTS)}")
    _hooks[name] = hook


def clear_hooks() -> None:
    """Remove every hook of this process."""
    _hooks.clear()


def hit(name: str) -> None:
    """Run the failpoint's hook if there is one."""
    hook = _hooks.get(name)
    if hook is not None:
        hook()
