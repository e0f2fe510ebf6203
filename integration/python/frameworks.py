"""Uses LangChain, LlamaIndex and LiteLLM as clients, and prints what they understood as one JSON object."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
base_url, key, model = os.environ["RAGMUX_BASE_URL"], os.environ["RAGMUX_API_KEY"], os.environ["RAGMUX_MODEL"]
question = "What is the weather in Oslo?"


def langchain():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return "cold"

    chat = ChatOpenAI(model=model, base_url=base_url, api_key=key, max_retries=0)
    answer = chat.invoke(question)
    pieces = list(chat.stream(question))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    asked = chat.bind_tools([weather]).invoke(question)
    call = asked.tool_calls[0]
    after = chat.bind_tools([weather]).invoke(
        [HumanMessage(question), asked, ToolMessage("cold", tool_call_id=call["id"])]
    )
    embeddings = OpenAIEmbeddings(model="embed", base_url=base_url, api_key=key, check_embedding_ctx_length=False)
    return {
        "text": answer.content,
        "total": answer.usage_metadata["total_tokens"],
        "streamed": whole.content,
        "call": {"name": call["name"], "args": call["args"], "id": call["id"]},
        "after": after.content,
        "vectors": len(embeddings.embed_documents(["one", "two"])),
    }


def langchain_anthropic():
    from langchain_anthropic import ChatAnthropic

    chat = ChatAnthropic(model=model, base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0, max_tokens=50)
    answer = chat.invoke(question)
    streamed = "".join(piece.text for piece in chat.stream(question))
    return {"text": answer.text, "total": answer.usage_metadata["total_tokens"], "streamed": streamed}


def llamaindex():
    from llama_index.core.llms import ChatMessage
    from llama_index.embeddings.openai import OpenAIEmbedding
    from llama_index.llms.openai import OpenAI

    # It looks up the context size by name, so the route has the name of a model it knows.
    chat = OpenAI(model="gpt-4o", api_base=base_url, api_key=key, max_retries=0)
    answer = chat.chat([ChatMessage(role="user", content=question)])
    streamed = "".join(piece.delta or "" for piece in chat.stream_chat([ChatMessage(role="user", content=question)]))
    embedding = OpenAIEmbedding(model_name="embed", api_base=base_url, api_key=key, max_retries=0)
    return {
        "text": answer.message.content,
        "streamed": streamed,
        "vectors": len(embedding.get_text_embedding_batch(["one", "two"])),
    }


def litellm():
    import litellm as client

    options = {"base_url": base_url, "api_key": key, "num_retries": 0}
    messages = [{"role": "user", "content": question}]
    answer = client.completion(model=f"openai/{model}", messages=messages, **options)
    stream = client.completion(model=f"openai/{model}", messages=messages, stream=True, **options)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    messages_api = {**options, "base_url": base_url.removesuffix("/v1")}
    messages_answer = client.completion(model=f"anthropic/{model}", messages=messages, max_tokens=50, **messages_api)
    return {
        "text": answer.choices[0].message.content,
        "total": answer.usage.total_tokens,
        "streamed": streamed,
        "messages": messages_answer.choices[0].message.content,
    }


frameworks = {
    "langchain": langchain,
    "langchain_anthropic": langchain_anthropic,
    "llamaindex": llamaindex,
    "litellm": litellm,
}
print(json.dumps(frameworks[sys.argv[1]]()))
