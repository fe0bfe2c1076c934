"""The ledger: how an agent records in which state its node spends each second."""
