"""Knowledge of a model from its files: the memory that it takes, the words that it reads.

The files ship with the package (a config.json and a tokenizer, no weights) or lie in the Hub's
cache.
"""
