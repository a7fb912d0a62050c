"""Engines that continue token ids, and the weights they load. Knows nothing of Honeycomb."""
