"""Grafana's dashboards without Grafana: what they ask, asked of a Prometheus or of our own last hour, as numbers to draw."""
