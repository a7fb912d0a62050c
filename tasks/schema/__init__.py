"""The schema task: takes texts and answers with a JSON value of a given schema."""
