"""The backend `etcd-v2`, on etcd's v2 API: its store, and the client beneath it."""
