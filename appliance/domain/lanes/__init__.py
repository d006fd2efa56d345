"""Lanes: fast, slow and batch; which one a request is proposed for."""
