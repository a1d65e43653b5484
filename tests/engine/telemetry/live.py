"""A running telemetry process, read line by line."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType

import msgspec

from engine.children import python_command
from engine.telemetry.samples import Line, Sample, Sources, Stalled

PATIENCE_S = 30.0
"""How long a test waits for a line that must come; only a broken program reaches it."""

_DECODER = msgspec.json.Decoder(Line)


class Telemetry:
    """Starts the process, ends it with the block. Lines that a test has skipped over are kept in `seen`."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            python_command("engine.telemetry.process", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self.seen: list[Line] = []
        self._buffer = b""

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def lines(self) -> Iterator[Line]:
        """Every line as it comes; TimeoutError after PATIENCE_S, the end with the process."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while True:
            whole, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                self.seen.append(_DECODER.decode(whole))
                yield self.seen[-1]
                continue
            if not select.select([self.process.stdout], [], [], deadline - time.monotonic())[0]:
                raise TimeoutError(f"no such line within {PATIENCE_S} s")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                return
            self._buffer += chunk

    def sample(self, device: str, matches: Callable[[dict[str, float]], bool] = bool) -> Sample:
        """The next sample of a device whose values match."""
        return next(x for x in self.lines() if isinstance(x, Sample) and x.device == device and matches(x.values))

    def sources(self, device: str, matches: Callable[[Sources], bool] = bool) -> Sources:
        """The next sources line of a device that matches."""
        return next(x for x in self.lines() if isinstance(x, Sources) and x.device == device and matches(x))

    def stalled(self, device: str) -> Stalled:
        """The next stalled line of a device."""
        return next(x for x in self.lines() if isinstance(x, Stalled) and x.device == device)

    def end(self) -> int:
        """Closes stdin and waits: the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)
