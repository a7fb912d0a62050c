"""Does to a real server what the world does, and says what was lost."""
