"""Going on with a data set where it was left: for training scripts."""
