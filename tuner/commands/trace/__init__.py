"""``tuner trace``: look at a trace, import, cut and export it."""
