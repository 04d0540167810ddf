"""What people see: a page, and the four forms that it takes (terminal, HTML, CSV, JSON).

In: results and profiles. Out: text, files. Touches the terminal and files that a user names.
"""
