"""Servers that are running: asked, watched, and their limits changed.

In come addresses, sockets and a profile; out go what a server says of itself, windows held against
the promise, a verdict that may be looked at as often as one likes, and changed limits with an
audit. It may touch the network, sockets and their folder.
"""
