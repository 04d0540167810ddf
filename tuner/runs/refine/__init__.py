"""The run of ``tuner refine``: search around the knee, compare in turns, keep what is proven."""
