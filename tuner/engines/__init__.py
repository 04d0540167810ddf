"""What serves requests, behind one seam: vLLM in our process, and a simulated machine.

In come engine arguments as the user wrote them, token ids and caps; out go engines with every
argument pinned, outputs with their times, and a row for each iteration. It alone may import vLLM
and start processes. An engine argument that must be checked, pinned or refused goes into
``vllm/config.py``, one that a stranger's profile may set into ``vllm/allowed.py``, how its flag is
spelt into ``vllm/flags.py``, what devices say into ``devices.py``.
"""
