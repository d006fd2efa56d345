"""Text: tokens, chat templates, incremental detokenising, stop strings."""
