"""The gateway: HTTP APIs in front of one or more Cog servers, in a process of its own."""
