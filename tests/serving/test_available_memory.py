"""The available memory is the machine's or the container's, whichever is less."""

import pytest

from serving.devices import available_memory


@pytest.mark.parametrize(
    ("files", "spare"),
    [
        ({}, 0),
        ({"meminfo": "MemTotal: 900 kB\nMemAvailable: 500 kB\n"}, 512_000),
        (
            {"meminfo": "MemAvailable: 500 kB\n", "memory.max": "300000\n", "memory.current": "100000\n"},
            200_000,
        ),
        ({"meminfo": "MemAvailable: 500 kB\n", "memory.max": "max\n", "memory.current": "100000\n"}, 512_000),
        ({"memory/memory.limit_in_bytes": "9", "memory/memory.usage_in_bytes": "12"}, 0),
    ],
)
def test_the_machine_and_the_container_both_limit_it(tmp_path, files, spare):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_memory(tmp_path / "meminfo", tmp_path) == spare
