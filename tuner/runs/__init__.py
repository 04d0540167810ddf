"""The long work: sweep, refine, compare, verify, on one machine or a cluster.

In come a trace, settings and a starter of engines; out go a journal in which everything measured
is on disk the moment it exists, and an outcome. It may touch engines, the run folder and a
cluster, and prints nothing. What ``--objective`` of a refinement may be is in
``refine/objective.py``; what makes a cap best is in ``twin/decide.py``. Most warnings come from
four places: ``sweep/sweep_warnings.py`` of what a sweep cannot promise, ``second_thoughts`` in
``result.py`` of what it measured, ``twin/verdict.py`` of how sure the choice is
and of the KV cache.
"""
