"""What all HTTP APIs share: bodies, errors, limits, security, the log, and the client that sends webhooks."""
