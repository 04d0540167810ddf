"""The same work on the nodes of a Ray cluster: one engine a placement, one journal."""
