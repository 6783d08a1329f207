"""Makes docs/images/page.png: the page of `kformer serve`, with a real translation.

    python docs/make_images.py [--model saved_models/frozen] [--text "twenty past five"]

It needs kformer[tensorflow,serve], selenium, Chromium with its driver, and fonts with Chinese
(Debian: chromium, chromium-driver, fonts-noto-cjk).
"""

import argparse
import base64
import contextlib
import io
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_BYTES = 200_000
WIDTH, HEIGHT = 1120, 1180
_SECONDS = 300
_SHOW = """
const box = get('source');
box.value = arguments[0];
box.dispatchEvent(new InputEvent('input'));
"""


@contextlib.contextmanager
def serving(model):
    """Yields the address of `kformer serve` for a SavedModel."""
    command = [sys.executable, "-m", "kformer_cli", "serve", f"en-zh={model}", "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if ready := re.search(r"Ready on (http://\S+)", line):
                yield ready[1]
                return
        raise SystemExit(f"The server did not start:\n{''.join(lines)}")
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def browser():
    """Yields Chromium, without a window."""
    os.environ.setdefault("SE_OFFLINE", "true")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "lang=en-US"):
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options=options)
    try:
        yield driver
    finally:
        driver.quit()


def picture(driver, address, text):
    """The bytes of a PNG file: the page with a text, and a word of it chosen."""
    from selenium.webdriver.support.ui import WebDriverWait

    metrics = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 2, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    driver.get(address)
    wait = WebDriverWait(driver, _SECONDS)
    wait.until(lambda _: driver.execute_script("return state.models.length > 0"))
    # Twice, so that the time it shows is not that of a first call.
    for shown in (f"{text} ", text):
        driver.execute_script(_SHOW, shown)
        wait.until(
            lambda _, shown=shown: driver.execute_script(
                "return state.attention && state.reply.lines[0].source === arguments[0]", shown
            )
        )
    driver.execute_script("document.querySelectorAll('#target-words button')[2].focus()")
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    return base64.b64decode(shot["data"])


def small(png):
    """The same picture in 256 colors."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    file = io.BytesIO()
    image.save(file, "png", optimize=True)
    return file.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="saved_models/frozen", help="a SavedModel")
    parser.add_argument("--text", default="twenty past five", help="a text to translate")
    parser.add_argument("--output", default=str(ROOT / "docs" / "images" / "page.png"))
    options = parser.parse_args()
    with serving(options.model) as address, browser() as driver:
        content = small(picture(driver, address, options.text))
    if len(content) > MOST_BYTES:
        raise SystemExit(f"The picture has {len(content)} bytes, more than {MOST_BYTES}.")
    pathlib.Path(options.output).write_bytes(content)
    print(f"{options.output}: {len(content)} bytes")


if __name__ == "__main__":
    main()
