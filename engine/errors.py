"""The one exception that reaches an operator: a line that says what, why and what to do, and an exit code."""

from __future__ import annotations

from engine import exits

_OF_MEMORY = ("MemoryError", "allocate memory", "failed to map segment", "can't start new thread")


class AibenchError(Exception):
    """A failure with an explanation for the operator.

    `str(error)` is one line without a traceback; `code` is the exit code (engine.exits) of the command it ends.
    """

    def __init__(self, what: str, do: str = "", *, code: int = exits.USAGE) -> None:
        super().__init__(f"{what}; {do}" if do else what)
        self.what = what
        self.do = do
        self.code = code


def remedy(words: str) -> str:
    """What helps a process that ended with these words: most often another limit of the shell that it came from."""
    if any(sign in words for sign in _OF_MEMORY):
        return "raise the limits of memory (ulimit -v) and of processes (ulimit -u), or free some memory"
    if "Too many open files" in words:
        return "raise the limit of open files (ulimit -n)"
    return ""
