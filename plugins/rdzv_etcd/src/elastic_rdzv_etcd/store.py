"""The `etcd` backend: what the core's rendezvous needs, on etcd's v3 API."""
