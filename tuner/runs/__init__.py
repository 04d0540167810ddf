"""The long work: sweep, refine, compare, verify, on one machine or a cluster.

In come a trace, settings and a starter of engines; out go a journal in which everything measured
is on disk the moment it exists, and an outcome. It may touch engines, the run folder and a
cluster, and prints nothing. The aims of a refinement are in ``refine/objective.py``. What a sweep
cannot promise is warned of in ``sweep/sweep_warnings.py``, what its measurements showed in
``second_thoughts`` of ``result.py``.
"""
