"""How Honeycomb queries are judged: accepted or exact, part by part, and by the results of running them."""
