"""A simulated machine on virtual time: the world that describes it, its noise, its engine."""
