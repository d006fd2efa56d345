"""The database: engine and sessions, the declarative base, the installation's state, migrations."""
