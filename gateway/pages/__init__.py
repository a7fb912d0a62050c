"""The playground at `/` and a page for each prediction at `/p/ID`."""

from gateway.pages.page_routes import PAGES

__all__ = ["PAGES"]
