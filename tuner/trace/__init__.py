"""Requests as production saw them: read from any format, checked, cut and written.

In come files of any size and format; out go requests in order of arrival, times in seconds and
lengths in tokens, with a count and a reason for every row that was left out. It touches files
alone. ``reading`` has the one path from bytes to a ``Trace``: ``rows`` finds the rows of a file,
``formats`` (a row each in ``formats.toml``) or ``guess`` give columns their roles, and a
``Checker`` reads every cell by the readers of ``values``. A new format is one row.
"""
