"""Writes cases.jsonl: templates, and what Jinja2 renders in the environment that Hugging Face gives to chat templates.

Needs jinja2. Each case is rendered with the conversation below; `text` is null where Jinja2 refuses."""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " What's 1+1? <&> \"é\"\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nTwo, 2"},
]

TEMPLATES = r"""
{{ messages[0]['role'] }}|{{ messages[-1].content }}|{{ messages[7] }}|{{ messages[0].nothing }}
{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ m.role }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for m in messages[1:] %}{{ loop.index0 }}{{ loop.first }}{{ loop.revindex }}{{ loop.revindex0 }}{% endfor %}
{% for m in messages if m.role != 'user' %}{{ loop.index }}{{ m.role }}{% else %}none{% endfor %}
{% for m in messages if m.role == 'tool' %}x{% else %}none{% endfor %}
{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}{{ loop.nextitem.role if loop.nextitem else '-' }}{% endfor %}
{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{{ loop.depth }}{% endfor %}
{% for a in [1, 2] %}{% for b in 'xy' %}{{ a }}{{ b }}{{ loop.depth0 }} {% endfor %}{% endfor %}
{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for k, v in {'a': 1, 'b': [2]}.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}
{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in nothing %}x{% else %}empty{% endfor %}
{% for x in none %}x{% endfor %}
{% for x in 5 %}x{% endfor %}
{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}
{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s ~ m.role[0] %}{% endfor %}{{ ns.n }}{{ ns.s }}
{% set a, b = 1, 'x' %}{{ a }}{{ b }}
{% set a, b = [1] %}
{% set x %} captured {{ 1 + 1 }} {% endset %}[{{ x }}]
{% set x | trim | upper %} captured {% endset %}[{{ x }}]
{% set x.y = 1 %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}
{% filter upper %}a{{ 'b' }}{% endfilter %}
{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 2, c=3) }}|{{ m() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% set y = 'out' %}{% macro m() %}{{ y }}{% set y = 'in' %}{{ y }}{% endmacro %}{{ m() }}{{ y }}
{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}inner{% endcall %}
{% macro m(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) m([1, 2]) %}<{{ x }}>{% endcall %}
{% macro m(x) -%}  {{ x }}  {%- endmacro %}[{{ m('a') | upper }}]
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 2 ** -1 }}
{{ 7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 1e16 }} {{ 123456789012345.0 }} {{ 0.1 + 0.2 }} {{ 1_000 }} {{ 3.0 }}
{{ 1 / 0 }}
{{ 5 % 0 }}
{{ 'a' + 'b' }}{{ 'a' ~ 1 ~ none ~ true ~ nothing ~ 1.0 }}{{ 'ab' * 3 }}{{ 2 * 'x' }}{{ [1] + [2] }}{{ [0] * 3 }}{{ (1,) + (2,) }}
{{ 'a' + 1 }}
{{ 1 + none }}
{{ nothing + 'a' }}
{{ [1] + (2,) }}
{{ -nothing }}
{{ not true }} {{ not not 1 }} {{ true and 0 }} {{ '' or 'x' }} {{ none and nothing.a }} {{ 1 and 2 or 3 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'a' != 'a' }} {{ none == false }} {{ 'a' == 1 }}
{{ 1 < 'a' }}
{{ none > 1 }}
{{ 'a' in 'cat' }} {{ 'x' not in 'cat' }} {{ 1 in [1, 2] }} {{ 'a' in {'a': 1} }} {{ 1 in (2, 3) }} {{ 'a' in nothing }} {{ not 'a' in 'b' }}
{{ 1 in 5 }}
{{ 1 in 'abc' }}
{{ 'yes' if true else 'no' }}{{ 'yes' if false }}{{ 'a' if 0 else 'b' if 0 else 'c' }}
{{ [1, 2, 3][1:] }}{{ [1, 2, 3][:-1] }}{{ [1, 2, 3][::-1] }}{{ 'hello'[1:3] }}{{ 'hello'[::-1] }}{{ 'héllo'[1] }}{{ 'hello'[-2:] }}{{ 'abc'[10:] }}{{ 'abcdef'[::2] }}{{ [1,2,3,4,5][4:1:-2] }}{{ (1,2,3)[:2] }}{{ 'abc'[-9] }}
{{ [1, 2][5] }}{{ [1, 2][-1] }}{{ {'a': 1}['b'] }}{{ {'a': 1}.a }}{{ {1: 'x'}[1] }}{{ 'abc'.foo }}{{ none.foo }}
{{ nothing.foo }}
{{ nothing['foo'] }}
{{ nothing() }}
{{ messages.foo.bar }}
{{ messages[9].role }}
{{ 'abc'.nothing() }}
{{ none.strip() }}
{{ [1].append(2) }}
{{ {}.update({'a': 1}) }}
{{ [1, 'a', "it's", none, true, 1.5, [], {}, (1,), (), {'k': 'v'}] }}
{{ ['é', '\n', '\t', '\\', '"', "'", '\'"', '\x00', '\u200b', '\x7f'] }}
{{ (1, 2) }}{{ 1, 2 }}{{ () }}
{{ 'a\nb\tc\\d\'e\"f\x41\u00e9\q' }}{{ "it's" }}{{ 'a' 'b' "c" }}
{{ true }}{{ True }}{{ false }}{{ None }}{{ none }}
{{ 10 is even }}{{ 3 is odd }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby(2) }}{{ 1 is number }}{{ true is number }}{{ 1 is integer }}{{ true is integer }}{{ 1.0 is float }}{{ 'a' is string }}{{ [] is sequence }}{{ 'a' is sequence }}{{ {} is mapping }}{{ [] is mapping }}{{ [] is iterable }}{{ 1 is iterable }}{{ none is none }}{{ nothing is none }}{{ nothing is defined }}{{ nothing is undefined }}{{ messages is defined }}{{ nothing is iterable }}{{ true is boolean }}{{ 1 is boolean }}{{ true is true }}{{ 1 is true }}{{ false is false }}{{ 0 is false }}{{ range is callable }}{{ {} is sequence }}{{ nothing is sequence }}
{{ 1 is eq 1 }}{{ 1 is equalto(2) }}{{ 1 is ne 2 }}{{ 1 is lt 2 }}{{ 1 is ge 2 }}{{ 1 is in [1] }}{{ 'abc' is lower }}{{ 'ABC' is upper }}{{ 'a' is not string }}{{ 1 is not defined }}{{ none is sameas none }}{{ 1 is gt(0) and 2 is le 2 }}
{{ 1 is nosuchtest }}
{{ 1 | nosuchfilter }}
{{ nosuchfunction(1) }}
{{ '  a b ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ 'abc' | upper }}|{{ 'ABC' | lower }}|{{ 'hello wORLD-foo (bar)' | title }}|{{ 'hELLO' | capitalize }}|{{ nothing | trim }}|{{ 5 | string | length }}
{{ 'a-b-c' | replace('-', '+') }}{{ 'a-b-c' | replace('-', '+', 1) }}{{ 'abc' | replace('', '.') }}
{{ [1, 2] | length }}{{ 'héé' | length }}{{ {} | count }}{{ nothing | length }}
{{ 5 | length }}
{{ nothing | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | default('d') }}{{ 0 | d('x', boolean=true) }}{{ nothing | default }}
{{ [1, 2, 3] | join(', ') }}{{ ['a', none, 1] | join }}{{ [{'n': 'a'}, {'n': 'b'}] | join('-', attribute='n') }}{{ 'abc' | join('.') }}
{{ [3, 1, 2] | sort }}{{ ['b', 'A', 'c'] | sort }}{{ ['b', 'A'] | sort(case_sensitive=true) }}{{ [1, 3, 2] | sort(reverse=true) }}{{ messages | sort(attribute='role') | map(attribute='role') | list }}{{ [1, 'a'] | sort | length if false }}
{{ [1, 'a'] | sort }}
{{ [1, 2, 3] | first }}{{ [1, 2, 3] | last }}{{ [] | first }}{{ 'abc' | first }}{{ [1, 2] | reverse | list }}{{ 'abc' | reverse }}{{ [] | last is defined }}
{{ [1, 1, 2, 'a', 'A'] | unique | list }}{{ [3, 1] | min }}{{ [3, 1] | max }}{{ ['b', 'A'] | max }}{{ [1, 2] | sum }}{{ [{'x': 1}, {'x': 2}] | sum(attribute='x') }}{{ [] | sum }}{{ [] | min }}{{ [1, 2] | sum(start=10) }}
{{ [1, 2, 3, 4] | select('even') | list }}{{ [1, 2, 3] | reject('odd') | list }}{{ [0, 1, ''] | select | list }}{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='role') | list }}{{ messages | rejectattr('role', 'in', ['user']) | list | length }}{{ messages | selectattr('role') | list | length }}
{{ ['a', 'b'] | map('upper') | list }}{{ ['a-b'] | map('replace', '-', '+') | list }}{{ messages | map(attribute='nothing', default='z') | list }}{{ [[1], [2, 3]] | map('length') | list }}{{ [[1, 2]] | map(attribute=0) | list }}{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}
{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 1, 'a': 2} | dictsort(by='value') }}{{ {'b': 1} | items | list }}{{ {'b': 1, 'a': 2} | dictsort(reverse=true) }}{{ nothing | items | list }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb\n' | indent('> ') }}|{{ '' | indent(2, true) }}|{{ 'a\n' | indent(1) }}|{{ 'a\n' | indent(1, true, true) }}
{{ '<a href="x">\'&' | e }}{{ '<' | escape }}{{ '<' | safe }}
{{ 3.7 | int }}{{ '42' | int }}{{ 'x' | int }}{{ 'x' | int(9) }}{{ '3.9' | int }}{{ '1f' | int(base=16) }}{{ none | int }}{{ true | int }}{{ '1.5' | float }}{{ 'x' | float }}{{ 3 | float }}{{ 'x' | float(2.5) }}
{{ 2.5 | round }}{{ 3.5 | round }}{{ 2.345 | round(2) }}{{ 2.1 | round(0, 'ceil') }}{{ 2.9 | round(method='floor') }}{{ 42 | round }}{{ -3 | abs }}{{ -3.5 | abs }}{{ 1234 | round(-2) }}
{{ 'Hello %s, %d%%, %.2f, %r' | format('you', 3, 1.005, 'x') }}{{ '%s' % 'a' }}{{ '%s-%s' % ('a', 1) }}{{ '%d' | format(3.9) }}
{{ '%s %s' | format('a') }}
{{ '%d' | format('a') }}
{{ messages | tojson }}
{{ {'a': [1, 2.0, none, true, 'é"\\\n\u0001'], 'b': {}} | tojson }}
{{ {'a': [1, {'b': []}], 'c': {}} | tojson(indent=2) }}
{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true) }}{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}{{ '😀' | tojson(ensure_ascii=true) }}{{ {1: 2, none: 3, true: 4} | tojson }}{{ 1e22 | tojson }}{{ [1] | tojson(indent=0) }}{{ [1, [2]] | tojson(indent='	') }}
{{ nothing | tojson }}
{{ ' a '.strip() }}|{{ 'xax'.strip('x') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'aXbX'.split('X') }}|{{ ' a  b c '.split() }}|{{ 'a b c'.split(' ', 1) }}|{{ 'a  b c'.split(none, 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ ' a b c '.rsplit(none, 1) }}|{{ ''.split() }}|{{ ''.split(',') }}|{{ 'abc'.split('b')[-1] }}
{{ 'a\nb\r\nc\n'.splitlines() }}{{ 'a\nb'.splitlines(true) }}{{ ''.splitlines() }}
{{ 'abc'.startswith('a') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.find('c') }}{{ 'abc'.find('x') }}{{ 'éabca'.rfind('a') }}{{ 'aaa'.count('a') }}{{ 'abc'.index('b') }}{{ 'abc'.replace('b', 'x') }}{{ 'aXbXc'.replace('X', '-', 1) }}{{ 'abc'.upper() }}{{ 'ABC'.lower() }}{{ "they're bill's".title() }}{{ 'aBC'.capitalize() }}{{ ', '.join(['a', 'b']) }}{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'abc'.partition('x') }}{{ 'abc'.rpartition('x') }}
{{ 'abc'.index('x') }}
{{ 'abc'.split('') }}
{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ 'ab'.isalpha() }}{{ ' '.isspace() }}{{ 'ab'.islower() }}{{ 'AB'.isupper() }}{{ ''.isdigit() }}{{ 'é'.isascii() }}{{ '1'.isnumeric() }}
{{ '{} {}'.format('a', 1) }}{{ '{1}{0}'.format('a', 'b') }}{{ '{x}{{}}'.format(x=3) }}
{{ '{}'.format() }}
{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}{{ {'a': 1}.keys() | list }}{{ {'a': 1}.values() | list }}{{ {'a': 1}.items() | list }}{{ {'items': 5}['items'] }}{{ {'a': 1}.copy() }}
{{ [1, 2, 1].count(1) }}{{ [1, 2].index(2) }}{{ (1, 2).count(3) }}
{{ dict(a=1, b='x') }}{{ range(3) | list }}{{ range(1, 7, 2) | list }}{{ range(3, 0, -1) | list }}{{ range(0) | list }}
{{ raise_exception('roles must alternate') }}
{{ range(1000000) | length }}
{{ strftime_now('%Y') | length }}
{{ eos_token }}{{ bos_token }}{{ pad_token }}{{ add_generation_prompt }}
{{ {'a': 1, 'a': 2} }}{{ {1: 'a', 1.0: 'b', true: 'c'} }}
{{ {[]: 1} }}
{% set ns = namespace(x=1) %}{{ ns.x }}{{ ns['x'] }}{{ ns.y }}
{% if tools %}t{% elif documents is defined %}d{% else %}n{% endif %}{% if not tools and messages %}m{% endif %}
{% if messages[0].role == 'system' and messages[0].content is string %}{{ messages[0].content }}{% endif %}
{{ messages[-1].content.split('</think>')[-1].lstrip('\n') }}|{{ messages[-1]['content'].split('<think>')[0] | length }}
{%- set s = messages[2].content %}{{- s.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -}}
{{ ('a' ~ 'b') | upper ~ 'c' }}{{ -1 | abs }}{{ (1, 2) | length }}{{ 'a' in 'abc' | upper }}{{ not 'a' == 'b' }}{{ 1 if 'a' else 2 + 3 }}
{{ ((1)) }}{{ (((1 + 2))) * 3 }}{{ [[[]]] }}{{ {'a': {'b': {}}} }}{{ {'a': (1, [2])}.a[1][0] }}
{{ 'a' if messages | length > 2 else 'b' }}{{ messages | length - 1 }}{{ messages | length is eq 3 }}
{{ "{{ not a tag }}" }}{{ '%}' }}{{ '}}' }}
{% raw %}{{ raw }} {% if %}{% endraw %}|{%- raw -%}  x  {%- endraw -%}  |
{# comment #}a{#- comment -#} b {# {{ x }} {% if %} #}c
{{- 'a' -}}   b   {{- 'c' }}
{{ messages.0.role }}{{ [[1, 2]].0.1 }}
{{ loop }}{{ caller }}{{ loop is defined }}
{% do 1 + 1 %}x
{% print 'x' %}
{% include 'x' %}
{% if %}x{% endif %}
{% if true %}x
{% endif %}
{% for x %}{% endfor %}
{% for x in [1] %}
{{ 1 +
{{ 'abc }}
{{ a b }}
{{ (1 }}
{{ [1, 2 }}
{{ 1 ] }}
{# never ends
{{ }}
{% set true = 1 %}
{% unknown %}
{% break %}
{% generation %}x{{ 1 }}{% endgeneration %}y
{{ 'ß'.upper() }}{{ 'ΑΣ'.lower() }}{{ 'İ'.lower() | length }}
{{ "a" "b" ~ 'c' }}{{ 1if true else 2 }}
{{ 'x' * 0 }}{{ 'x' * -1 }}{{ [] * 5 }}{{ '' * 99999999999 }}
{{ 9007199254740993 }}{{ 2 ** 62 }}{{ 1e300 * 1e10 }}{{ 10 // 3.0 }}{{ 1.0 }}{{ 1e-5 }}{{ 0.0001 }}{{ 100000000000000000.0 }}
{{ 'abc' | upper | lower | title | length | string | int + 1 }}
{{ [1, [2, 3]] | string }}{{ {'a': none} | string | length }}{{ 1.0 | string }}
{{ messages == messages }}{{ messages[0] == {'role': 'system', 'content': 'Be brief.'} }}{{ messages[0] in messages }}{{ [1, 2] == (1, 2) }}{{ nothing == nothing2 }}{{ {'a': 1} == {'a': 1.0} }}
{% macro a() %}{% set z = 1 %}{% endmacro %}{{ a() }}{{ z is defined }}{% macro b(x=y) %}{{ x }}{% endmacro %}{% set y = 4 %}{{ b() }}
{% for m in messages %}{% set role = m.role %}{% endfor %}{{ role is defined }}{% for x in [1, 2] %}{{ seen is defined }}{% set seen = 1 %}{% endfor %}
{% set x = [1, 2] %}{% set y = x + [3] %}{{ x }}{{ y }}{% set x = x + x %}{{ x }}
{{ messages | map(attribute='content') | map('trim') | join('|') }}
{{ messages | map(attribute='role') | unique | sort | first }}{{ messages | selectattr('content', 'string') | list | length }}
{{ ['x', 'y'] | join(', ') | replace(', ', '-') }}{{ ('a', 'b') | join }}{{ messages | map('nosuchfilter') | list if false }}
"""

# Templates of several lines: white space around tags.
LINES = [
    "{% for m in messages %}\n  {{ m.role }}: {{ m['content'] }}\n{% endfor %}\nend\n",
    "a\n  {% if true %}  \n  b\n  {% endif %}\nc\n\n",
    "a\r\n{% if true %}\r\nb{% endif %}\r\n",
    "  {%- if true -%}  \n x \n {%- endif %} \n y",
    "  {%+ if true %}x{% endif +%}\ny",
    "{# c #}\nx\n  {# c #}  \ny {# c #}\nz",
    "x {{- 1 }}\n {{ 2 -}} \n y\n{{ 3 }}\n",
    "{% raw %}\n a {{ b }}\n{% endraw %}\nc",
    "x\n   {% raw %}  {% endraw %}  y",
    "{{ 'a\nb' }}\n{%- set x = 'c\\nd' %}\n{{ x }}",
    "{%- macro m(x) %}\n  <{{ x }}>\n{% endmacro -%}\n{{ m(1) }}{{ m(2) }}\n",
    "\n\n{% if true %}\n\n{% endif %}\n\n",
    "{% set x %}\n  a\n{% endset %}\n[{{ x }}]",
    "\t{% if true %}\tx\t{% endif %}\t\n",
    "{{ 1 }}{% if true %}\n{{ 2 }}\n{% endif %}{{ 3 }}",
    "{% generation %}\n a\n{% endgeneration %}\nb",
    "{% generation -%} a {%- endgeneration %}b",
    "x{%- generation %} y {% endgeneration -%} z",
    "{%- for m in messages -%}\n    {%- if loop.first and m.role == 'system' -%}\n        {{- '<<' + m.content + '>>' }}\n    {%- else %}\n        {{- m.role }}\n    {%- endif %}\n{%- endfor -%}\n",
    "{{\n  'a'\n  ~ 'b'\n}}\n{%\n if true\n%}\nx{% endif %}",
    "{# a\n b #}\n{# c #}\n\nd",
    "{% if true %}{# c #}\n{% endif %}\nx",
    "a{% if true +%}\n b{% endif %}",
    "{ % x % } {a} {{ '{' }} }} %} #}",
    "",
    "\n",
    "no tags at all\n",
]


class Generation(jinja2.ext.Extension):
    """`{% generation %}` without the mask: the text of the block."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def environment():
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    extensions = [Generation, jinja2.ext.loopcontrols, jinja2.ext.do]
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = datetime.datetime.now().strftime
    return env


def rendered(template):
    try:
        tokens = {"eos_token": "</s>", "bos_token": "<s>"}
        return environment().from_string(template).render(messages=MESSAGES, add_generation_prompt=True, **tokens)
    except Exception:  # Jinja2 lets Python's own errors through.
        return None


def main():
    here = pathlib.Path(__file__).parent
    templates = TEMPLATES.strip("\n").split("\n") + LINES
    cases = [{"template": template, "text": rendered(template)} for template in templates]
    with open(here / "cases.jsonl", "w") as out:
        for case in cases:
            out.write(json.dumps(case, ensure_ascii=False) + "\n")
    print(len(cases), "cases,", sum(case["text"] is None for case in cases), "refused")


if __name__ == "__main__":
    main()
