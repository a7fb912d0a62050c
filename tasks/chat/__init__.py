"""The chat task: takes messages or a prompt, and answers with text or with JSON of the caller's schema."""
