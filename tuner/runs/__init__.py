"""The long work: sweep, refine, compare, verify, on one machine or a cluster.

In come a trace, settings and a starter of engines; out go a journal in which everything measured
is on disk the moment it exists, and an outcome. It may touch engines, the run folder and a
cluster, and prints nothing.

All four are one loop (``bench.measure``): a plan reads the events of the run and returns the next
trial, the ``bench`` makes it on the engine that it needs, the ``journal`` keeps it; a resumed run
calls the same plan on the same events. A sweep, top to bottom: ``sweep/sweep`` (what is measured
next, on the ladder and on a fresh engine), ``sweep/conclusion`` (the decision), and ``result``
(outcome and profile).
"""
