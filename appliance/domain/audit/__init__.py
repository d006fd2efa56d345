"""Audit: who changed what, when, from where; written with the change, never changed again."""
