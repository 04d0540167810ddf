"""``tuner capture``: a trace out of Prometheus, or out of a recording."""
