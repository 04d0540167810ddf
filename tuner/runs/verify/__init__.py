"""The run of ``tuner verify``: one fresh engine, one replay, and gates on the promise."""
