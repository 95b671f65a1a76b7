#!/usr/bin/env python3
"""Submits documents, waits, reads the results, and says which documents the model finds most surprising.

    score_pipeline.py --model NAME [--server HOST:PORT] [--key KEY] [--output FOLDER] DOCUMENT...

Run it again with the same --key after an interruption: it finds its job and goes on. Exit code 3: some documents failed.
"""

import argparse
import sys

from fenwick_client import Client, JobState, ServiceError


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:7710", metavar="HOST:PORT")
    parser.add_argument("--model", required=True)
    parser.add_argument("--key", help="idempotency key: the same key is the same job")
    parser.add_argument("--output", help="folder for all result files")
    parser.add_argument("--tls-ca")
    parser.add_argument("documents", nargs="+", metavar="DOCUMENT")
    return parser.parse_args()


def show(job):
    counts = job.requestCounts
    print(f"{job.id}: {JobState._VALUES_TO_NAMES[job.state].lower()}, {counts.completed + counts.failed} of {counts.total} "
          f"documents, {job.tokensDone} of {job.tokens} tokens", file=sys.stderr)


def main():
    arguments = parse_arguments()
    host, _, port = arguments.server.rpartition(":")
    with Client(host, int(port), tls_ca=arguments.tls_ca) as client:
        try:
            job = client.submit(arguments.model, arguments.documents, key=arguments.key, name="score_pipeline")
        except ServiceError as error:
            sys.exit(f"score_pipeline.py: {error.message}")
        job = client.wait(job.id, on_change=show)
        if job.state == JobState.FAILED:
            sys.exit(f"score_pipeline.py: {job.errorMessage}")
        rows = client.results(job.id)
        for row in sorted(rows, key=lambda row: row["nll_mean"] or 0, reverse=True):
            mean = "-" if row["nll_mean"] is None else f"{row['nll_mean']:.4f}"
            print(f"{row['custom_id']}\t{row['tokens']} tokens\t{mean} nats per token")
        errors = client.errors(job.id)
        for row in errors:
            print(f"{row['custom_id']}\tfailed: {row['code']}: {row['message']}")
        if arguments.output:
            client.download(job.id, arguments.output)
    return 3 if errors or job.state != JobState.COMPLETED else 0


if __name__ == "__main__":
    sys.exit(main())
