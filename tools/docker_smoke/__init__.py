"""`make docker-smoke`: builds the image and runs compose.yaml for real."""
