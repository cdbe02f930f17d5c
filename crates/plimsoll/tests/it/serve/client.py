"""Asks a server of `plimsoll serve` with OpenAI's own client: `client.py http://127.0.0.1:PORT/v1`."""

import asyncio
import sys

import openai

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
HELLO = [{"role": "user", "content": "Hello"}]


def chat(client):
    whole = client.chat.completions.create(
        model="tiny", messages=HELLO, seed=3, max_completion_tokens=24, logprobs=True, top_logprobs=1, n=2,
        extra_body={"return_token_ids": True, "top_k": 50},
    )
    assert whole.usage.completion_tokens == sum(len(c.token_ids) for c in whole.choices)
    for choice in whole.choices:
        assert choice.finish_reason in ("stop", "length"), choice
        assert len(choice.logprobs.content) == len(choice.token_ids)
        assert all(entry.logprob <= 0 for entry in choice.logprobs.content)
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, seed=3, max_completion_tokens=24, n=2, stream=True,
        stream_options={"include_usage": True}, extra_body={"top_k": 50},
    )
    texts, usage = ["", ""], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices], (texts, whole)
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens), usage
    assert usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens, usage
    return whole


def tools(client):
    answer = client.chat.completions.create(model="tiny", messages=HELLO, tools=[TOOL], max_tokens=8)
    message = answer.choices[0].message
    # An answer goes back as the client holds it, with every field that it has.
    again = HELLO + [message.model_dump(), {"role": "user", "content": "And?"}]
    client.chat.completions.create(model="tiny", messages=again, tools=[TOOL], max_tokens=8)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "5"}
    client.chat.completions.create(model="tiny", messages=HELLO + [called, result], max_tokens=8)


def completions(client):
    several = client.completions.create(model="tiny", prompt=["ab", "cd"], max_tokens=4, temperature=0, logprobs=1)
    assert [choice.index for choice in several.choices] == [0, 1]
    assert len(several.choices[0].logprobs.token_logprobs) <= 4
    one = client.completions.create(model="tiny", prompt=[99, 100], max_tokens=4, temperature=0)
    assert one.choices[0].text == several.choices[1].text


def responses(client):
    tool = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
    ask = dict(model="tiny", input="Hello", instructions="Be short.", max_output_tokens=24, temperature=0, tools=[tool])
    whole = client.responses.create(**ask)
    assert whole.status in ("completed", "incomplete") and whole.usage.output_tokens <= 24, whole
    with client.responses.stream(**ask) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        last = stream.get_final_response() if whole.status == "completed" else None
    assert text == whole.output_text, (text, whole)
    assert last is None or last.output_text == text
    # The items of an answer go back as the client holds them.
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "5"}
    again = [{"role": "user", "content": "Hello"}, *whole.output, call, result]
    client.responses.create(**{**ask, "input": again, "store": False})
    try:
        client.responses.create(**ask, previous_response_id=whole.id)
    except openai.BadRequestError as err:
        assert err.code == "serve-field-refused" and err.param == "previous_response_id", err
    else:
        raise AssertionError("nothing is stored")


def errors(client):
    refused = [
        (openai.NotFoundError, {"model": "gpt-4"}, "serve-unknown-model"),
        (openai.BadRequestError, {"max_tokens": 4096}, "serve-too-long"),
        (openai.BadRequestError, {"logprobs": True, "top_logprobs": 21}, "serve-bad-request"),
        (openai.BadRequestError, {"temperature": -1}, "serve-bad-request"),
    ]
    for kind, more, code in refused:
        try:
            client.chat.completions.create(**{"model": "tiny", "messages": HELLO, **more})
        except kind as err:
            assert err.code == code, err
        else:
            raise AssertionError(more)


async def many(url):
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        ask = lambda seed: client.completions.create(model="tiny", prompt="ab", max_tokens=16, seed=seed)
        answers = await asyncio.gather(*(ask(seed % 4) for seed in range(32)))
        texts = [answer.choices[0].text for answer in answers]
        assert all(text == texts[i % 4] for i, text in enumerate(texts)), texts


def main():
    url = sys.argv[1]
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()][-1] == "tiny"
    first = chat(client)
    assert chat(client).choices == first.choices
    tools(client)
    completions(client)
    responses(client)
    errors(client)
    asyncio.run(many(url))


main()
