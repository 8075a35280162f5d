"""The page in a real browser without a window, as somebody uses it who sees labels and names, not elements.

Nothing waits for a time: what is looked for is looked for until it is there, or the task fails with what the page
shows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.conformance.__main__ import Missing
from tests.conformance.mqtt.browser import browser

PATIENCE_S = 20.0
ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-extensions", "--lang=en-US", "--ignore-certificate-errors",
)  # fmt: skip
_FIRST_ROW = """return [...document.querySelectorAll("main tbody tr")].find(
    (row) => row.offsetParent !== null && arguments[0].every((text) => row.innerText.includes(text)))"""
T = TypeVar("T")


def quoted(text: str) -> str:
    """A text in XPath, whatever quotes are in it."""
    parts = ', "\'", '.join(f"'{part}'" for part in text.split("'"))
    return f"concat({parts}, '')"


class Page:
    """The page of a broker, at a URL."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    # Looking

    def until(self, what: str, look: Callable[[], T | None]) -> T:
        """What `look` finds once it finds something. Raises AssertionError with what the page shows."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                found = look()
            except StaleElementReferenceException:
                found = None
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} in the page, which shows\n{self.text()[:3000]}")
            time.sleep(0.05)

    def text(self) -> str:
        """All that is seen."""
        found: str = self.driver.execute_script("return document.body.innerText")
        return found

    def find(self, path: str, root: WebElement | None = None) -> WebElement:
        """The first that is seen of an XPath. Raises AssertionError."""
        within: Any = root or self.driver

        def look() -> WebElement | None:
            return next((one for one in within.find_elements(By.XPATH, path) if one.is_displayed()), None)

        return self.until(path, look)

    def says(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.until(f"text {text!r}", lambda: text in self.text())

    def says_not(self, text: str) -> None:
        """Wait until the page does not show a text."""
        self.until(f"page without {text!r}", lambda: text not in self.text())

    def row(self, *texts: str) -> WebElement:
        """The first row that has all these texts."""

        return self.until(f"row of {texts}", lambda: self.driver.execute_script(_FIRST_ROW, texts))

    def cell(self, column: str, *texts: str) -> str:
        """What a row says in a column."""
        return self.row(*texts).find_element(By.CSS_SELECTOR, f"td[data-label='{column}']").text

    def drawn(self) -> None:
        """Wait until the view has asked the broker, and shows what it was told."""
        self.find("//main[@data-drawn]")

    # Doing

    def open(self, view: str = "") -> None:
        """Go to a view by its address."""
        self.driver.get(f"{self.url}{view}")

    def go(self, title: str) -> None:
        """Choose a view from the menu, or a part of one."""
        self.find(f"//nav/a[normalize-space()={quoted(title)}]").click()

    def press(self, label: str, row: WebElement | None = None) -> None:
        """Press a button: of the open dialog, of a row, or of the page. The page may draw a row anew meanwhile."""
        root = ".//" if row is not None else "//dialog[@open]//" if self._dialogs() else "//main//"
        self.find(f"{root}button[normalize-space()={quoted(label)}]", row).click()

    def press_in_row(self, label: str, *texts: str) -> None:
        """Press a button of the row that has these texts."""

        def look() -> bool:
            self.press(label, self.row(*texts))
            return True

        self.until(f"button {label} of {texts}", look)

    def follow(self, text: str) -> None:
        """Follow a link within the view."""
        self.find(f"//main//a[normalize-space()={quoted(text)}]").click()

    def fill(self, **values: str | bool) -> None:
        """Fill in fields by their names: text, a choice's key, or whether it is marked."""
        for name, value in values.items():
            field = self.find(f"//*[self::input or self::select or self::textarea][@name='{name}']")
            if field.tag_name == "select":
                field.find_element(By.CSS_SELECTOR, f"option[value='{value}']").click()
            elif isinstance(value, bool):
                if field.is_selected() != value:
                    field.click()
            elif field.get_attribute("type") == "datetime-local":
                self.driver.execute_script("arguments[0].value = arguments[1]", field, value)
            else:
                field.clear()
                field.send_keys(value)

    def closed(self) -> None:
        """Wait until no dialog is open, so that what it asked for was done."""
        self.until("page without a dialog", lambda: not self._dialogs())

    def sure(self, label: str) -> None:
        """Press a dialog's button, and wait until that is done."""
        self.press(label)
        self.closed()

    def give_up(self) -> None:
        """Close what a task that failed has left open."""
        self.driver.execute_script("document.querySelectorAll('dialog[open]').forEach((one) => one.close())")

    def _dialogs(self) -> bool:
        return bool(self.driver.find_elements(By.CSS_SELECTOR, "dialog[open]"))

    def login(self, user: str, password: str) -> None:
        """Fill in the form, and press its button."""
        self.fill(user=user, password=password)
        self.find("//form//button[normalize-space()='Log in']").click()

    def logout(self) -> None:
        """Back to the form."""
        self.find("//button[@id='leave']").click()

    def complaints(self) -> list[str]:
        """What the browser's console has as errors, but for statuses of answers that the page shows itself."""
        logged: list[dict[str, Any]] = self.driver.get_log("browser")
        return [
            one["message"]
            for one in logged
            if one["level"] == "SEVERE" and "the server responded with a status of" not in one["message"]
        ]


@contextmanager
def page_at(url: str, *, width: int = 1400, height: int = 1000, dark: bool = False) -> Iterator[Page]:
    """A browser of its own, at a window's size in CSS pixels. Raises Missing."""
    driver_program = shutil.which("chromedriver")
    if driver_program is None:
        raise Missing("chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser()
    for argument in (*ARGUMENTS, *(("--force-dark-mode",) if dark else ())):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_program))
    try:
        resize(driver, width, height, dark)
        yield Page(driver, url)
    finally:
        driver.quit()


def resize(driver: webdriver.Chrome, width: int, height: int, dark: bool) -> None:
    """Have a window's size, below what a window of the system may be as well, and prefer light or dark."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def saved(page: Page, path: Path) -> None:
    """A picture of what is seen."""
    try:
        page.driver.save_screenshot(str(path))
    except WebDriverException:
        path.unlink(missing_ok=True)
