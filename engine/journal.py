"""The journal of a run: one event a line, appended by one writer, read by whoever shows, stores or judges the run."""

from __future__ import annotations

import math
import re
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from engine import exits, files, runfolder
from engine.errors import AibenchError
from engine.events import SCHEMA, AnyEvent, Event, Iterations
from engine.lines import LineTail
from engine.text import clean_tree

MAX_LINE_BYTES = 4 * 1024**2
"""More than a run_started line of plan_file.MAX_TRIALS trials with the longest names takes. A longer line is refused
when written and skipped when read."""

POLL_BYTES = 8 * 1024**2
"""How much of the journal one poll turns into events at most, so that attaching to a long run takes bounded memory."""

RESERVE_BYTES = 1024**2
COALESCE_BYTES = 32 * 1024**2
GIVE_UP_BYTES = 128 * 1024**2
SYNC_TIMEOUT_S = 60.0


class _Tag(msgspec.Struct, frozen=True):
    """The part of a line that is read first. `schema` is looked at in run_started alone."""

    event: str
    schema: Any = None


_tag_decoder = msgspec.json.Decoder(_Tag)
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_KNOWN = frozenset(msgspec.inspect.type_info(kind).tag for kind in get_args(AnyEvent))  # type: ignore[attr-defined]

# Printable ASCII without escapes cannot hold anything that cleaning would change.
_PLAIN = re.compile(rb"[ -\[\]-~]*")


def encode(event: Event) -> bytes:
    """One journal line. Raises AibenchError (code 3) for a number that is not finite (msgspec would write null) and for
    a line above MAX_LINE_BYTES."""
    line = msgspec.json.encode(event)
    if b"null" in line:
        _refuse_non_finite(msgspec.to_builtins(event), type(event).__name__)
    if len(line) >= MAX_LINE_BYTES:
        name = type(event).__name__
        raise AibenchError(
            f"a {name} of {len(line)} bytes is more than a journal line holds ({MAX_LINE_BYTES})",
            "plan fewer trials in one run",
            code=exits.INCOMPLETE,
        )
    return line + b"\n"


def _refuse_non_finite(value: Any, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise AibenchError(f"{where} is {value}, which no journal can hold", code=exits.INCOMPLETE)
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in pairs:
        _refuse_non_finite(item, f"{where}.{key}")


def _coalesced(event: Iterations) -> Iterations:
    """The same iterations as one duration, their mean."""
    count = len(event.durations_s)
    if count == 0:
        return event
    mean = math.fsum(event.durations_s) / count
    return msgspec.structs.replace(event, group=event.group * count, durations_s=(mean,))


class JournalWriter:
    """Appends events to a run folder's journal from a thread of its own, so that a slow disk holds up nobody.

    `append` only encodes and queues. What waits is bounded in bytes: above COALESCE_BYTES the durations of each further
    Iterations event are averaged into one (the event's `group` says so), and above GIVE_UP_BYTES, which no honest trial
    reaches, events are dropped and every later `sync` fails. A write that fails is tried once more after the reserve
    gave space back; then it surfaces at `sync` and `close`, is kept, and is tried again with the next event or sync.
    `problem` says what went wrong first ("" while nothing did), even where the second attempt was good: a run should
    then come to its end while the rest of the reserve lasts.

    Raises FileError (code 3) where the folder cannot be written or has no room for the reserve.
    """

    def __init__(self, folder: Path, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._path = folder / runfolder.JOURNAL
        self.problem = ""
        with files.explained(self._path, "write"):
            self._file = files.Appender(self._path)
            try:
                files.fsync_folder(folder)
                self._reserve = files.Reserve(folder / runfolder.RESERVE, reserve_bytes)
            except OSError:
                self._file.close()
                raise
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._asked = 0
        self._answered = 0
        self._error: files.FileError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="journal", daemon=True)
        self._thread.start()

    def append(self, event: Event) -> None:
        """Queue an event. Never waits for the disk. Raises AibenchError where `encode` does."""
        if self._queued_bytes > COALESCE_BYTES and isinstance(event, Iterations):
            event = _coalesced(event)
        line = encode(event)
        with self._changed:
            if self._queued_bytes + len(line) > GIVE_UP_BYTES:
                self._dropped += 1
                self.problem = self.problem or str(self._too_slow("events were dropped"))
                return
            self._queue.append(line)
            self._queued_bytes += len(line)
            self._changed.notify_all()

    def sync(self, timeout_s: float = SYNC_TIMEOUT_S) -> None:
        """Block until all that was appended is durable.

        Raises AibenchError (code 3) where the disk refused it twice, does not answer in `timeout_s`, or lost events.
        """
        with self._changed:
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._answered >= mine, timeout_s):
                raise self._too_slow(f"it has not answered for {timeout_s:g} s")
            if self._error is not None:
                raise self._error
            if self._dropped:
                raise self._too_slow(f"{self._dropped} events were dropped")

    def close(self, timeout_s: float = SYNC_TIMEOUT_S) -> None:
        """Sync, end the thread and give the reserve back, in this order; raises what `sync` does."""
        try:
            self.sync(timeout_s)
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._thread.join(timeout_s)
            self._reserve.close()

    def _too_slow(self, what: str) -> AibenchError:
        return AibenchError(f"the disk of {self._path} is too slow: {what}", "use a faster disk", code=exits.INCOMPLETE)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._asked > self._answered or self._closing)
                lines, asked, closing = list(self._queue), self._asked, self._closing
                self._queue.clear()
            for line in lines:
                self._file.add(line)
            error = self._store(durably=asked > self._answered)
            with self._changed:
                self._queued_bytes = sum(map(len, self._queue)) + (self._file.waiting_bytes if error else 0)
                self._error = error
                self._answered = asked
                self._changed.notify_all()
            if closing and not self._queue:
                self._file.close()
                return

    def _store(self, *, durably: bool) -> files.FileError | None:
        """Write what waits; on a failure free reserved space and write it again. The failure that stands, or None."""
        durably = durably or self._file.waiting_bytes > COALESCE_BYTES
        for last in (False, True):
            try:
                if durably:
                    self._file.sync()
                else:
                    self._file.flush()
                return None
            except OSError as error:
                failure = files.FileError(error, self._path, "write")
                self.problem = self.problem or str(failure)
                self._file.rewind()
                if last:
                    return failure
                self._reserve.release()
        return None


class JournalReader:
    """Reads a journal, live or finished, in bounded memory; every string that comes out is clean.

    `unknown` counts events of a newer version, which are skipped; `corrupt` counts damaged lines, each of which costs
    itself alone. A journal of a newer schema raises AibenchError (code 2).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = LineTail(path, MAX_LINE_BYTES)
        self.corrupt = 0
        self.unknown = 0

    def poll(self) -> list[AnyEvent]:
        """The next events, at most POLL_BYTES of them a call; an empty list means that there are no more right now.

        An unfinished last line is waited for, and so is a journal that is not there yet.
        """
        events: list[AnyEvent] = []
        taken = 0
        for line in self._tail.lines():
            event = self._decode(line)
            if event is not None:
                events.append(event)
            taken += len(line or b"")
            if taken > POLL_BYTES and events:
                break
        return events

    def __iter__(self) -> Iterator[AnyEvent]:
        """All events up to the end of the file as it is now; a last line without its newline counts if it is whole."""
        for line in self._tail.lines():
            if (event := self._decode(line)) is not None:
                yield event
        rest = self._tail.torn()
        if rest != b"" and (event := self._decode(rest)) is not None:
            yield event

    def close(self) -> None:
        """Let go of the file."""
        self._tail.close()

    def _decode(self, line: bytes | None) -> AnyEvent | None:
        """The event of a line; a line that was too long to be read comes as None and is corrupt."""
        try:
            if line is None:
                raise ValueError
            tag = _tag_decoder.decode(line)
            if tag.event not in _KNOWN:
                self.unknown += 1
                return None
            self._check_schema(tag)
            event = _decoder.decode(line)
            return event if _PLAIN.fullmatch(line) else _cleaned(event)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            self.corrupt += 1
            return None

    def _check_schema(self, tag: _Tag) -> None:
        if tag.event == "run_started" and isinstance(tag.schema, int) and tag.schema > SCHEMA:
            raise AibenchError(
                f"journal schema {tag.schema} of {self._path} is newer than this program's {SCHEMA}",
                "use the newer aibench-tui",
            )


def _cleaned(event: AnyEvent) -> AnyEvent:
    cleaned: AnyEvent = msgspec.convert(clean_tree(msgspec.to_builtins(event), MAX_LINE_BYTES), type(event))
    return cleaned


def read_events(path: Path) -> Iterator[AnyEvent]:
    """All events of the journal `path`, streaming.

    Raises AibenchError (code 2) where it is not there, cannot be read or is of a newer schema.
    """
    reader = JournalReader(path)
    try:
        with files.explained(path, "read", code=exits.USAGE):
            path.stat()
        yield from reader
    finally:
        reader.close()
