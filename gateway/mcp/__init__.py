"""The model as a tool of the Model Context Protocol."""
