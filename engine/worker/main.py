"""The worker of one trial, run by path: `PYTHON stage/engine/worker/main.py SPEC`, where SPEC is a file or "-".

Run folder, interpreter and image decide what is importable; only our own packages come from the stage beside us.
"""

from __future__ import annotations

import os
import sys


def _put_stage_first() -> None:
    """Make `engine` and `scenarios` those beside this file, whatever PYTHONPATH has, and hide this file's own folder.

    Python puts a script's folder first on sys.path, where our modules would pass for top-level ones.
    """
    own = os.path.dirname(os.path.realpath(__file__))
    stage = os.path.dirname(os.path.dirname(own))
    others = [path for path in sys.path if os.path.realpath(path) not in (own, stage)]
    sys.path[:] = [stage, *others]


def main() -> int:
    """Run the trial; returns 0 after a result, 1 after a failure, 2 for wrong arguments."""
    if len(sys.argv) != 2:
        print("usage: main.py SPEC   (SPEC is a file, or - for the first line of stdin)", file=sys.stderr)
        return 2
    _put_stage_first()
    from engine.worker.protocol import take_pipes
    from engine.worker.trial import run_trial

    reading, writing = take_pipes()
    return run_trial(sys.argv[1], reading, writing)


if __name__ == "__main__":
    sys.exit(main())
