"""Uses the official Anthropic SDK as programs do, and prints what it understood as one JSON object."""

import json
import os

import anthropic

# The SDK adds /v1 itself.
base_url = os.environ["RAGMUX_BASE_URL"].removesuffix("/v1")
client = anthropic.Anthropic(base_url=base_url, api_key=os.environ["RAGMUX_API_KEY"], max_retries=0)
model = os.environ["RAGMUX_MODEL"]
question = [{"role": "user", "content": "What is the weather in Oslo?"}]
tools = [
    {
        "name": "weather",
        "description": "The weather in a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def whole():
    answer = client.messages.create(model=model, max_tokens=50, system="Be brief.", messages=question)
    return {
        "text": text_of(answer),
        "stop": answer.stop_reason,
        "model": answer.model,
        "role": answer.role,
        "output": answer.usage.output_tokens,
    }


def streamed(**options):
    with client.messages.stream(model=model, max_tokens=50, messages=question, **options) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    return {
        "first": kinds[0],
        "last": kinds[-1],
        "text": text_of(final),
        "stop": final.stop_reason,
        "calls": [
            {"id": block.id, "name": block.name, "input": block.input}
            for block in final.content
            if block.type == "tool_use"
        ],
        "output": final.usage.output_tokens,
    }


def with_tools():
    first = client.messages.create(model=model, max_tokens=50, messages=question, tools=tools)
    call = next(block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"degrees": -3}'}
    conversation = question + [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(model=model, max_tokens=50, messages=conversation, tools=tools)
    return {"stop": first.stop_reason, "id": call.id, "name": call.name, "city": call.input["city"], "text": text_of(second)}


def run_by_itself():
    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Which.
        """
        return f"cold in {city}"

    runner = client.beta.messages.tool_runner(model=model, max_tokens=50, messages=question, tools=[weather])
    return text_of(runner.until_done())


def failing():
    try:
        client.messages.create(model=model, max_tokens=50, messages=question)
    except anthropic.RateLimitError as error:
        return {"status": error.status_code, "type": error.body["error"]["type"], "message": error.body["error"]["message"]}
    return None


def wrong_key():
    try:
        anthropic.Anthropic(base_url=base_url, api_key="sk-proj-wrong", max_retries=0).messages.create(
            model=model, max_tokens=50, messages=question
        )
    except anthropic.AuthenticationError as error:
        return error.body["error"]["type"]
    return None


print(
    json.dumps(
        {
            "whole": whole(),
            "streamed": streamed(),
            "tools": with_tools(),
            "streamed_tools": streamed(tools=tools),
            "run_by_itself": run_by_itself(),
            "failing": failing(),
            "counted": client.messages.count_tokens(model=model, messages=question).input_tokens,
            "wrong_key": wrong_key(),
        }
    )
)
