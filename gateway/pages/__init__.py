"""The playground at `/`, a page for each prediction at `/p/ID`, and pages of corrections and versions."""
