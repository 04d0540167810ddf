"""Servers that are running: asked, watched, and their limits changed.

In come addresses, sockets and a profile; out go what a server says of itself, windows held against
the promise, a verdict that is valid however often it is looked at, and changed limits with an
audit. It may touch the network, sockets and their folder. ``control`` has the socket that changes
limits, ``watch`` the windows and the verdict; vLLM's names of metrics are in ``prometheus.py``.
"""
