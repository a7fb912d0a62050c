"""Downloads from the model hub and from web servers, for servers and for people's commands (`pipeline.fetching`)."""
