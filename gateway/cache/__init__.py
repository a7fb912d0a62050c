"""Answers that are given again to equal requests."""
