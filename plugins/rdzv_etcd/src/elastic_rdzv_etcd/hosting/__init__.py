"""Private etcd servers on this machine: for a run without a separate server, and torch's `EtcdServer`."""
