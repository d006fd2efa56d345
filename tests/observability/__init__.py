"""Alerts, dashboards and the metrics they read."""
