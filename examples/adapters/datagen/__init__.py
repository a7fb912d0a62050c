"""Makes the training data of the example adapters: one module for each task, and the list of all."""
