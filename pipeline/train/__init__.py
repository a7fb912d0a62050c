"""Chooses, from examples of a task alone, what training it needs: the task, schema, prompt and splits."""
