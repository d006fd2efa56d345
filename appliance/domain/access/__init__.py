"""Identity: from a key to a principal, out of an in-memory snapshot."""
