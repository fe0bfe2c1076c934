"""Spare interpreters beside workers, which replace them at a restart."""
