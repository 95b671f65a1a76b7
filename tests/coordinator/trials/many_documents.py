#!/usr/bin/env python3
"""A thousand documents of 0 to 200,000 tokens, some bad, over three gangs of 1, 2 and 3 ranks: every id once, in order, the
bytes of embedded mode, one error row for each bad document.
usage: many_documents.py FENWICK [--documents 1000] [--longest 200000] [--folder DIR]"""

import argparse
import time

from trial import Trial, fail, main, require_no_process_left, require_same, say, scratch, write_documents


def body():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fenwick")
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--longest", type=int, default=200_000)
    parser.add_argument("--folder")
    options = parser.parse_args()
    folder, clean = scratch(options.folder)
    trial = Trial(options.fenwick, folder)
    try:
        path, bad = write_documents(folder, options.documents, options.longest, seed=1)
        begun = time.time()
        trial.embedded(folder / "want", path)
        say(f"embedded: {time.time() - begun:.1f} s")
        trial.start_coordinator()
        gangs = [trial.add_gang(f"gang{ranks}", ranks) for ranks in (1, 2, 3)]
        trial.wait_for_gangs()
        begun = time.time()
        job = trial.submit(path)
        state = trial.wait(job, seconds=3600)
        say(f"service: {time.time() - begun:.1f} s, {state['request_counts']}, {state['tokens']} tokens")
        if state["state"] != "completed":
            fail(f"the job is {state['state']}")
        trial.fetch(job, folder / "got")
        require_same(folder / "want", folder / "got", options.documents, bad)
        used = {entry["gang"] for entry in trial.logs(job) if "works on tokens" in entry["text"]}
        if used != {gang.name for gang in gangs}:
            fail(f"only these gangs worked: {used}")
        if state["usage"]["computed_tokens"] != state["usage"]["scored_tokens"]:
            fail(f"something was computed twice: {state['usage']}")
        if trial.stop_coordinator() != 0:
            fail("the coordinator did not end with 0 although nothing is left")
    finally:
        trial.stop()
    require_no_process_left(trial)
    say(f"{options.documents} documents, {bad} of them bad: the bytes of embedded mode")
    clean()


main(body)
