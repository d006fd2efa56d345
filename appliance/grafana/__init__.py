"""`fairlane grafana push`: datasource, folder, dashboards and teams' rights in a Grafana, through its HTTP API."""
