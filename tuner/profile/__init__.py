"""The serving profile: what to run, and all that it rests on, in one sealed YAML file.

In come a verdict and its evidence, or a file; out go sections with strict types, and answers that
need no engine: other loads, caps and fleets by the stored twin, limits on admission. It touches
the profile's file alone. The sections are in ``schema.py`` and ``numbers.py``; ``profile.py``
seals, writes and reads them.
"""
