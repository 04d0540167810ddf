"""The serving profile: what to run, and what that rests on: a sealed page of YAML and its evidence.

In come a verdict and what it rests on, or a file; out go sections with strict types, and answers
that need no engine: other loads, caps and fleets by the twin, limits on admission. It touches the
profile's two files alone. The sections are in ``profile.py``, which seals, writes and reads them;
``evidence.py`` has the twin beside the page.
"""
