"""Functions as workers."""


def run(kit, count=1, **more):
    """Run the calls to their end, and return what they returned."""
    kit.start_calls(count, **more)
    kit.run_until_exits(count)
    return kit.return_values
