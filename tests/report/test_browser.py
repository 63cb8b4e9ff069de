"""The page in a real browser: headless Chromium."""

import base64
import re
import shutil

import pytest

from oelm.report.figures.plot import Plot
from oelm.report.write import write_content
from oelm.text.messages import load_messages

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
webdriver = pytest.importorskip("selenium.webdriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not installed"),
]

ROWS = "return [...document.querySelector('#results table').tBodies[0].rows]"
CONTRAST = """
const linear = (v) => v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = (color) => {
  const [r, g, b] = color.match(/[\\d.]+/g).map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = light(getComputedStyle(document.body).backgroundColor);
const found = [];
for (const one of document.querySelectorAll("p, td, th button, h1, h2, h3, figcaption, .badge, a, .drawing text")) {
  if (!one.getClientRects().length) continue;
  const style = getComputedStyle(one);
  const ink = light(one.closest(".drawing") ? style.fill : style.color);
  const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  if (ratio < 4.5) found.push([one.tagName, one.textContent.slice(0, 40), ratio]);
}
return found;
"""


@pytest.fixture(scope="module")
def url(made, tmp_path_factory):
    out = tmp_path_factory.mktemp("page")
    (path,) = write_content(made.content, made.folder, formats=["html"], lang="en", out=out)
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, url):
    """The page, wide and light, in English."""
    looks(browser, width=1400)
    browser.get(url)
    browser.get_log("browser")
    yield browser
    assert [one for one in browser.get_log("browser") if one["level"] == "SEVERE"] == []


def looks(browser, *, width, height=900, scheme="light"):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def click(browser, selector):
    browser.execute_script("arguments[0].click()", browser.find_element("css selector", selector))


def scroll_to(browser, element):
    """Returns when the page has heard of the scrolling, which hides a tip and is told two frames later."""
    browser.execute_async_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'});"
        "requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(arguments[1])))",
        element,
    )


def test_it_opens_without_a_complaint(browser, url, made):
    looks(browser, width=1400)
    browser.get(url)
    assert browser.get_log("browser") == []
    assert browser.title == "bert-sst2-fair"
    drawn = "return [...document.querySelectorAll('.drawing svg')].map(drawn => drawn.closest('figure').id)"
    assert browser.execute_script(drawn) == [
        f"figure-{block.name}"
        for section in made.content.sections
        for block in section.blocks
        if isinstance(block, Plot)
    ]


def test_hostile_words_do_not_run(opened, hostile):
    assert opened.execute_script("return window.hacked") is None
    assert hostile in opened.find_element("id", "change").text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_first_screen_has_question_verdict_and_what_would_change_it(opened, made, lang):
    """On a laptop, without scrolling."""
    looks(opened, width=1280, height=800)
    if lang == "zh":
        click(opened, "#language")
    bottoms = (
        "return [...document.querySelectorAll('#question p, #verdict tbody tr, #change h2, #change li')]"
        ".map(one => one.getBoundingClientRect().bottom)"
    )
    found = opened.execute_script(bottoms)
    assert len(found) == 2 + len(made.results.hypotheses) + len(made.results.comparisons) + 1 + 3
    assert max(found) <= 800


def test_columns_sort_both_ways(opened):
    title = "#results table thead th:nth-child(2)"
    values = f"{ROWS}.map(r => Number(r.cells[1].dataset.sort))"
    before = opened.execute_script(values)
    click(opened, f"{title} button")
    assert opened.execute_script(values) == sorted(before)
    assert opened.find_element("css selector", title).get_attribute("aria-sort") == "ascending"
    button = opened.find_element("css selector", f"{title} button")
    opened.execute_script("arguments[0].focus()", button)
    button.send_keys("\ue007")  # Enter: the keyboard sorts too
    assert opened.execute_script(values) == sorted(before, reverse=True)
    assert opened.find_element("css selector", title).get_attribute("aria-sort") == "descending"


def test_cells_without_a_number_sort_to_the_end(opened):
    arms = f"{ROWS}.map(r => r.dataset.arm)"
    for _ in range(2):
        click(opened, "#results table thead th:nth-child(5) button")
        assert opened.execute_script(arms)[-1] == "baseline"


def test_an_arm_can_be_hidden_everywhere(opened):
    visible = (
        "return [...document.querySelectorAll('[data-arm]')].filter(e => e.dataset.arm === arguments[0]"
        " && e.getClientRects().length).length"
    )
    before = opened.execute_script(visible, "oelm-freeze")
    others = opened.execute_script(visible, "freeze-only")
    assert before > 20
    click(opened, "#arms input[value='oelm-freeze']")
    assert opened.execute_script(visible, "oelm-freeze") == 0
    assert opened.execute_script(visible, "freeze-only") == others
    click(opened, "#arms input[value='oelm-freeze']")
    assert opened.execute_script(visible, "oelm-freeze") == before


def shown_text(browser):
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    drawn = browser.execute_script(
        "const seen = (n) => n.nodeType === 3 || getComputedStyle(n).display !== 'none';"
        "return [...document.querySelectorAll('.drawing text')]"
        ".map(t => [...t.childNodes].filter(seen).map(n => n.textContent).join('')).join('\\n')"
    )
    return browser.find_element("tag name", "body").text + "\n" + drawn


def fixed_words():
    """Every row of the tables without the parts that are filled in."""
    for key, text in load_messages().items():
        if key == "page-other-language" or text.en == text.zh:
            continue
        for lang in ("en", "zh"):
            parts = [part.strip(" ,.:;()（），。：；") for part in re.split(r"\{[^}]*\}", text[lang])]  # noqa: RUF001
            yield from ((lang, key, part) for part in parts if len(part) > (5 if lang == "en" else 1))


def test_the_language_changes_every_fixed_word(opened, made, hostile):
    english = shown_text(opened)
    click(opened, "#language")
    chinese = shown_text(opened)
    assert not re.search(r"[\u4e00-\u9fff]", english.replace("中文", ""))
    assert "与 baseline 相比" in chinese
    # Chinese text may hold names and codes, and none of the English sentences.
    for hypothesis in made.results.study.hypotheses:
        chinese = chinese.replace(hypothesis.statement, "")
    left = {(key, part) for lang, key, part in fixed_words() if lang == "en" and " " in part and part in chinese}
    assert not left
    used = {part for lang, _, part in fixed_words() if lang == "zh" and part in chinese}
    assert len(used) > 80
    click(opened, "#language")
    assert shown_text(opened) == english


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [400, 320])
def test_a_phone_needs_no_sideways_scrolling(opened, lang, width):
    looks(opened, width=width)
    if lang == "zh":
        click(opened, "#language")
    shown_text(opened)  # with everything unfolded
    widths = opened.execute_script("return [document.scrollingElement.scrollWidth, innerWidth]")
    assert widths == [width, width]
    wide = opened.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, svg')"
        " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className)"
    )
    assert wide == []


def test_pointing_at_a_point_says_what_it_is(opened, made):
    from selenium.webdriver import ActionChains

    value = made.results.comparisons["oelm-freeze"].differences[3]
    point = opened.find_element("css selector", "#figure-forest [data-tip^='oelm-freeze, seed 3:']")
    scroll_to(opened, point)
    ActionChains(opened).move_to_element(point).perform()
    tip = opened.find_element("id", "tip")
    assert tip.is_displayed()
    assert f"oelm-freeze, seed 3: {value:+.4f}" in tip.text.splitlines()
    click(opened, "#language")
    assert not tip.is_displayed()
    opened.execute_script("arguments[0].dispatchEvent(new PointerEvent('pointerdown', {bubbles: true}))", point)
    assert tip.text.splitlines()[0] == f"oelm-freeze，种子 3：{value:+.4f}"  # noqa: RUF001


def test_the_keyboard_walks_through_the_points(opened):
    from selenium.webdriver import ActionChains, Keys

    drawing = opened.find_element("css selector", "#figure-forest .drawing")
    scroll_to(opened, drawing)
    opened.execute_script("arguments[0].focus({preventScroll: true})", drawing)
    ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
    first = opened.find_element("id", "tip").text
    ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
    second = opened.find_element("id", "tip").text
    assert first.startswith("freeze-only, seed")
    assert second.startswith("freeze-only, seed")
    assert first != second


def test_a_mean_leads_to_its_cells(opened):
    from selenium.webdriver.support.ui import WebDriverWait

    is_open = "return document.getElementById('cells').open"
    assert not opened.execute_script(is_open)
    click(opened, "#results td a[href='#cells']")
    WebDriverWait(opened, 30).until(lambda browser: browser.execute_script(is_open))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(opened, scheme):
    looks(opened, width=1400, scheme=scheme)
    assert opened.execute_script(CONTRAST) == []
    ground = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_it_prints(opened):
    printed = base64.b64decode(opened.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"])
    assert printed.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) > 2
