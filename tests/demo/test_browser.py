"""The page in a real browser: by mouse, by keyboard, on a phone, and under attack."""

import json
import shutil
import time

import pytest
from hostile_names import ATTACKS, EXAMPLE, LABELS

pytest_plugins = ["served_page"]

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs the programs chromium and chromedriver"),
]


@pytest.fixture(scope="module")
def driver():
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(argument)
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


class Page:
    """What a person does on the page."""

    def __init__(self, driver, url):
        self.driver = driver
        # No longer than it takes: a busy machine needs more than a quiet one.
        self.wait = WebDriverWait(driver, 120)
        driver.get(url)
        self.text = self.wait.until(lambda driver: driver.find_element(By.CSS_SELECTOR, "#text textarea"))

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script):
        return self.driver.execute_script(f"return {script}")

    def until(self, condition):
        return self.wait.until(lambda _: condition())

    def labels(self):
        return self.until(lambda: self.all("#labels button.label"))

    def paste(self, box, text):
        """Puts a text into a box at once; typing takes seconds where other work runs."""
        self.driver.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
            box,
            text,
        )

    def press(self, *keys):
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def tab_to(self, selector, most=30):
        for _ in range(most):
            if self.run(f"document.activeElement.matches({json.dumps(selector)})"):
                return self.driver.switch_to.active_element
            self.press(Keys.TAB)
        raise AssertionError(f"the key Tab does not lead to {selector}")


@pytest.fixture
def page(driver, page_url):
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    return Page(driver, page_url)


def test_a_click_shows_the_words_and_nothing_hostile_runs(page, page_url):
    page.paste(page.text, "apple dog " + " ".join(ATTACKS))
    page.all("#tag")[0].click()
    labels = page.labels()
    # The best five, and the others on request.
    assert [label.is_displayed() for label in labels] == [True] * 5 + [False] * (len(LABELS) - 5)
    page.all("#labels summary")[0].click()
    assert {label.find_element(By.CSS_SELECTOR, ".name").text for label in labels} == set(LABELS)
    assert labels[0].get_attribute("aria-pressed") == "true"
    page.until(lambda: page.all("#reasons h2"))
    labels[3].click()
    page.until(lambda: page.labels()[3].get_attribute("aria-pressed") == "true")
    name = page.all("#labels .name")[3].text
    page.until(lambda: name[:40] in page.all("#reasons h2")[0].text)
    assert {"apple", "dog"} & {mark.text for mark in page.all("#reasons mark")}
    # A message that repeats what was typed is no place for an attack either; it stands beside its field.
    page.all("button.label-wrap")[0].click()
    names = page.until(
        lambda: [box for box in page.all("textarea") if "One name per line" in box.get_attribute("placeholder")]
    )
    page.paste(names[0], "unknown " + ATTACKS[1])
    page.all("#tag")[0].click()
    page.until(lambda: page.all("#ask .mistake"))
    assert "no labels called unknown <img" in page.all("#ask .mistake")[0].text and not page.all("#labels .label")
    time.sleep(0.3)
    assert page.run("window.hacked") is None
    # Whatever the browser fetched, it came from this server.
    fetched = page.run("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert len(fetched) > 10 and [url for url in fetched if not url.startswith((page_url, "data:", "blob:"))] == []


def test_by_keyboard_alone(page):
    page.tab_to("#text textarea")
    page.press("apple dog")
    page.tab_to("#tag")
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press(Keys.ENTER)
    page.labels()
    page.tab_to("#labels li:nth-child(2) button")
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press(Keys.SPACE)
    page.until(lambda: page.labels()[1].get_attribute("aria-pressed") == "true")
    # The key Tab then leads on from there.
    assert page.run("document.activeElement === document.querySelectorAll('#labels button')[1]")


def test_a_file_is_tagged_and_downloaded(page, driver, tmp_path):
    file = tmp_path / "texts.csv"
    attack = '<img src=x onerror=""window.hacked = 1"">'
    file.write_text(f'id,"<b>{attack}</b>",body\n1,x,apple dog moon fox\n2,y,"fox {attack}"\n', encoding="utf-8")
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.all("button[role=tab]")[1].click()
    page.until(lambda: page.all("#tag_file"))[0].click()
    page.until(lambda: [mistake for mistake in page.all(".mistake") if "no file" in mistake.text])
    assert not page.all("#csv") and not page.all("#jsonl") and not page.all("#column")
    page.all("#file input[type=file]")[0].send_keys(str(file))
    column = page.until(lambda: page.all("#column input"))[0]
    page.until(lambda: not [mistake for mistake in page.all(".mistake") if mistake.text])
    column.click()
    page.until(lambda: len(page.all("#column [role=option]")) == 3)
    assert column.get_attribute("value") == "body"
    page.press(Keys.ESCAPE)
    page.all("#tag_file")[0].click()
    page.until(lambda: "2 texts tagged" in page.all("#summary")[0].text)
    for kind in ("jsonl", "csv"):
        page.until(lambda kind=kind: page.all(f"#{kind}"))[0].click()
        page.until(lambda kind=kind: (tmp_path / f"texts-tagged.{kind}").exists())
    rows = [json.loads(line) for line in (tmp_path / "texts-tagged.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 2 and len(rows[0]["predictions"]) == 5
    assert page.run("window.hacked") is None
    # Another file, and the download of this one is gone.
    page.all("#file button[aria-label=Clear]")[0].click()
    page.until(lambda: not page.all("#csv") and not page.all("#column"))


def test_a_phone_shows_labels_without_scrolling(page, driver):
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.paste(page.text, "apple " + "without_any_space" * 30)
    page.all("#tag")[0].click()
    labels = page.labels()
    page.until(lambda: page.all("#reasons h2"))
    assert page.run("window.scrollY") == 0 and page.run("document.documentElement.scrollWidth") <= 390
    assert all(label.rect["width"] <= 390 and label.rect["height"] >= 44 for label in labels if label.is_displayed())
    inside = page.run("document.querySelectorAll('#labels .label')[2].getBoundingClientRect().bottom")
    assert inside < 844 and labels[0].rect["y"] < page.all("#reasons")[0].rect["y"]
    # What led to a label comes into sight when it is chosen.
    labels[1].click()
    page.until(lambda: page.run("document.querySelector('#reasons h2').getBoundingClientRect().bottom") <= 844)
    page.all("button[role=tab]")[1].click()
    assert page.run("document.documentElement.scrollWidth") <= 390


def test_an_example_is_tagged(page):
    page.all("#examples button")[0].click()
    page.labels()
    assert page.text.get_attribute("value") == EXAMPLE
    assert page.run("getComputedStyle(document.querySelector('#examples button')).textOverflow") == "ellipsis"
