"""Fills a door's cache of answers from a file of inputs."""
