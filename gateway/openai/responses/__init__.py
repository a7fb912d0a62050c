"""OpenAI's Responses API, on top of the chat completions of this folder's parent."""
