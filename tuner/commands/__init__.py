"""The command line: a module for each command, with its options and what it does.

In comes what the user typed; out go the result on stdout, progress and warnings on stderr, files,
and errors for the one boundary in ``cli.py``. It touches everything, through the other rooms; only
here is anything printed. What several commands share is in ``shared``.
"""
