"""Fills a gateway's cache of answers from a file of inputs."""
