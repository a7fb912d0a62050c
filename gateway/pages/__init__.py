"""The playground at `/` and a page for each prediction at `/p/ID`."""
