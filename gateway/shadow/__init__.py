"""A candidate version is asked what callers ask, without their noticing, and answers that differ are kept."""
