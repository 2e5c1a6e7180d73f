"""Starts a process that is tied to this one, shows its pid, and waits to be killed."""

import multiprocessing
import os
import sys
import threading

from edl.runtime.lifeline import die_with_parent, die_with_process

TIES = {"parent": die_with_parent, "process": die_with_process}


def child(trainer: int, tie: str) -> None:
    TIES[tie](trainer)
    print(os.getpid(), flush=True)
    threading.Event().wait()


def begin(tie: str) -> None:
    context = multiprocessing.get_context("fork")
    context.Process(target=child, args=(os.getpid(), tie)).start()


def main() -> None:
    (tie,) = sys.argv[1:]
    if tie == "parent":
        begin(tie)
    else:
        # The thread that started the child is over; the child must not be.
        thread = threading.Thread(target=begin, args=(tie,))
        thread.start()
        thread.join()
    threading.Event().wait()


if __name__ == "__main__":
    main()
