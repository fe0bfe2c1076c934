"""Spare interpreters beside workers, which take their places at a restart."""
