"""Private etcd servers of this machine: for a run without a server of its own, and torch's `EtcdServer`."""
