"""Tables of requests as people export them: what their headings mean, and how their cells are read.

A table is CSV, JSON lines or Parquet that no format of ``formats`` claims. ``headings`` has the one
table of synonyms, ``clocks``, ``cells`` and ``marks`` the rules for units and numbers, ``nested``
those for objects within cells; ``layout`` puts all together for a file, ``rows`` reads it row by
row and ``columns`` whole blocks at once, and ``order`` refuses times that cannot be of one clock.
"""
