"""``tuner compare``: every way of serving, measured on the same traffic."""
