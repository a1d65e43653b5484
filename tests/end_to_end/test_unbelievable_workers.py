"""Lines that carry the trial's token and still cannot be true fail their trial; the run goes on."""

from __future__ import annotations

from tests.program import Program, write_plan

MOST_JOURNAL_BYTES = 1024**2


def test_lies_fail_their_trials_and_the_run_goes_on(hostile: Program) -> None:
    plan = write_plan(hostile, "huge clock", "flood of lines", trial_timeout_s=60)
    code, document, err = hostile.run_json("--plan", str(plan))
    assert code == 1, err
    clock, flood, good = document["trials"]
    assert (clock["outcome"], flood["outcome"], good["outcome"]) == ("failed", "failed", "completed")
    assert clock["reason"].startswith("protocol: a line of 1.7e+308 s after the trial's begin")
    assert flood["reason"] == "protocol: a line of rank 1 in a trial of one worker"
    (journal,) = hostile.sessions.glob("*/journal.jsonl")
    assert journal.stat().st_size < MOST_JOURNAL_BYTES
