"""Several serving processes on one database: who they are, and what share of each limit this one has."""
