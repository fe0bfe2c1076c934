"""The backends `etcd` and `etcd-v2`: many nodes meet through an etcd server, or a cluster of them."""
