"""Finds and reads what a report needs: this machine's runs, a run's store, or collected directories."""
