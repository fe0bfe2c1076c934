"""Fakes and conformance kits for plugin authors."""
