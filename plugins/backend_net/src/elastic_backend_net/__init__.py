"""Common code of rendezvous backends with a server: endpoints, TLS, interruptible calls, hosted servers."""
