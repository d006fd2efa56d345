"""Usage: who had how many requests and tokens, by minute and by hour."""
