"""weights.lock of folders, hub repositories and https files, and fetching what it names."""
