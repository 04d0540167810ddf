"""``tuner plan``: other loads, caps and fleets, by the twin in a profile."""
