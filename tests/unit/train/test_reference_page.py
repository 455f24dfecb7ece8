"""The reference page of the configuration says what the models say."""

from pathlib import Path

import annotated_types
import pytest
from pydantic import BaseModel

from farstep.train.config import RunConfig, SiteConfig
from farstep.train.config_file import dump_toml

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"

SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
} | {"sites": SiteConfig}


def row(name: str, model: type[BaseModel]) -> str:
    field = model.model_fields[name]
    default = "required" if field.is_required() else f"`{_toml(field.default)}`"
    return f"| `{name}` | {default} | {_limits(field.metadata)} | {field.description} |"


def _toml(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value).replace("'", '"')


def _limits(metadata: list[object]) -> str:
    texts = []
    for limit in metadata:
        match limit:
            case annotated_types.Ge(ge=low):
                texts.append(f"≥ {low:,}")
            case annotated_types.Gt(gt=low):
                texts.append(f"> {low:,}")
            case annotated_types.Le(le=high):
                texts.append(f"≤ {high:,}")
            case annotated_types.Lt(lt=high):
                texts.append(f"< {high:,}")
    return ", ".join(texts)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_has_its_row(section: str):
    text = PAGE.read_text(encoding="utf-8")
    model = SECTIONS[section]
    heading = f"## `[[{section}]]`" if section == "sites" else f"## `[{section}]`"
    assert heading in text
    part = text.split(heading, 1)[1].split("\n## ", 1)[0]
    missing = [line for name in model.model_fields if (line := row(name, model)) not in part]
    assert missing == []
    assert part.count("\n| `") == len(model.model_fields)


def test_the_page_names_every_section():
    text = PAGE.read_text(encoding="utf-8")
    for name in RunConfig.model_fields:
        assert f"[{name}]" in text
    assert dump_toml(RunConfig()).count("\n[") == len(SECTIONS) + 1  # one more site
