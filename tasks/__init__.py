"""The tasks that models are trained for: each builds prompts and reads answers."""
