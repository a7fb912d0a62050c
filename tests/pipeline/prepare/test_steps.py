"""Which ways to quantize scripts/prepare tries, in which order, and what each takes from those before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.package.task_choice import TaskChoice
from pipeline.prepare.errors import PrepareError
from pipeline.prepare.options import PrepareOptions
from pipeline.prepare.run import prepare
from pipeline.prepare.steps import Way, later_steps

WORK = Path("work")


def ways(*quantize_options: str, reuse_search: Path | None = None) -> list[Way]:
    options = PrepareOptions(
        base="base",
        adapter=None,
        out=Path("out"),
        choice=TaskChoice("schema", None, None, None, None, None),
        cases=Path("cases.jsonl"),
        quantize_options=quantize_options,
        reuse_search=reuse_search,
    )
    return later_steps(options, WORK, quantized=False)[1]


def quantized_with(way: Way, option: str) -> str | None:
    """What a way gives scripts/quantize_awq for an option."""
    words = way.steps[0].command
    return words[words.index(option) + 1] if option in words else None


def test_single_layers_in_sixteen_bits_are_tried_last_with_the_search_before() -> None:
    found = ways()
    names = [[step.name for step in way.steps] for way in found]
    assert names == [[f"{step}{end}" for step in ("quantize", "place", "compare")] for end in ("", "-closer", "-mixed")]
    first, closer, mixed = found
    assert quantized_with(closer, "--save-search") == quantized_with(mixed, "--reuse-search")
    assert [quantized_with(way, "--sixteen-bits") for way in found] == [None, None, "0.1"]
    assert mixed.steps[0].needs == ("fetch-base", "quantize-closer")
    assert len({quantized_with(way, "--json") for way in found}) == 3
    assert quantized_with(first, "--group-size") is None and quantized_with(closer, "--group-size") == "32"
    assert mixed.steps[1].command[1] == str(WORK / "quantized-mixed"), "what was quantized is what is put in place"


def test_where_the_user_chose_all_of_the_second_way_the_last_takes_the_first_search() -> None:
    first, mixed = ways("--group-size", "64", "--max-tokens", "1024")
    assert quantized_with(first, "--save-search") == quantized_with(mixed, "--reuse-search")
    assert mixed.steps[0].needs == ("fetch-base", "quantize")


def test_an_earlier_search_is_used_twice_and_none_is_made() -> None:
    search = Path("search.safetensors")
    found = ways(reuse_search=search)
    assert [way.steps[0].name for way in found] == ["quantize", "quantize-mixed"]
    for way in found:
        assert quantized_with(way, "--reuse-search") == str(search) and way.steps[0].reads == (search,)
    # Which layers have 16 bits is known to the second only; scripts/improve needs it.
    assert [quantized_with(way, "--save-search") for way in found] == [None, "work/search-mixed.safetensors"]


def test_a_base_that_is_not_here_yet_needs_no_texts_because_it_may_be_quantized(tmp_path: Path) -> None:
    options = PrepareOptions(
        base="https://127.0.0.1:9/no-server/",
        adapter=None,
        out=tmp_path / "out",
        choice=TaskChoice("schema", None, None, None, None, None),
    )
    with pytest.raises(PrepareError, match="the step fetch-base failed"):
        prepare(options)
