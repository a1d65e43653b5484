"""The one exception that reaches an operator: a line that says what, why and what to do, and an exit code."""

from __future__ import annotations

from engine import exits


class AibenchError(Exception):
    """A failure with an explanation for the operator.

    `str(error)` is one line without a traceback; `code` is the exit code (engine.exits) of the command it ends.
    """

    def __init__(self, what: str, do: str = "", *, code: int = exits.USAGE) -> None:
        super().__init__(f"{what}; {do}" if do else what)
        self.what = what
        self.do = do
        self.code = code
