"""A trace described before anything is run, and the part of it that is sent.

In come requests; out go rate, burstiness, concurrency and warnings, one replica's share,
windows, prompts with the recorded lengths and shared prefixes, and the SLO that one request
must meet. Pure and seeded: it touches nothing. A warning about a trace is a sentence in
``description.py``. What tunes the decision is in ``constants.py``.
"""
