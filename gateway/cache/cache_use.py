"""Whether a caller wants an answer from the cache, by the header Cache-Control."""

from __future__ import annotations

from enum import Enum

from starlette.datastructures import Headers


class CacheUse(Enum):
    """What the cache may do for one request."""

    NORMAL = "give an answer, or keep the new one"
    REFRESH = "keep the new answer, and give no old one"
    NONE = "neither give nor keep"

    @classmethod
    def of(cls, headers: Headers) -> CacheUse:
        """Of a request: `Cache-Control: no-cache` asks for a new answer, `no-store` also that it is not kept."""
        directives = {part.strip().lower() for part in headers.get("cache-control", "").split(",")}
        if "no-store" in directives:
            return cls.NONE
        return cls.REFRESH if "no-cache" in directives else cls.NORMAL
