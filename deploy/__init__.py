"""Recipes for running the package elsewhere than on Replicate."""
