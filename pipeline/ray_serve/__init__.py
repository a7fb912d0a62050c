"""scripts/serve --ray: the package as a Ray Serve application."""
