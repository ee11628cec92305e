"""The page: one file with everything inside, and its tables."""

from __future__ import annotations

import json
import re
import tracemalloc

import pandas as pd
import pytest

import browser
import manypoints
import quickstart
from benchmarks import collect as benchmark
from collectedsweep import collected
from hpcsweep.analysis import drawing
from hpcsweep.analysis.page import figures, write
from hpcsweep.errors import UsageError
from hpcsweep.store.collect import collector
from hpcsweep.store.folders import SweepDir

WIDTHS = (360, 800, 1400)


@pytest.fixture(scope="module")
def chromium():
    """Start one browser for all."""
    with browser.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return the page of the quickstart sweep."""
    folder = tmp_path_factory.mktemp("quickstart")
    path = folder / "page.html"
    assert write.write_page(quickstart.collected(folder), path) == []
    return path


@pytest.fixture(scope="module", params=[5, pytest.param(50, marks=pytest.mark.slow)])
def sizes(request):
    """Return how many sizes the page of many points has, of 2 networks, 5 algorithms, 2 GPUs."""
    return request.param


@pytest.fixture(scope="module")
def many(tmp_path_factory, sizes):
    """Return the page of many points on two GPUs."""
    folder = tmp_path_factory.mktemp("many")
    path = folder / "page.html"
    text = manypoints.SWEEP.replace("num: 50", f"num: {sizes}")
    assert write.write_page(manypoints.collected(folder, text), path) == []
    return path


@pytest.fixture(scope="module")
def small(chromium, measured):
    """Return the page of the quickstart sweep, opened."""
    return browser.opened(chromium, measured, viewport={"width": 1400, "height": 900})


@pytest.fixture(scope="module")
def large(chromium, many):
    """Return the page of many points, opened."""
    return browser.opened(chromium, many, viewport={"width": 1400, "height": 900})


def marks(page, figure):
    """Return how many marks of points a figure has."""
    return page.locator(f"#{figure} path.mark").count()


def choose(page, axis, value):
    """Choose in a control; the figures follow at once."""
    page.select_option(f"#f-{axis}", value)


def check_figures(page, expected):
    """Check that nothing complained, and that each expected figure has marks of its data."""
    assert page.said == []
    figures = page.evaluate("[...document.querySelectorAll('.chart')].map((one) => one.id)")
    assert len(figures) == expected
    count = "#{} .mark"
    empty = [one for one in figures if page.locator(count.format(one)).count() < 2]
    assert empty == []


def test_every_figure_is_drawn_and_nothing_complains(small):
    """No console line, no request that failed."""
    check_figures(small, 4)


@pytest.mark.slow
def test_every_figure_of_many_points_is_drawn_and_nothing_complains(large):
    """The same."""
    check_figures(large, 12)


def test_a_command_with_axes_of_numbers_alone_is_drawn(chromium, desk):
    """No axis is left for colours."""
    (desk.folder / "one.py").write_text("import sys\nprint('{\"loss\": %s}' % sys.argv[1])\n")
    desk.spec(
        "workload: command\naxes: {lr: [0.1, 0.2], depth: [1, 2]}\n"
        "run: python one.py {lr} {depth}\nresults: {json: last_line}\n"
    )
    assert desk.submit("--collect").returncode == 0
    assert desk.run("report", "sweep", "--html", "page.html").returncode == 0
    page = browser.opened(chromium, desk.folder / "page.html")
    check_figures(page, 1)
    shown = page.locator("#f-y option").all_inner_texts()
    assert shown == ["loss", "median (ms)"]
    assert "unset" not in page.inner_text("form")
    assert "foreign 4" not in page.inner_text("header")
    filled = page.evaluate(
        "[...document.querySelectorAll('.chart .mark')].map((m) => m.getAttribute('fill'))"
    )
    assert len(filled) == 2
    assert "var(--card)" not in filled


def test_the_page_has_what_a_decision_needs(large):
    """A section for each thing that was measured, with a figure per GPU."""
    sections = large.evaluate("[...document.querySelectorAll('section')].map((one) => one.id)")
    assert sections == [
        "report", "time", "layers", "roofline", "mem_peak_gib", "energy_j",
        "failures", "flags", "machines", "points", "take",
    ]  # fmt: skip
    assert {"figure-time-h100", "figure-time-v100"} <= set(
        large.evaluate("[...document.querySelectorAll('.chart')].map((one) => one.id)")
    )
    assert "out of memory" in large.inner_text("#failures")
    machines = large.locator("#machines tr").all_inner_texts()
    assert "device name\tNVIDIA H100 80GB HBM3\tTesla V100-SXM2-32GB" in machines
    assert "driver version\t550.54\t550.54" in machines
    assert "very_noisy\trelative IQR above 25 %" in large.inner_text("#flags")
    assert "50 timed passes" in large.inner_text("header")
    told = large.locator(".headline").all_inner_texts()
    assert "were not measured" in told[0]
    assert "are flagged" in told[0]
    assert "winograd is fastest in" in told[1]


def test_pages_are_small_and_need_no_network(measured, many):
    """Under 5 MB, of twelve points under 0.6; nothing is loaded from elsewhere."""
    assert measured.stat().st_size < 600_000
    assert many.stat().st_size < 5_000_000
    html = re.sub(r"<script>.*?</script>", "", many.read_text(), flags=re.DOTALL)
    assert re.findall(r"""(?:src|href)=["'](?!#|data:)""", html) == []


def test_controls_filter_figures_and_table(large, sizes):
    """The points of one algorithm, of one GPU; the count above the table says how many."""
    before = marks(large, "figure-time-v100")
    oom = {5: 1, 50: 6}[sizes]  # those above 200
    assert before == 5 * sizes - oom  # one model
    choose(large, "algorithm", "gemm")
    assert marks(large, "figure-time-v100") == sizes
    assert large.inner_text("#shown") == f"{2 * sizes} of {20 * sizes} points."
    choose(large, "gpu", "h100")
    assert large.inner_text("#shown") == f"{sizes} of {20 * sizes} points."
    assert not large.is_visible("#figure-time-v100")
    choose(large, "gpu", "")
    choose(large, "algorithm", "")
    assert marks(large, "figure-time-v100") == before
    large.fill("#search", "out of memory")
    large.fill("#search", "oom")
    assert large.inner_text("#shown") == f"{2 * oom} of {20 * sizes} points."
    large.fill("#search", "")


def test_hovering_a_mark_shows_its_row(small):
    """With its algorithm, size, time and flags."""
    mark = small.locator("#figure-time-cpu path.mark").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    tooltip = small.locator("#tip")
    tooltip.wait_for()
    words = tooltip.inner_text()
    assert all(word in words for word in ("algorithm", "input size", "median (ms)", "very_noisy"))


def test_the_arrow_keys_go_from_mark_to_mark(small):
    """As hovering: the figure has the focus, and each mark shows its row."""
    small.focus("#figure-time-cpu svg")
    words = []
    for _ in range(2):
        small.keyboard.press("ArrowRight")
        words.append(small.inner_text("#tip"))
    assert "median (ms) 275" in words[0]
    assert words[0] != words[1]
    small.keyboard.press("ArrowLeft")
    assert small.inner_text("#tip") == words[0]
    small.keyboard.press("Tab")
    assert not small.is_visible("#tip")


def test_what_a_reader_takes_along_is_there(small):
    """The rows that are shown as CSV; commands, sweep file and citation to copy."""
    small.fill("#search", "implicit_gemm")
    with small.expect_download() as saved:
        small.click("#csv")
    small.fill("#search", "")
    table = pd.read_csv(saved.value.path())
    assert table["algorithm"].tolist() == ["implicit_gemm"] * 3
    assert table["median_ms"].max() > 5000
    taken = small.locator("#take pre").all_text_contents()
    assert "hpcsweep submit sweep.yaml --cluster local" in taken[0]
    assert taken[1].startswith("quickstart: times of convolutional networks, measured 2026-")
    assert "axes:" in taken[2]
    small.click("#take summary >> nth=1")
    small.context.grant_permissions(["clipboard-read", "clipboard-write"])
    small.click("#take button >> nth=1")
    assert small.evaluate("navigator.clipboard.readText()") == taken[1]


def test_memory_has_a_unit_for_people_and_cut_cells_their_text(small):
    """1.22 GiB and not 1314000000; hovering a cell shows all of it."""
    cell = "#points tbody td >> nth={}"
    heads = [head.strip() for head in small.locator("#points th").all_inner_texts()]
    assert 1 < float(small.inner_text(cell.format(heads.index("mem peak (GiB)")))) < 1.3
    assert small.get_attribute(cell.format(0), "title") == "cpu"


def test_a_table_of_any_length_can_be_searched(tmp_path, chromium):
    """It shows the first rows that match, and says so."""
    sizes = list(range(1, 702))
    text = f"name: demo\nworkload: inference\naxes: {{model: [resnet18], input_size: {sizes}}}\n"
    path = tmp_path / "page.html"
    write.write_page(collected(tmp_path, text, lambda _axes: {"median_ms": 2.0}), path)
    page = browser.opened(chromium, path)
    assert page.inner_text("#shown") == "701 of 701 points. The first 500 are here."
    assert page.locator("#points tbody tr").count() == 500
    page.fill("#search", page.evaluate("lines[700].cells.at(-1)"))
    assert page.inner_text("#shown") == "1 of 701 points."
    page.context.close()


def test_the_keyboard_does_what_the_mouse_does(small):
    """Heads of the table are buttons; controls and tables take the focus."""

    def times():
        rows = "[...document.querySelectorAll('table.sortable tbody tr')]"
        cells = small.evaluate(f"{rows}.map((row) => row.cells[{place}].textContent)")
        return [float(text) for text in cells if text]

    heads = "[...document.querySelectorAll('table.sortable th')].map((one) => one.dataset.column)"
    place = small.evaluate(heads).index("median_ms")
    small.focus("th[data-column=median_ms] button")
    small.keyboard.press("Enter")
    assert times() == sorted(times())
    small.keyboard.press("Enter")
    assert times() == sorted(times(), reverse=True)
    assert small.get_attribute("th[data-column=median_ms]", "aria-sort") == "descending"
    small.focus("#f-algorithm")
    small.keyboard.press("ArrowDown")
    assert small.input_value("#f-algorithm") == "auto"
    small.keyboard.press("ArrowUp")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing(small, scheme):
    """Contrast, names, roles and keyboard, as far as a program can tell."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    small.emulate_media(color_scheme=scheme)
    found = axe.run(small).response["violations"]
    small.emulate_media(color_scheme="light")
    assert [(one["id"], one["nodes"][0]["html"][:120]) for one in found] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_a_phone_and_a_desk(small, width):
    """Nothing but tables scrolls sideways, and figures follow the width."""
    small.set_viewport_size({"width": width, "height": 800})
    # a while later, for whoever drags a window does not want a drawing for each of its widths
    small.wait_for_function(
        "[...document.querySelectorAll('.chart svg')].every((one) =>"
        " one.getBoundingClientRect().right <= innerWidth)"
    )
    assert small.evaluate("document.documentElement.scrollWidth") <= width


def test_print_shows_whole_tables_on_white(small):
    """Without the controls' shadow over them, also where the screen is dark."""
    small.emulate_media(media="print", color_scheme="dark")
    style = "getComputedStyle(document.{}).{}"
    assert small.evaluate(style.format("body", "backgroundColor")) == "rgb(255, 255, 255)"
    assert small.evaluate(style.format("querySelector('.wide')", "overflowY")) == "visible"
    shown = "[...document.querySelectorAll('{}')].some((one) => one.checkVisibility())"
    assert small.evaluate(shown.format("#controls select")), "paper says what is chosen"
    assert not small.evaluate(shown.format("input, .hint, .save"))
    small.emulate_media(media="screen", color_scheme="light")


@pytest.mark.slow
def test_a_sweep_whose_x_is_no_quantity_has_a_page(tmp_path, chromium):
    """Algorithms alone vary: they stand on x."""
    text = "name: demo\nworkload: inference\naxes: {model: [resnet18], algorithm: [auto, gemm]}\n"
    path = tmp_path / "page.html"
    times = {"auto": 2.0, "gemm": 3.0}
    write.write_page(
        collected(tmp_path, text, lambda axes: {"median_ms": times[axes["algorithm"]]}), path
    )
    page = browser.opened(chromium, path)
    assert page.said == []
    assert marks(page, "figure-time-cpu") == 2
    page.context.close()


@pytest.mark.slow
def test_phases_of_training_steps_have_a_figure(tmp_path, chromium):
    """Stacked, at the size that is chosen; other axes are filters."""

    def cells(axes):
        return {"median_ms": 3.0 * axes["batch_size"], "phase_forward_ms": 1.0,
                "phase_backward_ms": 2.0}  # fmt: skip

    path = tmp_path / "page.html"
    write.write_page(collected(tmp_path, cells=cells), path)
    page = browser.opened(chromium, path)
    assert page.said == []
    assert page.input_value("#f-num_threads") == "1"
    bars = page.locator("#figure-phases-cpu rect.mark")
    assert bars.count() == 2 * 2  # phases, algorithms
    page.context.close()


@pytest.mark.slow
def test_axe_finds_nothing_in_the_page_of_many_points(large):
    """Two GPUs, failures and flags have parts that the quickstart's page lacks."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    bad = axe.run(large).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:120]) for one in bad] == []


def test_every_mark_has_a_shape_of_its_colour(many):
    """Nobody needs to tell colours apart; pictures have the same."""
    html = many.read_text()
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', html, re.DOTALL)[1])
    colours, shapes = zip(*specs["styles"].values(), strict=True)
    assert len(specs["styles"]) == len({*colours}) == len({*shapes}) == 5
    assert specs["styles"]["auto"] == list(drawing.styles(["x", "auto"])["auto"])
    drawn = {*re.findall(r'[ {]"?(\S)"?: "M', html)}
    assert drawn == {*drawing.MARKERS}


def test_the_address_keeps_what_is_shown(small, chromium, measured):
    """Filters, switches, the legend and the search; a link opens the same."""
    small.check("#f-logx")
    small.select_option("#f-y", "speedup")
    small.click("#legend button >> nth=1")
    link = small.evaluate("location.href")
    other = browser.opened(chromium, measured, viewport={"width": 900, "height": 800})
    other.goto(link)
    other.wait_for_function("document.querySelector('#f-logx').checked")
    assert other.input_value("#f-y") == "speedup"
    assert other.get_attribute("#legend button >> nth=1", "aria-pressed") == "false"
    assert "speed-up over auto" in other.inner_html("#figure-time-cpu")
    assert other.inner_text("#shown") == small.inner_text("#shown")
    small.uncheck("#f-logx")
    small.select_option("#f-y", "median_ms")
    small.click("#legend button >> nth=1")
    assert small.evaluate("location.hash") == ""
    other.context.close()


def test_unreliable_points_can_be_left_out(small):
    """In figures and in the table; points that failed stay in it."""
    before = small.inner_text("#shown")
    small.check("#f-reliable")
    kept = small.locator("#points tbody tr:visible").all_inner_texts()
    assert (marks(small, "figure-time-cpu"), before) == (0, "12 of 12 points.")
    assert small.inner_text("#figure-time-cpu") == "Nothing to draw with these filters."
    assert not [row for row in kept if "noisy" in row]
    assert any("timeout" in row for row in kept)
    small.uncheck("#f-reliable")


def test_an_axis_can_be_logarithmic(small):
    """The labels are then powers of ten, or few more."""
    labels = "[...document.querySelectorAll('#figure-time-cpu text')].map((one) => one.textContent)"
    before = small.evaluate(labels)
    small.check("#f-logy")
    after = small.evaluate(labels)
    small.uncheck("#f-logy")
    assert ("1000" in after, before != after) == (True, True)


def test_figures_that_say_nothing_are_left_out(tmp_path):
    """One point of one algorithm: its table has it all."""
    text = "name: demo\nworkload: inference\naxes: {model: [resnet18], algorithm: [gemm]}\n"
    path = tmp_path / "page.html"
    write.write_page(collected(tmp_path, text, lambda _axes: {"median_ms": 2.0}), path)
    assert '<div class="chart"' not in path.read_text()
    assert "A pass takes 2 ms." in path.read_text()


def test_more_points_than_a_page_holds_are_thinned_and_it_says_so(tmp_path, monkeypatch):
    """Evenly over x; every row stays in overall.csv."""
    monkeypatch.setattr(figures, "MOST_POINTS", 10)
    path = tmp_path / "page.html"
    notes = write.write_page(collected(tmp_path), path)
    assert notes == ["6 points of 18 are shown, evenly spread over batch_size"]
    assert notes[0] in path.read_text()


def test_the_table_of_very_many_points_is_thinned_and_says_where_the_others_are(
    tmp_path, monkeypatch
):
    """A browser reads and sorts it whole."""
    monkeypatch.setattr(write, "_MOST_LINES", 6)
    path = tmp_path / "page.html"
    (note,) = write.write_page(collected(tmp_path), path)
    assert note == "The table of points has 6 of 18, overall.csv has all"
    text = path.read_text()
    assert note in text
    rows = re.search(r'<script type="application/json" id="rows">(.*?)</script>', text)
    assert len(json.loads(rows[1])) == 6


def test_a_point_that_is_not_drawn_costs_a_page_few_bytes(tmp_path, monkeypatch):
    """A login node has memory for 200,000 points; all their cells as objects are 15 kB each."""
    monkeypatch.setattr(figures, "MOST_POINTS", 50)
    monkeypatch.setattr(write, "_MOST_LINES", 50)
    peaks = []
    for number in (100, 1100):
        folder = SweepDir(tmp_path / f"of_{number}")
        benchmark.make(folder, number // 50, number, 1)
        collector.collect(folder)
        tracemalloc.start()
        write.write_page(folder, tmp_path / f"{number}.html")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 1000 < 3000, peaks


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    """With the folder that is not there."""
    with pytest.raises(UsageError, match="no-folder"):
        write.write_page(quickstart.collected(tmp_path), tmp_path / "no-folder" / "page.html")


def test_names_cannot_break_out_of_the_page(tmp_path):
    """A flag or a reason may hold anything."""
    run = quickstart.collected(tmp_path)
    for table in run.merged()[:2]:
        text = table.read_text().replace("no result within 600 s", "</script><script>alert(1)")
        table.write_text(text.replace(",cpu,", ",</script>,"))
    path = tmp_path / "page.html"
    write.write_page(run, path)
    html = path.read_text()
    assert "<script>alert(1)" not in html
    assert html.count("</script>") == 5
    data = re.search(r'id="data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(data[1])["points"][0]["gpu"] == "</script>"


def test_failures_are_counted_with_their_reason(large, sizes):
    """As in the report; a cell without a value is empty, and failed points stand in the table."""
    (row,) = large.locator("#failures tbody tr").all_inner_texts()
    status, reason, points, _first = row.split("\t")
    assert (status, points) == ("oom", str({5: 4, 50: 24}[sizes]))
    assert "out of memory" in reason
    large.fill("#search", "oom")
    cells = large.locator("#points tbody tr >> nth=0").inner_text().split("\t")
    assert cells[cells.index("oom") + 1] == ""
    large.fill("#search", "")
