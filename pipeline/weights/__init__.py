"""Read, merge, quantize, write and lock checkpoints.

Everything that determines a byte of the default weights is elementwise numpy in a fixed order, so that every machine
writes the same bytes.
"""
