"""How a task's answers are judged: the interface, and the judge of JSON and of text. Serving uses nothing of it."""
