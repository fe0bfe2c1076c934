"""`torch.distributed.launch`, by ours."""

from elastic_core.launch import launch, main, parse_args

__all__ = ["launch", "main", "parse_args"]

if __name__ == "__main__":
    from elastic_core.launch import process

    process()
