"""Worker functions: workers that call a Python function instead of running a program.

Importing it loads nothing but what a call is; how one is started is loaded when the first one starts.
"""

from elastic_torchrun.functions.call import START_METHODS, FunctionCall

__all__ = ["START_METHODS", "FunctionCall"]
