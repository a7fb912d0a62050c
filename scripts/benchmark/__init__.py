"""One harness, any engine, every figure from one run on one machine. Start reading at `command`."""
