#!/usr/bin/env python3
"""The status page in headless Chromium, with a coordinator, two gangs and a job behind it: what it shows while a document is
under way, after a rank was killed, and where clients have tokens. `--screenshot FOLDER` keeps pictures to look at."""

import argparse
import html
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trials"))
from trial import Trial, fail, say  # noqa: E402


class Browser:
    def __init__(self, folder, pictures):
        self.program = shutil.which("chromium") or fail("chromium is not installed (ops/test installs it)")
        self.folder, self.pictures = folder, pictures

    def run(self, url, *options):
        done = subprocess.run(
            [self.program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             f"--user-data-dir={self.folder}/browser", "--window-size=1400,1150", "--virtual-time-budget=3000", *options, url],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120)
        if done.returncode != 0:
            fail(f"chromium ended with {done.returncode}")
        return done.stdout

    def text(self, url, name):
        """The page as it stands after its scripts have run; a picture of it beside, when asked for."""
        if self.pictures:
            self.run(url, f"--screenshot={Path(self.pictures).resolve() / (name + '.png')}")
        return self.run(url, "--dump-dom")


def element(dom, identity):
    """The markup of the element of that id."""
    end = {"jobs": "</table>", "documents": "</table>", "curve": "</svg>", "gangs": "</section>"}[identity]
    found = re.search(rf'id="{identity}".*?{end}', dom, re.S)
    return found.group(0) if found else fail(f"the page has no element {identity}")


def check(condition, what):
    if not condition:
        fail(f"status page: {what}")


def words(markup):
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", markup)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fenwick", required=True)
    parser.add_argument("--screenshot", metavar="FOLDER")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fenwick-page-") as folder:
        browser = Browser(folder, arguments.screenshot)
        trial = Trial(arguments.fenwick, folder)
        try:
            trial.start_coordinator()
            url = f"http://127.0.0.1:{trial.http}/"
            empty = browser.text(url, "empty")
            check("No job yet" in words(element(empty, "jobs")), "expected a word on where jobs come from")
            check("No gang has come yet" in words(empty), "expected a word on where gangs come from")

            book = Path(folder) / "a long book.txt"
            book.write_bytes(b"The quick brown fox jumps over the lazy dog. " * 400_000)
            rows = Path(folder) / "rows.jsonl"
            hostile = "<img src=x onerror=document.title='owned'>"
            rows.write_text('{"custom_id": "%s", "text": 7}\n{"custom_id": "short", "text": "short"}\n' % hostile)
            job = trial.submit(rows, book, options=("--name", hostile))
            trial.add_gang("first", 2)
            trial.add_gang("second", 1)
            end = time.time() + 90
            while True:
                documents = {d["custom_id"]: d for d in trial.ask("status", job, "--documents")["documents"]}
                running = documents.get("a long book", {})
                if running.get("state") == "running" and running["position"] > 200_000 and running["tokens_per_second"]:
                    break
                if time.time() > end:
                    fail(f"the document is not under way after 90 s: {documents}")
                time.sleep(0.3)
            dom = browser.text(url + "#" + job, "running")
            check("<title>Fenwick</title>" in dom and "<img" not in dom, "a document's name became markup")
            check(hostile in words(element(dom, "jobs")), "the job's name is not shown as it is")
            jobs = words(element(dom, "jobs"))
            check(job in jobs and "in progress" in jobs, f"the job is not listed: {jobs}")
            listed = words(element(dom, "documents"))
            for what in ("a long book", "running", "short", "completed", "failed", "expected"):
                check(what in listed, f"expected {what!r} among the documents: {listed}")
            check(re.search(r"\d %", listed) and re.search(r"\d+ s|:\d\d (min|h)", listed), f"no progress or time left: {listed}")
            points = re.search(r'<polyline[^>]*points="([^"]*)"', element(dom, "curve"))
            check(points and len(points.group(1).split()) > 10, "the loss is not plotted")
            check("tokens" in words(element(dom, "curve")), "the plot's axis has no unit")
            gangs = words(element(dom, "gangs"))
            for what in ("first", "second", "connected", "busy"):
                check(what in gangs, f"expected {what!r} among the gangs: {gangs}")

            first = trial.gangs[0]
            first.stopping = True  # it is not to come back
            subprocess.run(["kill", "-KILL", str(first.rank_pids()[-1])], check=True)
            end = time.time() + 10
            while "lost" not in (gangs := words(element(browser.text(url, "rank-lost"), "gangs"))):
                check(time.time() < end, f"a killed rank is not shown as lost within 10 s: {gangs}")
            check(re.search(r"\b1 lost", gangs), f"the lost rank is not named by its number: {gangs}")
            say("status page: empty, running and with a lost rank, as it should be")
        finally:
            trial.stop()


if __name__ == "__main__":
    main()
