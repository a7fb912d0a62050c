"""Answers every row of a file with the package's model, and can be interrupted at any time."""
