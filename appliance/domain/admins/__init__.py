"""Administrators: their roles, passwords, sessions and tokens, and the guard of the admin routes."""
