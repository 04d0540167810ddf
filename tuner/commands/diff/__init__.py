"""``tuner diff``: in what a profile differs from another, a file or a server."""
