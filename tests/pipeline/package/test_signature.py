"""What Cog reads from predict.py, and Python that it would misread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cog import _inspector

ROOT = Path(__file__).resolve().parents[3]

from pipeline.package.new_package import predict_source  # noqa: E402
from pipeline.package.signature import SignatureError, read_inputs, write_inputs  # noqa: E402
from serving.errors import InvalidRequestError  # noqa: E402
from serving.request_checks import check_request  # noqa: E402
from serving.types import GenerationRequest, SamplingParams  # noqa: E402
from tasks.task import TASKS  # noqa: E402


def inputs_of(parameter: str, before: str = "") -> dict:
    source = f"{before}\nclass Predictor:\n    async def predict(self, {parameter}) -> str: ...\n"
    return read_inputs(source, "Predictor")


def test_the_committed_schema_is_that_of_predict_py():
    """If it fails, run scripts/write_schema."""
    document = json.loads((ROOT / ".cog" / "openapi_schema.json").read_text("utf-8"))
    source = (ROOT / "predict.py").read_text("utf-8")
    assert document["components"]["schemas"]["Input"] == read_inputs(source, "Predictor")


@pytest.mark.parametrize("task", TASKS)
def test_cog_s_own_sdk_sees_the_same_inputs_in_each_task_s_predict(task, tmp_path, monkeypatch):
    """The SDK's inspector runs the file, while `cog build` only parses it."""
    source = predict_source({"task": task})
    (tmp_path / f"predict_of_{task}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    info = _inspector.create_predictor(f"predict_of_{task}", "Predictor")
    schema = read_inputs(source, "Predictor")
    assert list(schema["properties"]) == list(info.inputs)
    for name, field in info.inputs.items():
        rule = schema["properties"][name]
        assert {key: rule[key] for key in ("type", "items", "anyOf") if key in rule} == {
            key: value for key, value in field.type.json_type().items() if key != "nullable"
        }
        is_optional = field.type.repetition.name.startswith("OPTIONAL")
        assert rule.get("nullable", False) == is_optional
        assert rule.get("default") == field.default
        assert (name in schema["required"]) == (field.default is None and not is_optional)
        limits = (rule.get("minimum"), rule.get("maximum"), rule.get("minLength"), rule.get("maxLength"))
        assert limits == (field.ge, field.le, field.min_length, field.max_length)


@pytest.mark.parametrize("task", ["chat", "schema"])
def test_limits_are_equal_to_the_engines(task):
    """Cog refuses values that every engine would refuse, and no others."""
    properties = read_inputs(predict_source({"task": task}), "Predictor")["properties"]
    limits = {(name, key): rule[key] for name, rule in properties.items() for key in rule if key.endswith("imum")}
    assert {name for name, _ in limits} >= {"max_tokens", "temperature", "seed"}
    for (name, key), bound in limits.items():
        outside = bound - 1 if key == "minimum" else bound + 1
        with pytest.raises(InvalidRequestError, match=name):
            check(**{name: outside})
        if (name, bound) not in {("top_p", 0), ("top_k", 0)}:  # an exclusive bound, and a value that means all
            check(**{name: bound})


def check(**sampling: float) -> None:
    check_request(GenerationRequest("id", (1,), SamplingParams(**sampling)), max_model_len=8, vocab_size=8)


def test_the_schema_lets_cog_stream_text():
    document = json.loads((ROOT / ".cog" / "openapi_schema.json").read_text("utf-8"))
    assert document["paths"]["/predictions"]["post"]["x-cog-streaming"] is True
    assert document["components"]["schemas"]["Output"]["x-cog-array-display"] == "concatenate"


def test_an_input_with_every_kind_of_limit():
    schema = inputs_of(
        'a: str = Input(description="It is.", min_length=1, max_length=9, regex="^a"), '
        "b_c: int = Input(default=-5, ge=-10, le=10), d: float | None = Input(default=None)"
    )
    assert schema["required"] == ["a"]
    assert schema["properties"] == {
        "a": {
            "x-order": 0,
            "title": "A",
            "type": "string",
            "description": "It is.",
            "minLength": 1,
            "maxLength": 9,
            "pattern": "^a",
        },
        "b_c": {
            "x-order": 1,
            "title": "B C",
            "type": "integer",
            "default": -5,
            "minimum": -10,
            "maximum": 10,
        },
        "d": {"x-order": 2, "title": "D", "type": "number", "nullable": True, "default": None},
    }


OBJECTS = {"type": "array", "items": {"type": "object"}}
TEXTS = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        ("bool", {"type": "boolean"}),
        ("dict", {"type": "object"}),
        ("dict[str, Any]", {"type": "object"}),
        ("list[str]", TEXTS),
        ("list[dict[str, Any]]", OBJECTS),
        ("Annotated[list[Message], Opaque]", OBJECTS),
        ("Annotated[Message, cog.Opaque]", {"type": "object"}),
        ("Optional[list[str]]", {**TEXTS, "nullable": True}),
        ("dict[str, Any] | None", {"type": "object", "nullable": True}),
        ("str | list[str]", {"anyOf": [{"type": "string"}, TEXTS]}),
        ("Optional[str | int]", {"anyOf": [{"type": "string"}, {"type": "integer"}], "nullable": True}),
    ],
)
def test_each_type_gets_its_schema(annotation, schema):
    (rule,) = inputs_of(f"a: {annotation} = Input()")["properties"].values()
    assert rule == {"x-order": 0, "title": "A", **schema}


def test_choices_are_a_separate_schema_as_cog_writes_them():
    document = {"components": {"schemas": {"old": {"enum": ["x", "y"]}, "Status": {"enum": ["z"]}}}}
    parameter = 'a_b: str = Input(default="c", choices=["c", "d"], description="It is.")'
    write_inputs(document, f"class Predictor:\n    async def predict(self, {parameter}) -> str: ...\n", "Predictor")
    schemas = document["components"]["schemas"]
    assert set(schemas) == {"Status", "Input", "a_b"}
    assert schemas["a_b"] == {"title": "a_b", "description": "An enumeration.", "enum": ["c", "d"], "type": "string"}
    assert schemas["Input"]["properties"]["a_b"] == {
        "x-order": 0,
        "default": "c",
        "description": "It is.",
        "allOf": [{"$ref": "#/components/schemas/a_b"}],
    }


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ('a: str = Input("a")', "positional"),
        ("a: int = Input(default=LIMIT)", "write its value"),
        ("a: int = Input(ge=1_000)", "one plain literal"),
        ("a: int = Input(ge=2 * 5)", "one plain literal"),
        ('a: str = Input(description=f"{1}")', "misread"),
        ('a: str = Input(description="a\\n")', "one plain literal"),
        ('a: str = Input(description="a" "b")', "one plain literal"),
        ('a: str = Input(description=u"a")', "one plain literal"),
        ("a: str = Input(default=None)", "needs the type `str | None`"),
        ("a: list[str] = Input(default=None)", "needs the type `list[str] | None`"),
        ("a: str = cog.Input()", "sees only `Input"),
        ("a: str = make()", "sees only `Input"),
        ("a: list = Input()", "type `list`"),
        ("a=Input()", "type ``"),
        ("a: str", "give every input"),
        ('a: str = Input(choices=["b"])', "at least two choices"),
        ("a: str = Input(choices=[B, C])", "write its value"),
        ('a: float = Input(choices=["b", "c"])', "choices is for str and int only"),
        ("a: str = Input(ge=1)", "ge is for int and float only"),
        ("a: str | list[str] = Input(max_length=1)", "max_length is for str only"),
        ("a: list[list[str]] = Input()", "type `list[list[str]]`"),
        ("a: Annotated[list[dict] | None, Opaque] = Input()", "type `Annotated"),
        ("a: Annotated[dict, 5] = Input()", "type `Annotated[dict, 5]`"),
        ("a: Literal['b'] = Input()", "type `Literal"),
        ("a: cog.Path = Input()", "type `cog.Path`"),
        ("a: list[str] = Input(default=NAMES)", "write its value"),
        ("a: list[str] = Input(default=[1_000])", "one plain literal"),
        ('a: dict = Input(default={"b": 1})', "one plain literal"),
        ("a: str = Input(**more)", "not None"),
        ("*a", "name each input"),
        ("**a", "name each input"),
    ],
)
def test_code_that_cog_would_misread_is_an_error_with_its_line(parameter, message):
    with pytest.raises(SignatureError, match=r"predict\.py line 3: ") as error:
        inputs_of(parameter)
    assert message in str(error.value)


def test_a_missing_predict_is_an_error():
    with pytest.raises(SignatureError, match="no class Predictor"):
        read_inputs("class Predictor: pass", "Predictor")
