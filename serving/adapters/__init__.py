"""Which adapters a server has, and where they are: the operator's adapters.yaml."""
