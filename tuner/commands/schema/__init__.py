"""``tuner schema``: what the files that tuner reads and writes must hold, as JSON Schema."""
