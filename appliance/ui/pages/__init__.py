"""One controller a page: reads what a form says, calls the domain's services, renders."""
