"""What answers predictions: clients of Cog servers, the pool of them, and what is known of their model."""
