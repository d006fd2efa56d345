"""Grafana dashboards: each page is a value (`pages/`), `build.py` makes Grafana's JSON of it, and `json/` is what it made.

`make dashboards` writes `json/` anew; tests hold it to the pages, to the declared metrics and to a set of rules, and run every query
against a Prometheus that scrapes a working appliance.
"""
