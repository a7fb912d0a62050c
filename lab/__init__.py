"""What measures this project and what breaks it; nothing imports it, and nothing of it goes into an image."""
