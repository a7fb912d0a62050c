"""Everything from a base and an adapter to a locked checkpoint, as one command that can be stopped and resumed."""
