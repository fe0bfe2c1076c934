"""What rendezvous backends with a server share: endpoints and connections, TLS, interruptible calls, hosted servers."""
