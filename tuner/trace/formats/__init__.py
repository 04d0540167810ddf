"""Trace formats: one module each, named in ``registry``; what they share is in ``reading``."""
