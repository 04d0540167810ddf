"""A profile put where it is deployed, and nothing else touched.

In come a profile and the text of a file; out go the text with vLLM's arguments changed, what
differs, what speaks against it, and a backup that takes it back byte for byte. Only ``backup``
writes files; ``beside`` looks for others in its folder. ``find`` reads a file, ``edit`` guesses
and checks, ``fit`` says what is written. Facts about deployments are rows of ``known.toml``; alert
rules and the dashboard are templates that ``monitor`` fills.
"""
