"""The package's own engine. The way of a request: engine, core, scheduler, model_runner, sampler."""
