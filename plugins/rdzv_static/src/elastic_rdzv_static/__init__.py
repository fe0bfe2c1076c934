"""The `static` rendezvous backend of elastic-core: several nodes without a server, with ranks assigned by hand."""
