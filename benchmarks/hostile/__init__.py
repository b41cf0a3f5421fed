"""Clients that mean harm, an honest one beside them, and what a server's process takes meanwhile."""
