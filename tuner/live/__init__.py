"""Servers that are running: queried, watched, and their cap changed.

In come addresses, sockets and a profile; out go what a server reports, windows compared with
the promise, a verdict, and a changed cap. It may touch the network, sockets and their folder.
``control.py`` has the socket that changes the cap, ``watch.py`` the measures and the verdict;
vLLM's names of metrics are in ``prometheus.py``.
"""
