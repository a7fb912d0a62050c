"""The package as a Hugging Face Inference Endpoint."""
