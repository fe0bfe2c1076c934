"""Rendezvous backends of elastic-core on a Redis or Valkey server."""
