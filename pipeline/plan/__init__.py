"""Plans capacity: on which hardware a checkpoint fits, how many requests that holds, how fast and at what cost."""
