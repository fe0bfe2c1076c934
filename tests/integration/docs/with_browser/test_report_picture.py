"""Chromium makes the pictures of a report for README and pages."""

import shutil

import pictures
import pytest
import report_picture
from PIL import Image

from support import lacks


@pytest.mark.timeout(300)
def test_both_pictures_are_made_from_the_page(tmp_path, monkeypatch):
    if shutil.which("chromium") is None:
        lacks("chromium", install="apt-get install chromium")
    monkeypatch.setattr(report_picture, "PICTURES", tmp_path)
    assert not report_picture.is_current()
    report_picture.write()
    assert report_picture.is_current()
    for name, dark in report_picture.FILES.items():
        with Image.open(tmp_path / name) as made, Image.open(pictures.PICTURES / name) as kept:
            assert made.width == kept.width
            assert 0.8 < made.height / kept.height < 1.25  # fonts differ between machines
            brightness = sum(made.convert("RGB").getpixel((0, 0)))
            assert brightness < 200 if dark else brightness > 600
        assert (tmp_path / name).stat().st_size <= report_picture.MOST_BYTES
