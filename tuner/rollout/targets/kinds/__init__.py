"""The kinds of file: one module each, named in ``registry``, beside what several share."""
