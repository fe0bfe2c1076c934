"""Workers from interpreters that have imported torch: forks of one per node, or a spare beside each worker."""
