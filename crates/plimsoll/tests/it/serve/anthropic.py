"""Asks a server of `plimsoll serve` with Anthropic's own client: `anthropic.py http://127.0.0.1:PORT TOKEN`."""

import sys

# This file has the package's name, and Python looks here first.
sys.path.pop(0)
import anthropic

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}


def messages(client):
    # Newer clients have no `temperature` of their own.
    ask = dict(
        model="tiny", max_tokens=24, messages=HELLO, system="Be short.", tools=[TOOL],
        extra_body={"temperature": 0, "seed": 3},
    )
    whole = client.messages.create(**ask)
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens <= 24, whole
    with client.messages.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        last = stream.get_final_message()
    assert {"message_start", "content_block_start", "content_block_delta", "message_stop"} <= kinds, kinds
    assert last.content[0].text == whole.content[0].text and last.usage == whole.usage, (last, whole)
    counted = client.messages.count_tokens(**{k: ask[k] for k in ("model", "messages", "system", "tools")})
    assert counted.input_tokens == whole.usage.input_tokens
    return whole


def thinking(client):
    ask = dict(
        model="tiny", max_tokens=24, messages=HELLO, thinking={"type": "enabled", "budget_tokens": 1024},
        extra_body={"temperature": 0},
    )
    whole = client.messages.create(**ask)
    block = whole.content[0]
    assert block.type == "thinking" and block.thinking and block.signature, whole
    with client.messages.stream(**ask) as stream:
        thought = "".join(event.thinking for event in stream if event.type == "thinking")
        assert stream.get_final_message().content[0].thinking == thought
    return whole


def again(client, whole):
    """What the client got goes back, with a call and its result."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "5"}]}
    turns = HELLO + [{"role": "assistant", "content": [*whole.content, call]}, {"role": "user", "content": [result]}]
    client.beta.messages.create(model="tiny", max_tokens=8, messages=turns, tools=[TOOL], betas=["any-2026-01-01"])


def errors(client, url):
    refused = [
        (anthropic.NotFoundError, {"model": "claude"}, "serve-unknown-model"),
        (anthropic.BadRequestError, {"extra_body": {"temperature": -1}}, "serve-bad-request"),
        (anthropic.BadRequestError, {"tools": [{"type": "web_search_20250305", "name": "w"}]}, "serve-field-refused"),
    ]
    for kind, more, slug in refused:
        try:
            client.messages.create(**{"model": "tiny", "max_tokens": 8, "messages": HELLO, **more})
        except kind as err:
            assert slug in str(err) and err.body["type"] == "error", err
        else:
            raise AssertionError(more)
    try:
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0).messages.create(
            model="tiny", max_tokens=8, messages=HELLO
        )
    except anthropic.AuthenticationError:
        return
    raise AssertionError("a wrong key")


def main():
    url, token = sys.argv[1:]
    for key in ({"api_key": token}, {"auth_token": token}):
        client = anthropic.Anthropic(base_url=url, max_retries=0, **key)
        assert messages(client).content == messages(client).content
    again(client, thinking(client))
    errors(client, url)


main()
