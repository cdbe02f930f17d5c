"""Writes cases.json: what openai-harmony 0.0.8 or later reads in responses, the tokens of its marks, and a prompt that it writes.

Needs openai-harmony, jinja2, and the vocabulary `o200k_base.tiktoken` in the folder that TIKTOKEN_ENCODINGS_BASE names. The template next to
this file has to write the same prompt."""
import json
import pathlib

import jinja2
from openai_harmony import (
    Author, Conversation, DeveloperContent, Message, ReasoningEffort, Role, StreamableParser, SystemContent, ToolDescription,
    load_harmony_encoding,
)

HERE = pathlib.Path(__file__).parent
encoding = load_harmony_encoding("HarmonyGptOss")
encode = lambda text: encoding.encode(text, allowed_special="all")

HM = "<|channel|>analysis<|message|>Größe?<|end|><|start|>assistant"
ADD = '<|message|>{"a":2}<|call|>'
RESPONSES = [
    f"{HM}<|channel|>final<|message|>4<|return|>",
    f"{HM}<|channel|>commentary to=functions.add <|constrain|>json{ADD}",
    f"{HM}<|channel|>commentary to=functions.add json{ADD}",
    f"{HM} to=functions.add<|channel|>commentary <|constrain|>json{ADD}",
    f"{HM} to=functions.add<|channel|>commentary json{ADD}",
    f"{HM}<|channel|>commentary to=functions.add<|constrain|>json{ADD}",
    f"{HM}<|channel|>commentary to=functions.add{ADD}",
    f"<|channel|>commentary<|message|>I add.<|end|><|start|>assistant<|channel|>commentary to=functions.add json{ADD}",
    "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
    "<|channel|>final<|message|>cut",
    "<|channel|>final<|message|><|return|>",
    "<|channel|>anal",
    "<|channel|><|message|>hm<|return|>",
    "<|channel|>analysis<|message|>a<|end|><|start|>functions.add to=assistant<|channel|>commentary<|message|>5<|end|>",
]


def read(text):
    parser = StreamableParser(encoding, Role.ASSISTANT)
    try:
        for token in encode(text):
            parser.process(token)
        parser.process_eos()
    except Exception:
        return None
    return [
        {"role": str(m.author.role.value), "channel": m.channel, "recipient": m.recipient, "content": m.content[0].text}
        for m in parser.messages
    ]


system = SystemContent.new().with_reasoning_effort(ReasoningEffort.LOW).with_conversation_start_date("2025-06-28")
developer = DeveloperContent.new().with_instructions("Be brief.").with_function_tools([ToolDescription.new("add", "Adds.")])
conversation = Conversation.from_messages(
    [
        Message.from_role_and_content(Role.SYSTEM, system),
        Message.from_role_and_content(Role.DEVELOPER, developer),
        Message.from_role_and_content(Role.USER, "2+3?"),
        Message.from_role_and_content(Role.ASSISTANT, "hm").with_channel("analysis"),
        Message.from_role_and_content(Role.ASSISTANT, '{"a": 2}').with_channel("commentary").with_recipient("functions.add").with_content_type("json"),
        Message.from_author_and_content(Author.new(Role.TOOL, "functions.add"), '"5"').with_channel("commentary").with_recipient("assistant"),
    ]
)
prompt = encoding.decode(encoding.render_conversation_for_completion(conversation, Role.ASSISTANT))

environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
template = environment.from_string((HERE / "template.jinja").read_text())
messages = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}]},
    {"role": "tool", "content": "5"},
]
tools = [{"type": "function", "function": {"name": "add", "description": "Adds."}}]
written = template.render(
    messages=messages, tools=tools, reasoning_effort="low", strftime_now=lambda _: "2025-06-28", add_generation_prompt=True
)
assert written == prompt, (written, prompt)

marks = ["return", "constrain", "channel", "start", "end", "message", "call"]
cases = {
    "ids": {f"<|{name}|>": encode(f"<|{name}|>")[0] for name in marks},
    "messages": messages,
    "tools": tools,
    "prompt": prompt,
    "responses": [{"text": text, "messages": read(text)} for text in RESPONSES],
}
(HERE / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")
