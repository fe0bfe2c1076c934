"""Rendezvous for elastic-core over a Redis or Valkey server."""
