"""Data for training scripts that resume in the middle of a data set."""
