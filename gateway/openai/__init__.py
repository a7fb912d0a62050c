"""OpenAI's HTTP API: chat completions, completions and models, as far as its official clients need them."""
