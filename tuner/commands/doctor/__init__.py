"""``tuner doctor``."""
