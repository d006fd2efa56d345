"""What happened to a request, and why: explanations for tenants and administrators."""
