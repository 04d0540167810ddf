"""What is known of a model from its files here: those that ship with the package (a config.json and
a tokenizer, no weights) or lie in the Hub's cache, the memory it takes, the words it reads."""
