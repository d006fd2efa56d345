"""Admission: may this request enter now? Tickets, and the one gate every request passes."""
