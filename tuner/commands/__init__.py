"""The command line: a folder for each command, with its options, what it does, how it looks.

In comes what the user typed; out go the result on stdout, progress and warnings on stderr, files,
and errors for the one boundary in ``cli.py``. It touches everything, through the other rooms; only
here is anything printed. What several commands share is in ``shared``.
"""
