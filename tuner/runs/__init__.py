"""The long work: sweep, refine, compare, verify, on one machine or a cluster.

In come a trace, settings and a starter of engines; out go a journal in which everything measured
is on disk the moment it exists, and an outcome. It may touch engines, the run folder and a
cluster, and prints nothing. What a refinement makes better is an objective in
``refine/objective.py``; a warning about a run is said where it is found, and kept in its outcome.
"""
