"""Requests as production saw them: read from any format, checked, cut and written.

In come files of any size in any format of ``formats``; out go requests in order of arrival, times
in seconds and lengths in tokens, with a count and a reason for every row that was left out. It
touches files alone. A new format is one module in ``formats``, named in ``formats/registry.py``;
the headings that any other table may have are in ``tables/headings.py``.
"""
