"""``tuner export``: a run's measurements for other programs."""
