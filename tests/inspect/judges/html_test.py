#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of a snapshot in Debian's chromium, with the network off: no message on the console, counts equal those of the
pickle, and hover, zoom, brush, slider, search, filters, keys and the comparison do what they say.

usage: html_test.py SNAPSHOT_FILES [--times PAGE]      --times: opens a page and prints how long that, hover and zoom take

Skipped, with a word, where chromium, its driver or python3-selenium is not installed.
"""

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

DEBIAN_PYTHON = "/usr/bin/python3"  # has Debian's packages
if os.path.realpath(sys.executable) != os.path.realpath(DEBIAN_PYTHON) and os.path.exists(DEBIAN_PYTHON):
    os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON] + sys.argv)

try:
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
    MISSING = None
except ImportError:
    MISSING = "python3-selenium is not installed"
for program in "chromium", "chromedriver":
    if MISSING is None and shutil.which(program) is None:
        MISSING = f"{program} is not installed"

PROGRAM = None


def browser(folder):
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1200", "--disable-dev-shm-usage",
                 f"--user-data-dir={folder}/profile", "--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium")
    os.environ["HOME"] = folder
    for tries_left in range(9, -1, -1):
        # Selenium looks for a free port first, which another program may take before the driver does; then the driver ends.
        service = webdriver.chrome.service.Service(shutil.which("chromedriver"))
        try:
            return webdriver.Chrome(service=service, options=options)
        except WebDriverException as error:
            if "unexpectedly exited" not in error.msg or tries_left == 0:
                raise


def opened(driver, path):
    driver.get("file://" + os.path.abspath(path))
    WebDriverWait(driver, 60).until(lambda d: value(d, "ready") or value(d, "failed"))
    assert value(driver, "failed") is None, value(driver, "failed")


def value(driver, name):
    return driver.execute_script(f"return document.body.dataset.{name}")


@unittest.skipIf(MISSING, MISSING)
class Page(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.driver = browser(cls.folder)
        for format in "html", "pickle":
            subprocess.run([PROGRAM, "small", format, f"{cls.folder}/small.{format}"], check=True, stderr=subprocess.DEVNULL)
        opened(cls.driver, f"{cls.folder}/small.html")
        cls.page = cls.driver.find_element(By.TAG_NAME, "body")

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()
        shutil.rmtree(cls.folder, ignore_errors=True)

    def value(self, name):
        return value(self.driver, name)

    def number(self, name):
        return float(self.value(name))

    def setUp(self):
        self.page.send_keys("0")

    def tearDown(self):
        self.assertEqual(self.driver.get_log("browser"), [])

    def text(self, id):
        return self.driver.find_element(By.ID, id).text

    def test_counts_are_those_of_the_pickle(self):
        with open(f"{self.folder}/small.pickle", "rb") as file:
            snapshot = pickle.load(file)
        segments = snapshot["segments"]
        traces = snapshot["device_traces"] + [snapshot["host_traces"]]
        flat = [event for trace in traces for event in (trace if not trace or isinstance(trace[0], dict) else sum(trace, []))]
        self.assertEqual(int(self.value("events")), len(flat))
        device_blocks = sum(len(segment["blocks"]) for segment in segments)
        self.assertGreaterEqual(int(self.value("blocks")), device_blocks)
        self.assertIn(f"{self.value('blocks')} blocks", self.text("counts"))

    def test_hover_names_a_block(self):
        bands = self.driver.find_element(By.ID, "bands")
        # in the middle of a block, since borders and rounding move the pointer by a pixel
        pixel = self.driver.execute_script("""draw();
            const w = bandWidth, around = [-w, w, -3, 3];
            return bandIds.findIndex((id, p) => id >= 0 && around.every(step => bandIds[p + step] === id));""")
        width = self.driver.execute_script("return bandWidth")
        self.assertGreaterEqual(pixel, 0)
        x, y = pixel % width + 0.5, pixel // width + 0.5
        scale = bands.size["width"] / width
        move = ActionChains(self.driver)
        top = self.driver.execute_script("return document.getElementById('bands').getBoundingClientRect().y % 1")
        left, up = x * scale - bands.size["width"] / 2 + 1, y - bands.size["height"] / 2 + 1 + top
        move.move_to_element_with_offset(bands, left, up).perform()
        self.assertEqual(self.value("hover"), str(self.driver.execute_script(f"return bandIds[{pixel}]")))
        self.assertIn("asked", self.text("detail"))

    def test_zoom_and_keys(self):
        whole = self.number("to") - self.number("from")
        self.page.send_keys("+")
        self.assertAlmostEqual(self.number("to") - self.number("from"), whole / 2, delta=whole / 1000)
        before = self.number("from")
        self.page.send_keys(Keys.ARROW_RIGHT)
        self.assertGreater(self.number("from"), before)
        self.page.send_keys(Keys.ARROW_LEFT)
        self.assertAlmostEqual(self.number("from"), before, delta=whole / 1000)
        self.page.send_keys("0")
        self.assertAlmostEqual(self.number("to") - self.number("from"), whole, delta=whole / 1000)

    def test_brush_takes_a_range(self):
        whole = self.number("to") - self.number("from")
        overview = self.driver.find_element(By.ID, "overview")
        quarter = overview.size["width"] / 4
        drag = ActionChains(self.driver).move_to_element_with_offset(overview, -quarter, 0).click_and_hold()
        drag.move_by_offset(quarter, 0).release().perform()
        self.assertAlmostEqual(self.number("to") - self.number("from"), whole / 4, delta=whole / 50)

    def test_slider_moves_the_map(self):
        title = self.text("maptitle")
        self.page.send_keys(",")
        self.page.send_keys(",")
        self.assertNotEqual(self.text("maptitle"), title)
        self.driver.find_element(By.ID, "slider").send_keys(Keys.HOME)
        self.assertAlmostEqual(self.number("moment"), self.driver.execute_script("return data.from"), delta=1)

    def test_search_and_filters(self):
        everything = int(self.value("shown"))
        self.assertGreater(everything, 0)
        field = self.driver.find_element(By.ID, "search")
        field.send_keys("no such function at all")
        self.assertEqual(int(self.value("shown")), 0)
        field.clear()
        field.send_keys(Keys.SPACE, Keys.BACKSPACE)
        self.assertEqual(int(self.value("shown")), everything)
        name = self.driver.execute_script("return data.texts[data.frames[0][0]]")
        field.send_keys(name)
        self.assertTrue(0 < int(self.value("shown")) <= everything)
        field.clear()
        field.send_keys(Keys.SPACE, Keys.BACKSPACE)
        least = self.driver.find_element(By.ID, "least")
        least.clear()
        least.send_keys("999999999999999")
        self.assertEqual(int(self.value("shown")), 0)
        least.clear()
        least.send_keys("0")
        self.assertEqual(int(self.value("shown")), everything)
        field.send_keys(Keys.ESCAPE)

    def test_stacks_are_named_by_who_called_lade(self):
        rows = [row.text for row in self.driver.find_elements(By.CSS_SELECTOR, "#top tbody tr")]
        self.assertGreater(len(rows), 0)
        self.assertEqual([row for row in rows if "ladei_" in row], [])

    def select(self, id, value):
        self.driver.find_element(By.CSS_SELECTOR, f"#{id} option[value='{value}']").click()

    def test_figures_and_peak(self):
        """The peak that the page names is the largest sum of the events, and its stacks add up to it."""
        figures = self.driver.execute_script("return LINES.map((_, l) => [Math.max(...totals[l]), totals[l][peaks[l]]])")
        self.assertEqual([peak for peak, _ in figures], [shown for _, shown in figures])
        self.page.send_keys("p")
        sums, most = self.driver.execute_script(
            "return [[...inUse(data, null, view.moment).values()].reduce((s, r) => s + r[0], 0), totals[2][peaks[2]]]")
        self.assertEqual(int(self.value("topBytes")), self.driver.execute_script("return [...inUse(data, shown, view.moment).values()]"
                                                                                ".reduce((s, r) => s + r[0], 0)"))
        self.assertGreater(most, 0)
        self.assertGreater(sums, 0)
        self.assertIn(" at ", self.text("toptitle"))
        self.driver.execute_script("momentSet(data.to)")

    def test_axis_of_events(self):
        order = self.driver.execute_script("return [data.events.rows, data.times[5], data.from, data.to]")
        self.select("axis", "events")
        self.assertEqual(self.driver.execute_script("return [data.from, data.to, data.events.time[5]]"), [0, order[0] - 1, 5])
        self.assertGreater(int(self.value("ticks")), 2)
        self.assertIn("event", self.text("maptitle"))
        self.select("axis", "time")
        self.assertEqual(self.driver.execute_script("return [data.events.time[5], data.from, data.to]"), order[1:])

    def test_older_blocks_are_pale(self):
        pale, plain = self.driver.execute_script("""
            const b = data.blocks, pick = old => b.start.findIndex((s, i) => (s === -Infinity) === old && b.stack[i] !== NONE);
            return [pick(true), pick(false)].map(i => i < 0 ? null : colourOf(i) % 2)""")
        self.assertEqual((pale, plain), (1, 0))

    def test_phone_and_dark(self):
        metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        light = self.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        try:
            self.assertLessEqual(self.driver.execute_script("return document.documentElement.scrollWidth"), 390)
            self.assertNotEqual(self.driver.execute_script("return getComputedStyle(document.body).backgroundColor"), light)
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_ranges_of_many_events(self):
        """The least and most of a line between two events, which are found by steps, are those of all its totals there."""
        subprocess.run([PROGRAM, "long", "html", f"{self.folder}/long.html"], check=True, stderr=subprocess.DEVNULL)
        opened(self.driver, f"{self.folder}/long.html")
        count, wrong = self.driver.execute_script("""
            const n = totals[0].length, wrong = [];
            for (const [first, last] of [[0, n - 1], [0, 0], [1023, 1024], [1024, 2047], [1, n - 2], [1024, 3072], [2000, 2001], [100, 3500]])
              totals.forEach((line, l) => {
                const part = line.slice(first, last + 1), [least, most] = rangeOf(l, first, last);
                if (least !== Math.min(...part) || most !== Math.max(...part)) wrong.push([l, first, last, least, most]);
              });
            return [n, wrong]""")
        self.assertGreater(count, 3500)
        self.assertEqual(wrong, [])
        opened(self.driver, f"{self.folder}/small.html")
        type(self).page = self.driver.find_element(By.TAG_NAME, "body")

    def test_data_in_pieces(self):
        """Of a large snapshot the data is in several elements."""
        with open(f"{self.folder}/small.html", encoding="utf-8") as file:
            page = file.read()
        begin = page.index(":", page.index('id="data">')) + 1
        cut = begin + (page.index("</script>", begin) - begin) // 8 * 4
        with open(f"{self.folder}/pieces.html", "w", encoding="utf-8") as file:
            file.write(page[:cut] + '</script>\n<script type="text/plain">' + page[cut:])
        counts = [self.value(name) for name in ("events", "blocks", "topBytes")]
        opened(self.driver, f"{self.folder}/pieces.html")
        self.assertEqual([self.value(name) for name in ("events", "blocks", "topBytes")], counts)
        opened(self.driver, f"{self.folder}/small.html")
        type(self).page = self.driver.find_element(By.TAG_NAME, "body")

    def test_names_are_text(self):
        """A name with a tag in it is shown, and makes no element (HZ11)."""
        self.assertEqual(self.driver.find_elements(By.CSS_SELECTOR, "main script, main img, main b"), [])


def times(path):
    with tempfile.TemporaryDirectory() as folder:
        driver = browser(folder)
        start = time.monotonic()
        opened(driver, path)
        for step in "filter()", "totalsBuild()", "topDraw()", "mapDraw()", "coloursBuild()", "linesDraw($('chart'), view.from, view.to, true)", "bandsDraw()":
            print(step, driver.execute_script(f"const s = performance.now(); {step}; return performance.now() - s"))
        print(f"open {time.monotonic() - start:.2f} s, of which the page {int(value(driver, 'ready'))} ms")
        script = """const times = [];
            for (let i = 0; i < 20; i++) { const s = performance.now(); %s; times.push(performance.now() - s); }
            times.sort((a, b) => a - b); return [times[10], times[19]];"""
        zoom = "rangeSet(data.from + i, data.to - (data.to - data.from) * i / 25); draw()"
        hover = ("const c = document.getElementById('bands'); hover(c, {offsetX: 40 * i + 5, offsetY: 15 * i + 5});"
                 "hover(document.getElementById('chart'), {offsetX: 40 * i + 5, offsetY: 50})")
        for name, action in ("zoom", zoom), ("hover", hover), ("map", "mapDraw()"), ("filter", "changed()"):
            print("%s: median %.1f ms, worst %.1f ms" % ((name,) + tuple(driver.execute_script(script % action))))
        print("console:", driver.get_log("browser"))
        driver.save_screenshot(path + ".png")
        driver.quit()


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    if sys.argv[1:2] == ["--times"]:
        times(sys.argv[2])
    else:
        unittest.main()
