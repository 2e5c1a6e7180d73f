"""The journal script, but it raises where EDL_TEST_RAISE says: on a sample, or on one worker.

`sample=77` raises wherever that sample is in the batch; `worker=w1` raises there at step 8.
"""

import os

import journal  # type: ignore[import-not-found]

import edl.torch as edl

WHAT, _, WHICH = os.environ["EDL_TEST_RAISE"].partition("=")


class Raising(journal.Log):  # type: ignore[misc]
    def intent(self, indexes: list[int], loss: float) -> None:
        super().intent(indexes, loss)
        if WHAT == "sample" and edl.epoch() == 1 and int(WHICH) in indexes:
            raise ValueError(f"sample {WHICH} is a banana")
        if WHAT == "worker" and os.environ["EDL_WORKER"] == WHICH and edl.step() == 8:
            raise OSError("my disk is full")


if __name__ == "__main__":
    journal.Log = Raising
    journal.main()
