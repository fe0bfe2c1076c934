"""Worker functions: workers that call a Python function instead of running a program.

Importing this package loads only the description of a call. The code that starts one is loaded for the first start.
"""

from elastic_torchrun.functions.call import START_METHODS, FunctionCall

__all__ = ["START_METHODS", "FunctionCall"]
