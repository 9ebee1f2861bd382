"""Python's garbage collector, for processes that hold many long-lived objects and make many short-lived ones."""

import gc

YOUNG_OBJECTS = 200_000
"""Net allocations between two collections; Python's own 700 make it walk thousands of open streams over and over.

What 1,200 streams hold. A collection of a quarter of that stops a pod for 20 ms, and it would come in the middle of 300
requests at once; requests leave no cycles behind, so that there is hardly anything to find.
"""


def collect_rarely() -> None:
    """Call once a process has started. Cycles are still found, later; what is alive now is never looked at again.

    At 300 streams of 50 tokens a second the collector took 18 % of a pod's CPU (docs/performance.md).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
