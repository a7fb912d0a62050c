"""Measures how well a chat model calls tools, on public questions and beside another server; see `measure`."""
