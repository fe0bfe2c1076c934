"""What runs inside a worker; the one room that may import torch."""
