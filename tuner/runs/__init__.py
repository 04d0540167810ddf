"""The long work: sweep, refine, compare, verify, on one machine or a cluster.

In come a trace, settings and a starter of engines; out go a journal in which everything measured
is on disk the moment it exists, and an outcome. It may touch engines, the run folder and a
cluster, and prints nothing. The aims of a refinement are in ``refine/objective.py``, the warnings
of a sweep in ``sweep/sweep_warnings.py``; the run's result gathers all that was warned of.
"""
