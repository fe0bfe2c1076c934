"""The `static` rendezvous backend of elastic-core: several nodes, no server, ranks given by hand."""
