"""Whether a machine and its engines can be measured: what ``tuner doctor`` asks of them."""
