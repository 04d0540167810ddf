"""The operating system, made safe: the ground that every other room stands on.

In come paths, bytes, signals and YAML that strangers wrote; out go files written whole or not at
all, documents checked and bounded, numeric loops as machine code, and errors that say where and
what to do. It may touch disk, network and process, and knows nothing of traces, engines or vLLM.
"""
