"""The pictures at the top of README: small, described, and the plot is that of the committed result."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lab.readme.screenshot import LIMIT
from lab.readme.speed_plot import RESULT, draw_speed
from pipeline.paths import ROOT

IMAGES = ROOT / "docs" / "images"


def test_the_plot_is_drawn_from_the_result_that_readme_names(tmp_path: Path):
    draw_speed(tmp_path / "speed.svg")
    assert (tmp_path / "speed.svg").read_bytes() == (IMAGES / "speed.svg").read_bytes()
    assert f"`{RESULT.relative_to(ROOT)}`" in (ROOT / "README.md").read_text().partition("## ")[0]


def test_another_result_is_another_plot(tmp_path: Path):
    result = json.loads(RESULT.read_text())
    result["engines"]["paged"]["e2e_ms_p50"] *= 2
    other = tmp_path / "result.json"
    other.write_text(json.dumps(result))
    draw_speed(tmp_path / "speed.svg", other)
    assert (tmp_path / "speed.svg").read_bytes() != (IMAGES / "speed.svg").read_bytes()


def test_readme_shows_both_pictures_before_it_explains_and_describes_them():
    top = (ROOT / "README.md").read_text().partition("\n## ")[0]
    shown = dict(re.findall(r"!\[([^\]]{40,})\]\(([^)]+)\)", top))
    assert list(shown.values()) == ["docs/images/playground.png", "docs/images/speed.svg"]
    for path in shown.values():
        assert 0 < (ROOT / path).stat().st_size <= LIMIT
    assert "CPU" in top
