"""Writes cases.jsonl: conversations in templates with `{% generation %}`, and which tokens transformers says are the assistant's.

Needs transformers. The tokenizer is made here: bytes, with the characters of ByteLevel as its vocabulary, so that it has a token for
each byte and the marks of a turn; `tokenizer.json` is written next to the cases."""
import json
import pathlib

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, decoders
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
words = ["He", "ll", "Hell", "Hello", "Ġw", "Ġwo", "or", "ĠĠ", "ass", "<|", "im"]
merges = [("H", "e"), ("l", "l"), ("He", "ll"), ("Hell", "o"), ("Ġ", "w"), ("Ġw", "o"), ("o", "r"), ("Ġ", "Ġ"), ("as", "s"), ("<", "|"), ("i", "m")]
merges.insert(8, ("a", "s"))
words.append("as")
inner = Tokenizer(models.BPE({t: i for i, t in enumerate(letters + words)}, merges))
inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
inner.decoder = decoders.ByteLevel()
inner.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
inner.save(str(HERE / "tokenizer.json"), pretty=False)
tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE / "tokenizer.json"))

CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
TEMPLATES = [
    CHATML,
    # Space around the marks is trimmed; the space before an answer is outside of them.
    "{% for m in messages %}\n{%- if m.role == 'assistant' %}\nA: {%- generation -%}  {{ m.content }} {%- endgeneration -%}\n;{% else %}U: {{ m.content }};{% endif %}\n{%- endfor %}",
    # No token ends where a mark does.
    "{% for m in messages %}{{ m.role[0] }}:{{ ' Hel' if m.role == 'assistant' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}wo{% endgeneration %}{% else %}{{ m.content }}{% endif %}rld{% endfor %}",
    # What a mark's block sets is forgotten at its end.
    "{% set x = 'out' %}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = 'in' %}{{ x }}{{ m.content }}{% endgeneration %}{{ x }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    # Thinking is taken out of all turns but the last.
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}",
    # One turn in two parts.
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}|{% generation %}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
]
CONVERSATIONS = [
    ["user: Hello", "assistant: Hello world"],
    ["system: Be brief.", "user: Hello", "assistant: lo", "user: <&> é \n world", "assistant:  Größe, 東京 \n\n"],
    ["user: a", "assistant: <think>hm</think>b", "tool: 4", "assistant: <think>so</think>c", "user: d"],
]

with open(HERE / "cases.jsonl", "w") as out:
    for template in TEMPLATES:
        for conversation in CONVERSATIONS:
            messages = [dict(zip(["role", "content"], line.split(": ", 1))) for line in conversation]
            made = tokenizer.apply_chat_template(
                messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
            )
            case = {"template": template, "messages": messages, "ids": made["input_ids"], "mask": made["assistant_masks"]}
            out.write(json.dumps(case, ensure_ascii=False) + "\n")
