"""The package's own engine; a request passes through engine, core, scheduler, model_runner and sampler."""
