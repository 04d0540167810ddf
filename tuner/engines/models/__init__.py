"""Models that ship with the package: a config.json and a tokenizer each, no weights."""
