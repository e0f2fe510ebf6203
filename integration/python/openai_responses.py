"""Uses the Responses API of the official OpenAI SDK, and prints what it understood as one JSON object."""

import json
import os

import openai
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

client = openai.OpenAI(base_url=os.environ["RAGMUX_BASE_URL"], api_key=os.environ["RAGMUX_API_KEY"], max_retries=0)
model = os.environ["RAGMUX_MODEL"]
question = "What is the weather in Oslo?"
tools = [
    {
        "type": "function",
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]


class Forecast(BaseModel):
    city: str
    degrees: int


def whole():
    answer = client.responses.create(model=model, input=question, instructions="Be brief.")
    # The library itself takes whatever comes; its types say what has to.
    Response.model_validate(answer.to_dict())
    return {
        "text": answer.output_text,
        "status": answer.status,
        "model": answer.model,
        "total": answer.usage.total_tokens,
    }


def streamed():
    kinds, text, final = [], [], None
    numbers = []
    any_event = TypeAdapter(ResponseStreamEvent)
    for event in client.responses.create(model=model, input=question, stream=True):
        any_event.validate_python(event.to_dict())
        kinds.append(event.type)
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            text.append(event.delta)
        if event.type == "response.completed":
            final = event.response
    return {
        "first": kinds[0],
        "last": kinds[-1],
        "numbered": numbers == list(range(len(numbers))),
        "text": "".join(text),
        "final": final.output_text,
        "total": final.usage.total_tokens,
    }


def with_tools():
    first = client.responses.create(model=model, input=question, tools=tools)
    call = next(item for item in first.output if item.type == "function_call")
    items = [{"role": "user", "content": question}]
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": '{"degrees": -3}'})
    second = client.responses.create(model=model, input=items, tools=tools)
    return {"id": call.call_id, "name": call.name, "city": json.loads(call.arguments)["city"], "text": second.output_text}


def streamed_tools():
    pieces, done, final = [], None, None
    any_event = TypeAdapter(ResponseStreamEvent)
    for event in client.responses.create(model=model, input=question, tools=tools, stream=True):
        any_event.validate_python(event.to_dict())
        if event.type == "response.function_call_arguments.delta":
            pieces.append(event.delta)
        if event.type == "response.function_call_arguments.done":
            done = event.arguments
        if event.type == "response.completed":
            final = event.response
    call = next(item for item in final.output if item.type == "function_call")
    return {
        "pieces": "".join(pieces),
        "done": done,
        "id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
    }


def structured():
    return client.responses.parse(model=model, input=question, text_format=Forecast).output_parsed.model_dump()


def stateful():
    try:
        client.responses.create(model=model, input=question, previous_response_id="resp_1")
    except openai.BadRequestError as error:
        return error.body["param"]
    return None


print(
    json.dumps(
        {
            "whole": whole(),
            "streamed": streamed(),
            "tools": with_tools(),
            "streamed_tools": streamed_tools(),
            "structured": structured(),
            "stateful": stateful(),
        }
    )
)
