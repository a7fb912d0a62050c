"""Publishing: a locked checkpoint to the model hub with its card, and a package to Replicate after its checks."""
