"""Schemas as Cog writes them become fields with the right widget, limits and default."""

from __future__ import annotations

import json

import pytest

from gateway.pages.form_fields import FormField, form_fields
from gateway.pages.profile import Profile, ProfileError, profile_for
from pipeline.package.signature import write_inputs
from pipeline.paths import ROOT

TASKS = ROOT / "tasks"


def fields_of(task: str, **values) -> dict[str, FormField]:
    document = json.loads((ROOT / ".cog" / "openapi_schema.json").read_text())
    write_inputs(document, (TASKS / task / "predict.py").read_text(), "Predictor")
    names = document["components"]["schemas"]["Input"]["properties"]
    return {field.name: field for field in form_fields(document, profile_for(names, None), values)}


def one(schema, **schemas) -> FormField:
    inputs = {"properties": {"x": schema}, "required": ["x"]}
    [field] = form_fields({"components": {"schemas": {"Input": inputs, **schemas}}}, Profile(), {})
    return field


def test_every_input_of_the_chat_task_has_its_widget():
    widgets = {name: field.widget for name, field in fields_of("chat").items()}
    assert list(widgets)[:3] == ["prompt", "messages", "system_prompt"]
    expected = {"prompt": "long", "messages": "json", "temperature": "number", "stop_sequences": "text"}
    assert expected.items() <= widgets.items()
    assert {"json_schema": "json", "tools": "json", "add_generation_prompt": "boolean"}.items() <= widgets.items()


def test_limits_defaults_and_values_are_shown():
    fields = fields_of("chat", temperature=0, add_generation_prompt=False, messages=[{"role": "user"}])
    assert (fields["repetition_penalty"].limits, fields["top_k"].limits) == ("0.01 to 10", "0 or more")
    assert (fields["temperature"].value, fields["add_generation_prompt"].value) == ("0", "false")
    assert fields["add_generation_prompt"].default == "true"
    assert json.loads(fields["messages"].value) == [{"role": "user"}]
    assert (fields["prompt"].required, fields_of("schema")["text"].required) == (False, True)


def test_inputs_that_matter_come_first():
    assert [name for name, field in fields_of("schema").items() if field.is_main] == ["text"]
    assert "top_k" not in [name for name, field in fields_of("chat").items() if field.is_main]


def test_choices_are_found_through_the_reference_that_cog_writes():
    schema = {"allOf": [{"$ref": "#/components/schemas/x"}], "default": "b", "description": "which"}
    field = one(schema, x={"type": "string", "enum": ["a", "b"]})
    assert (field.widget, field.choices, field.default, field.description) == ("choice", ("a", "b"), "b", "which")


def test_a_list_of_texts_is_shown_as_names():
    assert one({"type": "array", "items": {"type": "string"}}).widget == "names"


def test_the_operators_own_examples_take_the_place_of_the_built_in_ones(tmp_path):
    own = tmp_path / "playground.json"
    own.write_text('{"examples": [{"title": "Ours", "input": {"nlq": "x"}}]}')
    assert [example.title for example in profile_for({"nlq": {}, "cols": {}}, own).examples] == ["Ours"]
    assert len(profile_for({"nlq": {}, "cols": {}}, None).examples) >= 3
    assert profile_for({"other": {}}, None).examples == ()
    own.write_text('{"exmples": []}')
    with pytest.raises(ProfileError, match=r"playground\.json.*exmples"):
        profile_for({}, own)
