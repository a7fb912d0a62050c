"""Simulates replicas under load: how many hold a given 99th percentile of the latency."""
