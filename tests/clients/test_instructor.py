"""``instructor``: each of its modes that name a form to the server ends in a valid object, whatever the model."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pydantic
import pytest
from servers import Server

pytestmark = pytest.mark.python_package("instructor")


class Order(pydantic.BaseModel, extra="forbid"):
    """What somebody orders."""

    dish: Literal["soup", "bread", "fish"]
    number: int = pydantic.Field(ge=1, le=9)


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def test_each_mode(demo_server: Server, mode: str) -> None:
    import instructor

    with openai.OpenAI(base_url=demo_server.url + "/v1", api_key="none", max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode[mode])
        fields: dict[str, Any] = {"max_output_tokens" if mode.startswith("RESPONSES") else "max_tokens": 60}
        if "TOOLS" in mode:
            fields["parallel_tool_calls"] = False  # a small model would call for ever
        order = client.chat.completions.create(
            model="demo",
            response_model=Order,
            messages=[{"role": "user", "content": "Two soups, please."}],
            temperature=0,
            max_retries=0,
            **fields,
        )
    assert isinstance(order, Order)


def test_partial_objects_come_in_a_stream(demo_server: Server) -> None:
    import instructor

    with openai.OpenAI(base_url=demo_server.url + "/v1", api_key="none", max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
        messages = [{"role": "user", "content": "Three breads."}]
        parts = list(
            client.chat.completions.create_partial(
                model="demo", response_model=Order, messages=messages, temperature=0, max_tokens=60
            )
        )
    assert len(parts) > 1 and Order.model_validate(parts[-1].model_dump())
