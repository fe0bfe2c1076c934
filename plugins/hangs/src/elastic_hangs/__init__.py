"""Finds workers that hang."""
