"""``tuner apply``: write a profile into what is deployed."""
