"""Everything that serves requests, behind one seam: vLLM, and a simulated machine.

In come engine arguments as the user wrote them, token ids and caps; out go engines with every
argument pinned, outputs with their times, and a row for each iteration. It starts the processes of
engines. Outside this room only capture's stat logger imports vLLM. ``vllm`` has the engine in this
process, ``server`` those behind HTTP, ``workers`` processes that take batches off a queue, ``sim``
the simulated machine with its noise, ``scheduler`` the model of vLLM's scheduler, KV blocks
included. ``page`` is what tuner and the scheduler of an engine share. An engine argument that must
be checked, pinned or refused goes into ``vllm/config.py``, one that a stranger's profile may set
into ``vllm/allowed.txt``. How flags are spelled is in ``vllm/flags.json``, which
``scripts/vllm_flags.py --update`` writes. A new kind of engine is one class with the members of
``seam.Engine``, and one that starts it.
"""
