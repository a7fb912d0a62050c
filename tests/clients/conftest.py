"""The gateway in front of a chat package that the clients ask."""

from tests.gateway.conftest import javascript
from tests.gateway.openai.conftest import chat_cog, chat_gateway

__all__ = ["chat_cog", "chat_gateway", "javascript"]
