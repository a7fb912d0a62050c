"""The task: a question and column names in, a Honeycomb query out. Knows nothing of engines."""
