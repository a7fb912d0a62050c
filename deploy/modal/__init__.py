"""Recipe for Modal."""
