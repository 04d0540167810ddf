"""The run of ``tuner compare``: every way of serving, on the same windows, in random order."""
