"""``tuner show``: a serving profile in twelve lines."""
