"""``tuner refine``: other engine arguments around the knee."""
