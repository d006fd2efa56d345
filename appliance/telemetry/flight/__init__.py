"""The flight recorder: the last minute as one file, to be looked at elsewhere and later."""
