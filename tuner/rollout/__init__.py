"""A profile put where it is deployed, and nothing else touched.

In come a profile and the text of a file; out go the text with vLLM's arguments changed, what
differs, what speaks against it, and a backup that takes it back byte for byte. Only ``backup``
writes files; ``beside`` looks for others in its folder. A new kind of file is a module in
``targets/kinds``, named in ``registry.py`` there and recognised in ``detect.py`` there. A file that
watches servers is a module in ``monitoring``, named in ``registry.py`` there.
"""
