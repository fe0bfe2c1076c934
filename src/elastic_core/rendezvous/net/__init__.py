"""Network kit for backends: endpoints, addresses, TLS, interruptible calls, peers, and servers that a node hosts."""
