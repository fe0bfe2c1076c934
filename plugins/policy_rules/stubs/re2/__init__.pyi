# As much of google-re2 as is used here.
class error(Exception): ...

class Options:
    log_errors: bool
    never_capture: bool
    max_mem: int

class _Match: ...

class _Regexp:
    def search(self, text: str) -> _Match | None: ...

def compile(pattern: str, options: Options | None = None) -> _Regexp: ...
