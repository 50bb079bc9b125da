#!/usr/bin/env python3
"""Render the cases below with Jinja2 3.1 and write reference.json, which test_reference.c checks.

Usage: make_reference.py [OUTPUT]. Needs jinja2 >= 3.1. The settings are those of Hugging Face's
apply_chat_template. A case is a name and a source; all see the variables of CONTEXT. For an error
its class and message are kept; of Python's own exceptions (TypeError and the like) only that they
happen is part of the contract.
"""

import datetime
import json
import os
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 2, 3, 4, 5, 6)

CONTEXT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Hi <b>there</b> & \"you\" 'all' — ünïcode 你好\nsecond line  "},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function",
             "function": {"name": "f", "arguments": {"b": 1, "a": [1, 2.5, None, True]}}}]},
        {"role": "user", "content": [{"type": "text", "text": "part"}, {"type": "image"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "get", "parameters": {
        "type": "object", "properties": {"Zed": {"type": "string"}, "alpha": {"type": "integer"}},
        "required": ["alpha"]}}}],
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "n": 7,
    "x": 2.5,
    "words": ["banana", "Apple", "cherry", "apple"],
    "nums": [3, 1, 2, 3],
    "d": {"b": 2, "a": 1, "items": "shadow", "C": 3},
    "empty": "",
    "nothing": None,
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}],
    "people": [{"name": "Zoe", "age": 30, "city": {"n": "Ulm"}},
               {"name": "adam", "age": 25, "city": {"n": "Bern"}},
               {"name": "Bob", "age": 30}],
    "big": {f"key{i}": i for i in range(40)},
}

CASES = {}


def case(name, source):
    assert name not in CASES, name
    CASES[name] = source


def each(group, sources):
    for number, source in enumerate(sources):
        case(f"{group}/{number}", source)


def expressions(group, sources):
    each(group, ["{{ " + source + " }}" for source in sources])


each("whitespace", [
    "a\n", "a\n\n", "\n", "", "a\r\nb\rc\n", "  {% if true %}\n  x\n  {% endif %}\n y",
    "  {%+ if true %}\n  x\n  {%+ endif %}\n y", "a  {%- if true -%}\n\n  x  \n{%- endif -%}\n y",
    "a {# c #}\n b", "a {#- c -#}\n b", "  {# c #}\n b", "  {#+ c +#}\n b", "x {{- 1 -}} y",
    "x {{ 1 }}\ny", "  {{ 1 }}  \n", "{% raw %}{{ a }}{% b %}{% endraw %}", "a{%- raw -%}  b {% endraw -%} c",
    "  {% raw %}\n  b\n  {% endraw %}\n c", "{% raw %}\nb{%- endraw %}", "{{ '{{' }}{{ \"%}\" }}",
    "{% if true %}\t{% endif %}\n\tz", "a\n   {% set q = 1 %}   \nb", "{{ {'a': {'b': 1}}}}", "{{ {'a': 1}['a']}}",
    "{%if n%}y{%endif%}", "{% set a = '''' %}{{ a }}", "{# a\nb #}{{ undefined_thing.x }}", "{%- set a=1 %}\n\n{{a}}",
    "{% if true +%}\nx{% endif %}", "\u00a0{%- if true %}x{% endif %}", "{ % { # {a} }} %} #}", "{{ 1 -}}\n\n x", "{{1}}{{2}}",
    "a{{ '' }}\n", "{% if 1 %}\n\n{% endif %}\n\n", "{% raw %}x", "{# open", "{{ 1", "{% if", "a {%", "{% raw +%}x{% endraw %}",
    "{%- raw +%}", "{#-#}x", "{#- -#}  x", "{%set x=1%}{{x}}", "{{'a'}}{#x#}{{'b'}}", "{{\n1\n}}", "{%\nset q\n=\n2 %}{{ q }}",
])
each("syntax errors", [
    "{% endif %}", "{% if true %}", "{% for x in %}{% endfor %}", "{{ 1 + }}", "{{ (1, 2 }}", "{{ [1, 2) }}",
    "{% unknown %}", "{{ a b }}", "{{ 'x }}", "{{ @ }}", "{{ 1|nofilter }}", "{{ 1 is notest }}",
    "{% set 1 = 2 %}", "{% set a.b.c = 2 %}", "{% macro f(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ }}", "{{ f(**a, *b) }}",
    "{% for loop in [1] %}{% endfor %}", "{% for x in [1] %}{% set loop = 1 %}{% endfor %}", "{{ x is string is string }}",
    "{% call 1 %}{% endcall %}", "{% if true %}{% else %}{% else %}{% endif %}", "{{ a.1b }}", "{{ a[1 2] }}", "{{ {1 2} }}",
    "{% elif true %}", "{% for x in y %}{% endif %}", "{{ not }}", "{{ 1 if }}", "{% set x %}", "{{ }", "{{ '\\u12' }}", "{{ a..b }}", "{{ a. }}",
])
expressions("literals", [
    "1", "1_000", "0x_ff", "0b101", "0o17", "00", "1.5", "1e3", "1.5e-7", "1_0.0_1", "'a\\n\\t\\x41\\u00e9\\\\\\'\\q'", "'a' 'b' \"c\"",
    "true", "True", "none", "None", "false", "[]", "[1, 'a', none]", "(1,)", "(1, 2)", "()", "{}", "{'a': 1, 2: 'b'}", "{'a': 1, 'a': 2}",
    "[1, [2, [3]]]", "{'x': [1, {'y': (1,)}]}", "'it\\'s'", "[\"it's\"]", "['both \\' and \"']", "['\\n\\t\\\\ \\x00 \\u200b é']",
    "[1.0, 1e16, 1e-5, 123456789.123, 1e22, 0.1, 1e15, -0.0]", "1e400", "[true, false, none]", "1,2", "1,", "'\\101\\0'", "'a\\\nb'", "'\\N'",
    "1.e3", "0777" , "9223372036854775807", "[2.0, 100.0, 1.5e300]", "[1e100, 5e-324, 1.7976931348623157e308]",
])
expressions("operators", [
    "1 + 2 * 3", "(1 + 2) * 3", "7 / 2", "7 // 2", "-7 // 2", "7 % 3", "-7 % 3", "7 % -3", "2 ** 10", "2 ** -1", "-2 ** 2", "2 ** 3 ** 2",
    "7.5 // 2", "-7.5 % 2", "1 + 1.5", "6 / 3", "'a' + 'b'", "'a' * 3", "3 * 'ab'", "[1] + [2]", "[0] * 3", "(1,) + (2,)", "'a' ~ 1 ~ none ~ 2.0",
    "1 ~ 2 + 3", "1 + 2 ~ 3", "not true", "not not 1", "1 and 2", "0 and 2", "0 or 'x'", "'' or none or 3", "1 == 1.0", "1 == true", "'a' == 'a'",
    "'a' < 'b'", "1 < 2 < 3", "1 < 3 < 2", "3 > 2 >= 2 != 1", "'a' in 'abc'", "'z' not in 'abc'", "1 in [1, 2]", "'b' in d", "2 in d", "'' in ''",
    "[1, 2] == [1, 2]", "[1] < [1, 2]", "(1, 2) == [1, 2]", "{'a': 1} == {'a': 1.0}", "1 if true", "1 if false", "1 if false else 2", "'a' if 0 else 'b' if 0 else 'c'",
    "+1", "-n", "- -1", "-x", "+true", "-true", "true + true", "5 % 2.5", "1 / 0", "1 // 0", "1 % 0", "1.0 / 0", "'a' + 1", "1 + 'a'", "[] + ()", "'a' - 'b'", "none + 1",
    "-'a'", "1 < 'a'", "none < none", "1 in 5", "1 in 'a'", "nope in 'a'", "'a' in nope", "nope + 1", "nope ~ 1", "nope == nope", "nope == none", "nope != 1", "nope < 1", "not nope",
    "'%s-%d' % ('a', 3)", "'%05.1f|%-5s|%+d|%x|%%' % (2.25, 'ab', 3, 255)", "'%(a)s' % d", "'%s' % 1", "'%r' % 'q'", "'%5s|' % 'é'", "'%d' % 2.7", "'%s' % nope", "'%s %s' % (1,)", "'%s' % (1, 2)",
    "2 is odd", "n is even", "1 + 2 is odd", "-1 is odd", "10 is divisibleby 5", "10 is divisibleby(3)", "0.1 + 0.2", "1e308 * 10", "3.0 * 2", "10 // 3.0", "2 ** 0.5", "4 ** 2.0",
    "[1,2,3] is sameas [1,2,3]", "none is sameas none", "1 is in [1]", "'a' is in 'ab'", "'x' is not in [1]", "1 is eq 1", "2 is gt 1", "2 is lessthan 1", "3 is ge(3)", "1 is ne 2",
    "n == 7 and x == 2.5 or nope", "not n == 7", "not (n in [1])", "1 if n is defined else 2", "(1 if n else 2) + 1", "1 != 2 == true", "a.b if a is defined else 'no'", "'a' 'b' ~ 'c'",
])
expressions("access", [
    "d.a", "d['a']", "d['items']", "d.items()", "d.nope", "d.nope.x", "d['nope']['x']", "messages[0].role", "messages[-1]['content'][0].text", "messages[9]", "messages[9].x",
    "messages[0]['content'][0]", "messages.0.role", "nope.x", "nope['x']", "nope()", "nothing.x", "nothing.x.y", "n.x", "'abc'[1]", "'abc'[-1]", "'abc'[5]", "'你好吗'[1]", "'你好吗'[1:]", "'你好吗'|length",
    "'abcdef'[1:4]", "'abcdef'[::-1]", "'abcdef'[::2]", "'abcdef'[-3:-1]", "'abcdef'[4:1]", "'abcdef'[4:1:-1]", "'你好吗a'[::-2]", "nums[1:]", "nums[:-1]", "nums[::-1]", "nums[10:]", "nums[-10:2]", "(1,2,3)[1:]",
    "range(10)[2:8:2]|list", "range(5)[-1]", "d[1:2]", "nope[1:]", "n[1:]", "'abc'['upper']()", "d.get('a')", "d.get('z')", "d.get('z', 5)", "d.get('z', default=5)", "d.keys()|list", "d.values()|list", "d.items()|list",
    "d.keys()", "{'a': 1}.items()", "d.copy()", "nums.append(1)", "d.update({})", "d.pop('a')", "nums.count(3)", "nums.index(2)", "nums.index(99)", "nums.sort()", "messages.__class__", "''.__class__.__mro__", "n.__add__", "d._x",
    "d['__class__']", "nums.nope", "nums.nope()", "nums['a']", "nums[1.5]", "nums[true]", "nums[none]", "d[[1]]", "{1: 'i', 'k': 's', none: 'n', (1, 2): 't', 1.5: 'f'}[1.0]", "{1: 'i'}[true]", "{(1, 2): 't'}[1, 2]", "{[1]: 2}",
    "big.key39", "big['key40']", "big|length", "'key7' in big", "big == big", "d.__len__()", "'a'.nope", "'a'.nope.x", "nums[0:2:0]", "nums['a':]", "''[0]", "[][0]", "[][-1]", "range(3)[7]", "tools[0].function.parameters.required[0]",
    "range(3)", "range(1, 4)", "range(5, 0, -2)", "range(5, 0, -2)|list", "range(0)", "range(1.5)", "range('a')", "range(1, 2, 0)", "range(100001)|length", "range(100000)|length", "dict(a=1, b=2)", "dict([('a', 1)])", "dict({'a': 1}, b=2)", "dict(1)",
    "n()", "d()", "'x'()", "dict(*[[('q', 1)]])", "dict(**{'k': 1})", "'{}'.format(*[5])", "d.a.b", "d.a.b.c", "nope.a if false else 1",
])
each("undefined", [
    "[{{ nope }}]", "{% if nope %}a{% else %}b{% endif %}", "{% for i in nope %}x{% else %}none{% endfor %}", "{{ nope|length }}", "{{ nope|default('d') }}", "{{ nope.a|default('d') }}",
    "{{ d.q|default('d') }}", "{{ d.q.r|default('d') }}", "{{ nope|list }}", "{{ nope|string }}|", "{{ nope|upper }}|", "{{ nope|join(',') }}|", "{{ nope|tojson }}", "{{ [nope] }}", "{{ nope is defined }}{{ nope is undefined }}{{ nope is none }}",
    "{{ nope is string }}{{ nope is iterable }}{{ nope is sequence }}{{ nope is mapping }}{{ nope is number }}{{ nope is callable }}", "{{ nope|trim }}|", "{{ nope|first }}|", "{{ nope|last }}", "{{ nope|int }}", "{{ nope|float }}", "{{ nope|items|list }}", "{{ nope|dictsort }}", "{{ nope|reverse|list }}",
    "{% set q = nope %}{{ q is defined }}", "{{ (1 if false) is defined }}", "{{ (1 if false).x }}", "{{ nope|map('upper')|list }}", "{{ nope|selectattr('a')|list }}", "{{ nope|sum }}", "{{ nope|sort }}", "{{ nope|replace('a', 'b') }}|", "{{ nope[0] }}", "{{ nope(1) }}", "{{ nope % 2 }}", "{{ -nope }}", "{{ nope|abs }}",
    "{{ nope|indent }}", "{{ nope|safe }}|", "{{ nope|e }}|", "{% set a, b = nope %}", "{{ [nope, 1]|join('-') }}", "{{ nope|unique|list }}", "{{ 'a' if nope else 'b' }}", "{{ nope or 'z' }}", "{{ nope and 1 }}|", "{{ {'a': nope} }}", "{{ nope in [1] }}", "{{ nope in [nope] }}",
    "{{ messages[0].nope == messages[0].nada }}", "{{ nope is sameas nope }}", "{{ nope is eq none }}", "{{ nope|count }}",
])
expressions("tests", [
    "[n is defined, n is none, n is integer, n is float, n is number, n is string, n is boolean]", "[x is integer, x is float, x is number]", "[true is integer, true is number, true is boolean, true is true, 1 is true, false is false]",
    "['' is string, '' is iterable, '' is sequence, '' is mapping]", "[d is mapping, d is iterable, d is sequence, d is string]", "[nums is iterable, nums is sequence, nums is mapping]", "[none is none, none is defined, none is iterable, none is sequence]",
    "[(1,) is sequence, range(2) is sequence, range(2) is iterable, d.items() is iterable, d.items() is sequence, (nums|map('abs')) is iterable]", "['abc' is lower, 'ABC' is upper, 'a1' is lower, '1' is lower, 'aB' is upper]",
    "[range is callable, 'a'.upper is callable, n is callable]", "['upper' is filter, 'nope' is filter, 'odd' is test]", "['a'|safe is escaped, 'a' is escaped]", "namespace(a=1) is mapping", "namespace(a=1) is iterable", "n is not none", "n is not string and n is defined", "'a' is odd", "[1 is sameas 1, 'q' is sameas 1]",
    "[1.0 is integer, 2 is even, 3 is even, 4 is divisibleby 2]", "none is in [none]", "n is nope", "(n is defined) is true", "[1, 2] is eq [1, 2]",
])
expressions("text filters", [
    "'  a b '|trim", "'xxaxx'|trim('x')", "'abc'|upper", "'ABC É'|lower", "'hELLO wORLD'|capitalize", "'hello wORLD-foo (bar) o\\'neil'|title", "'aaa'|replace('a', 'b')", "'aaa'|replace('a', 'b', 2)", "'abc'|replace('', '-')", "123|replace(2, 'x')", "'a'|string", "5|string ~ 1",
    "'<a href=\"x\">\\'&'|e", "'<b>'|safe", "('<b>'|safe) + '<i>'", "'<i>' + ('<b>'|safe)", "('<b>'|safe) ~ '<i>'", "['<b>'|safe, '<i>']|join('&')", "('<b>'|safe)|upper", "('a <b>'|safe).split(' ')", "[('<b>'|safe)]", "('<b>'|safe)|e", "('<b>'|safe)|forceescape", "('a'|safe) == 'a'", "('%s'|safe) % 'x'",
    "'<'|e|length", "('<'|e) + '<'", "('ab'|safe)[0] + '<'", "('a'|safe) * 2 + '<'", "'a\\nb\\n\\nc'|indent", "'a\\nb'|indent(2, true)", "'a\\n\\nb'|indent(2, blank=true)", "'a\\nb'|indent('> ')", "''|indent(first=true)", "'a\\n'|indent", "'a\\r\\nb'|indent", "5|indent", "'a b c'|truncate(3)", "'hello world foo'|truncate(9, true, '..', 0)", "'hello world foo'|truncate(11, false, '...', 0)",
    "'hello big world'|wordcount", "'a'|center(5) ~ '|'", "'ab'|center(5) ~ '|'", "'%s %s'|format(1, 2)", "'%(a)s'|format(a=1)", "'straße ŉ ﬁ'|upper", "'ÀÉÎ'|lower", "'ǆ'|capitalize", "5|upper", "none|upper", "true|lower", "[1]|capitalize", "''|capitalize", "''|title ~ '|'", "'\\u2003a\\u00a0'|trim ~ '|'", "'ab'|reverse", "'你好'|reverse", "none|trim", "7|trim",
    "'a,b'|replace(',', ', ')|title", "'x'|replace('x', '<')|safe", "'abc'|list", "'abc'|first", "'abc'|last", "'a-b_c'|title", "'ONE two'|title", "'x'|e|safe|upper", "'a' * -1 ~ '|'", "'line1\\nline2'|indent(width=3, first=true)", "'\\ta'|indent(1)", "'a\\x0bb'|indent(1)",
])
expressions("sequence filters", [
    "nums|length", "d|length", "5|length", "none|length", "nums|map('string')|list", "nums|map('abs')|length", "nums|list", "d|list", "5|list", "nums|first", "[]|first", "nums|last", "(nums|map('abs'))|last", "nums|reverse|list", "d|reverse|list", "range(3)|reverse|list", "5|reverse", "nums|join", "nums|join(', ')", "nums|join(d=1)", "people|join(',', attribute='name')", "[1, none, 'a', 2.0, [1]]|join('|')",
    "d|dictsort", "d|dictsort(true)", "d|dictsort(by='value')", "d|dictsort(false, 'value', true)", "d|dictsort(reverse=true)", "d|dictsort(by='x')", "nums|dictsort", "{'b': 1, 'A': 2, 'a': 3}|dictsort", "{'a': 1, 2: 1}|dictsort", "d|items|list", "nums|items|list", "words|sort", "words|sort(case_sensitive=true)", "words|sort(reverse=true)", "nums|sort(true)", "[3, 'a']|sort", "people|sort(attribute='age')|map(attribute='name')|list", "people|sort(attribute='age,name')|map(attribute='name')|list", "people[:2]|sort(attribute='city.n')|map(attribute='name')|list",
    "[[2, 'b'], [1, 'z']]|sort", "[[2, 'b'], [1, 'z']]|sort(attribute=0)", "[[2, 'b'], [1, 'z']]|sort(attribute='1')", "words|unique|list", "words|unique(true)|list", "people|unique(attribute='age')|map(attribute='name')|list", "nums|unique|list", "[[1], [1]]|unique|list", "nums|batch(3)|list", "nums|batch(3, 0)|list", "nums|slice(3)|list", "nums|slice(3, 'x')|list", "nums|min", "nums|max", "words|min", "words|max(case_sensitive=true)", "people|max(attribute='age')", "[]|max", "[1, 'a']|min",
    "people|map(attribute='name')|list", "people|map(attribute='city.n')|list", "people|map(attribute='city.n', default='-')|list", "people|map(attribute='nope')|list", "words|map('upper')|list", "words|map('replace', 'a', 'o')|list", "[[1, 2], [3]]|map('join', '-')|list", "nums|map('nofilter')|list", "nums|map|list", "words|map(attribute=0)|list", "[' a ', 'b ']|map('trim')|join('+')", "nums|select('odd')|list", "nums|select|list", "[0, 1, '', 'a', none]|select|list", "nums|reject('odd')|list", "nums|select('gt', 2)|list", "nums|select('in', [1, 2])|list", "nums|reject('==', 3)|list", "nums|select('nope')|list",
    "people|selectattr('age', 'eq', 30)|map(attribute='name')|list", "people|selectattr('city')|list|length", "people|rejectattr('city')|map(attribute='name')|list", "people|selectattr('city.n', 'defined')|list|length", "people|rejectattr('age', 'equalto', 30)|map(attribute='name')|first", "messages|selectattr('role', 'equalto', 'user')|list|length", "messages|rejectattr('role', 'in', ['user', 'system'])|list|length", "none|selectattr('a')|list", "none|map('upper')|list", "0|select|list", "none|list", "people|selectattr|list", "people|groupby('age')", "people|groupby('age')|map('first')|list", "people[:2]|groupby('city.n')|length", "people|groupby('name')|map('first')|list",
    "people|sum(attribute='age')", "nums|sum", "nums|sum(start=10)", "[[1], [2]]|sum(start=[])", "['a']|sum", "d|attr('a')|default('none')", "'a'|attr('upper') is callable", "{'get': 1}|attr('get') is callable", "nums|count", "nums|d", "''|d('x')", "''|d('x', true)", "none|default('x')", "none|default('x', boolean=true)", "false|default(1, true)", "nope|d", "nope|default",
    "(nums|select) is defined", "'t' if (nums|select('gt', 99)) else 'f'", "(nums|map('string'))[0]", "(nums|map('string'))[0] is defined", "d.items()|first", "d.items()|map('last')|list", "d.values()|sum if false else 0", "nums|sort|first", "range(4)|sum", "range(3)|join(',')", "range(3)|map('string')|list", "'abc'|sort|join", "'cab'|unique|join", "(1, 2)|list", "[(1, 2)]|map('last')|list", "d.keys()|sort", "d.keys()|length", "d.items()|length", "big|dictsort|length", "big|sort|first",
    "nums|first|string|upper", "nums|tojson|length", "nums|map('tojson')|join", "nums|map(attribute='real')|list|length", "[]|join ~ '|'", "{}|join ~ '|'", "d|join(',')", "'abc'|join('-')", "5|join", "nums|length|string",
])
expressions("number filters", [
    "'42'|int", "' 42 '|int", "'4_2'|int", "'x'|int", "'x'|int(7)", "'x'|int(default=8)", "'0x1f'|int(base=16)", "'1f'|int(0, 16)", "'ff'|int(base=16)", "'0b11'|int(0, 2)", "'0x10'|int(base=0)", "3.9|int", "-3.9|int", "'3.9'|int", "'1e3'|int", "true|int", "none|int", "[]|int", "''|int", "'-5'|int", "'+5'|int", "'--5'|int", "'1__0'|int", "'_1'|int", "'inf'|int", "'nan'|int",
    "'1.5'|float", "'x'|float", "'x'|float(1.0)", "none|float", "3|float", "'1e3'|float", "'inf'|float", "'nan'|float", "'0x10'|float", "'1_0.5'|float", "' 1.5 '|float", "true|float", "'.5'|float", "'5.'|float", "-5|abs", "-2.5|abs", "'a'|abs", "2.5|round", "3.5|round", "2.675|round(2)", "42.55|round(1, 'floor')", "42.45|round(1, 'ceil')", "5|round", "1234|round(-2)", "1250|round(-2)", "2.5|round|int", "2.5|round(0, 'nope')", "'a'|round", "true|round", "-0.5|round", "1e300|round(2)", "0.1|round(20)", "15.5|round(-1)",
])
expressions("tojson", [
    "d|tojson", "messages|tojson", "messages[1].content|tojson", "n|tojson", "x|tojson", "none|tojson", "true|tojson", "'é\\u2028\"\\\\/\\n\\t\\x01\\x7f'|tojson", "'é你😀\\n\\x7f\"'|tojson(ensure_ascii=true)", "[]|tojson", "{}|tojson", "[[], {}]|tojson(indent=2)", "d|tojson(indent=4)", "tools|tojson(indent=2)", "d|tojson(indent=0)", "[1, 2]|tojson(indent='--')", "d|tojson(separators=(',', ':'))", "d|tojson(separators=[',', ':'], indent=1)", "d|tojson(sort_keys=true)",
    "{'b': {'z': 1, 'a': 2}, 'a': []}|tojson(sort_keys=true, indent=2)", "(1, 2)|tojson", "{1: 2, none: 3, true: 4, 1.5: 5}|tojson", "{(1, 2): 3}|tojson", "range(3)|tojson", "d.items()|tojson", "[nope]|tojson", "namespace(a=1)|tojson", "[1.0, 1e16, 1e-7, 1e400, -1e400]|tojson", "('<'|safe)|tojson", "'<>&'|tojson", "d|tojson|length", "{'a': 1, 2: 3}|tojson(sort_keys=true)", "d|tojson(nope=1)", "d|tojson(indent=none)", "nums|map('tojson')|list", "[1, [2, {'a': []}]]|tojson(indent=1)", "'\\ud7ff\\ue000'|tojson(ensure_ascii=true)", "big|tojson|length", "[none]|tojson(2)", "[1, 2]|tojson(false, 2)",
])
expressions("string methods", [
    "'a b c'.split()", "' a  b '.split()", "'a,b,c'.split(',')", "'a,b,c'.split(',', 1)", "'a b c d '.split(none, 1)", "' a b'.split(maxsplit=0)", "''.split()", "''.split(',')", "'abc'.split('')", "'a,b,c'.rsplit(',', 1)", "' a b c '.rsplit(none, 1)", "'a--b'.split('--')", "'</think>x</think>y'.split('</think>')[-1]", "'x'.split('</think>')[0]", "'  a '.strip()", "'xxaxx'.strip('x')", "'xyaxy'.lstrip('xy')", "'a\\n\\n'.rstrip('\\n')", "'  a '.lstrip() ~ '|'", "'  a '.rstrip() ~ '|'", "'a'.strip(none)", "'a'.strip(1)",
    "'abc'.startswith('ab')", "'abc'.startswith(('x', 'a'))", "'abc'.endswith('bc')", "'abc'.endswith(('x',))", "'abc'.startswith('b', 1)", "'abc'.endswith('b', 0, 2)", "'abc'.startswith(1)", "'abc'.startswith('')", "'abc'.startswith('', 9)", "'aXbX'.replace('X', '-')", "'aXbX'.replace('X', '-', 1)", "'a'.replace('a')", "'Ab'.upper()", "'Ab'.lower()", "'they\\'re bill\\'s'.title()", "'hELLO'.capitalize()", "'aB'.swapcase()", "'ABC'.casefold()", "'你好吗'.find('吗')", "'abc'.find('z')", "'abcabc'.find('c', 3)", "'abcabc'.rfind('c')", "'abcabc'.find('a', -3)", "'abc'.index('c')", "'abc'.index('z')",
    "'banana'.count('an')", "'banana'.count('')", "'banana'.count('a', 2)", "'a\\nb\\r\\nc\\n'.splitlines()", "'a\\nb'.splitlines(true)", "''.splitlines()", "'a=b=c'.partition('=')", "'a=b=c'.rpartition('=')", "'abc'.partition('=')", "'abc'.rpartition('=')", "'prefix-x'.removeprefix('prefix-')", "'x.py'.removesuffix('.py')", "'-'.join(['a', 'b'])", "'-'.join([1])", "'-'.join('abc')", "'a'.center(5, '*')", "'ab'.center(5, '*')", "'ab'.center(6, '*') ~ 'abc'.center(6, '*')", "'a'.ljust(3) ~ '|'", "'a'.rjust(3, '0')", "'-5'.zfill(4)", "'abc'.zfill(2)",
    "'{} {}'.format(1, 'a')", "'{0}{1}{0}'.format('a', 'b')", "'{a}-{b.c}'.format(a=1, b={'c': 2})", "'{a[x]}'.format(a={'x': 5})", "'{0[1]}'.format([1, 2])", "'{:>5}|{:<5}|{:^5}|{:*^5}'.format('a', 'b', 'c', 'd')", "'{:05d} {:x} {:+} {:,} {:b} {:#x}'.format(42, 255, 3, 1234567, 5, 255)", "'{:.2f} {:8.3f} {:e} {:g} {:.1%}'.format(3.14159, 2.5, 12345.678, 0.0001, 0.256)", "'{{}} {!r} {!s}'.format('a', 'b')", "'{'.format(1)", "'}'.format(1)", "'{}'.format()", "'{x}'.format()", "'{:d}'.format('a')", "'{} {}'.format(1.5, none)", "'{:.2}'.format('abcdef')", "'{:5}|{:5}|{:5}'.format(1, 'a', 1.5)", "'{:s}'.format(1)", "'{a.__class__}'.format(a=1)", "'{:,.2f}'.format(1234567.891)",
    "['a1'.isalnum(), 'ab'.isalpha(), '12'.isdigit(), ' '.isspace(), ''.isspace(), 'AB'.isupper(), 'ab'.islower(), 'a b'.isalpha()]", "'a'.upper(1)", "'a'.nope()", "'a' 'b'.upper()", "'abc'.join(['x', 'y'])", "'ab'.split('b')", "'é'.upper() ~ 'É'.lower()",
])
each("set", [
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}", "{% set a, b = [1] %}", "{% set a, b = [1, 2, 3] %}", "{% set a, b = 5 %}", "{% set a, b = 'xy' %}{{ a }}{{ b }}", "{% set a %}x{{ n }}{% endset %}[{{ a }}]", "{% set a | upper %}x{{ n }}y{% endset %}{{ a }}", "{% set a | replace('x', 'y') | upper %}xx{% endset %}{{ a }}", "{% set n = n + 1 %}{{ n }}", "{% if true %}{% set q = 1 %}{% endif %}{{ q }}", "{% if false %}{% set q = 1 %}{% endif %}{{ q is defined }}", "{% if false %}{% set n = 1 %}{% endif %}{{ n }}",
    "{% for i in [1] %}{% set q = 1 %}{% endfor %}{{ q is defined }}", "{% set q = 0 %}{% for i in [1, 2] %}{% set q = q + i %}{{ q }}{% endfor %}{{ q }}", "{% set ns = namespace(a=0) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}", "{% set ns = namespace() %}{% set ns.x = 1 %}{{ ns.x }}{{ ns.y is defined }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}", "{% set d.x = 1 %}", "{% set nope.x = 1 %}", "{% set ns = namespace(a=1) %}{{ ns.zz.q }}", "{% set ns = namespace(a=1, items=2) %}{{ ns.items }}", "{% set ns = namespace(a=1, b='x') %}{{ ns }}", "{% set ns = namespace(a=1) %}{% set ns.b, c = 1, 2 %}{{ ns.b }}{{ c }}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z is defined }}", "{% with n = 1, q = n %}{{ q }}{% endwith %}", "{% set a = 1 if n else 2 %}{{ a }}", "{% set a = 1, %}{{ a }}", "{% set a %}{% set b = 1 %}{% endset %}{{ b is defined }}", "{% filter upper %}a{{ n }}b{% endfilter %}", "{% filter replace('a', 'b')|upper %}aa{% endfilter %}", "{% print n %}", "{% set range = 5 %}{{ range }}", "{% set true = 1 %}", "{% generation %}a{{ n }}{% endgeneration %}b", "{% generation %}{% set g = 1 %}{% endgeneration %}{{ g is defined }}", "{% for i in [1, 2] %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{% set x = namespace(l=[]) %}{% for i in nums %}{% set x.l = x.l + [i] %}{% endfor %}{{ x.l }}", "{% set s = 'a' %}{% set t = s + 'b' %}{% set u = s + 'c' %}{{ s }}{{ t }}{{ u }}", "{% set s = 'a' + 'b' %}{% set t = s + 'c' %}{% set u = s + 'd' %}{% set v = t + 'e' %}{% set w = t + 'f' %}{{ s }} {{ t }} {{ u }} {{ v }} {{ w }}", "{% set ns = namespace(s='') %}{% for i in range(50) %}{% set ns.s = ns.s + 'xyz' ~ i %}{% endfor %}{{ ns.s }}{{ ns.s|length }}",
])
each("for", [
    "{% for i in nums %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}", "{% for i in [] %}x{% else %}e{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in 'héy' %}{{ c }}.{% endfor %}", "{% for i in nums if i > 1 %}{{ i }}{{ loop.index }}{{ loop.length }}{{ loop.last }} {% endfor %}", "{% for i in nums if i > 9 %}x{% else %}none{% endfor %}", "{% for i in nums %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for i in nums %}[{{ loop.previtem }}|{{ loop.nextitem }}]{% endfor %}", "{% for i in nums %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for i in nums %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in [1, 1, 2, 2] %}{{ loop.changed(i) }}{% endfor %}", "{% for i in nums %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in nums %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in [1, 2] %}{% for j in [1, 2, 3] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{{ loop.index }}{% endfor %}", "{% for i in [1] %}{% break %}{% else %}e{% endfor %}x",
    "{% for n in tree recursive %}{{ n.v }}{{ loop.depth }}{{ loop.depth0 }}{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}", "{% for i in nums %}{{ loop(nums) }}{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for i in none %}{% endfor %}", "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for i in range(3) %}{{ i }}{% endfor %}{{ i is defined }}", "{% for m in messages %}{{ loop.index0 }}:{{ m.role }}{% for p in m.content if m.content is iterable and m.content is not string %}{{ p.type }}{{ loop.index }}{% endfor %} {% endfor %}",
    "{% for x in nums %}{% endfor %}{{ x }}", "{% for i in [1, 2, 3] %}{% set v %}{% if i == 2 %}{% continue %}{% endif %}v{{ i }}{% endset %}{{ v }}{% endfor %}", "{% for i in nums|sort %}{{ i }}{% endfor %}", "{% for i in nums|select('gt', 1) %}{{ i }}{{ loop.last }}{{ loop.length }}{% endfor %}", "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}", "{% for i in (1, 2) if i == 2 recursive %}{{ i }}{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}{{ v }}{% endfor %}", "{% for k, v in d|items %}{{ k }}{{ v }}{% endfor %}", "{{ loop is defined }}", "{% for i in [1,2] %}{% for j in [3] %}{{ loop.index }}{{ loop.length }}{% endfor %}{{ loop.length }}{% endfor %}", "{% set it = nums|map('abs') %}{% for i in it %}{{ i }}{% endfor %}|{% for i in it %}{{ i }}{% endfor %}", "{% set it = nums|map('abs') %}{{ it|first }}{{ it|list }}{{ it|list }}", "{% break %}", "{% for i in nums %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for messages in [messages[0]] %}{{ messages.role }}{% endfor %}{{ messages|length }}", "{% for i in nums %}{% if loop.first %}F{% elif loop.last %}L{% else %}{{ loop.index }}{% endif %}{% endfor %}", "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }}{% else %}E{% endfor %}{% endfor %}", "{% for m in messages[::-1] %}{{ m.role }} {% endfor %}", "{% for i in [3] %}{{ loop.nope is defined }}{{ loop.nope }}{% endfor %}", "{% for i in [3] %}{{ loop.nope.x }}{% endfor %}", "{% for i in [[1, 2], [3]] %}{{ i|sum }}{{ loop.index * 2 }}{% endfor %}", "{% for i in nums %}{{ loop['index'] }}{% endfor %}",
])
each("if", [
    "{% if n == 7 %}a{% elif n == 8 %}b{% else %}c{% endif %}", "{% if n == 8 %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif '' %}b{% elif [] %}c{% elif {} %}d{% else %}e{% endif %}", "{% if 1, %}t{% endif %}", "{% if not n %}a{% endif %}", "{% if n and not nothing %}a{% endif %}", "{% if range(0) %}a{% else %}b{% endif %}", "{% if d.items() %}a{% endif %}", "{% if x is defined and x is not none and x > 2 %}y{% endif %}", "{% if false %}{{ 1|nofilter }}{% endif %}ok", "{% if true %}{{ 1|nofilter }}{% endif %}", "{% if 'a' in 'abc' and 'z' not in 'abc' %}y{% endif %}", "{% if (n) %}1{% endif %}", "{% if n: %}x{% endif %}", "{% if namespace() %}t{% endif %}", "{% if 0.0 %}a{% else %}b{% endif %}", "{% if ' ' %}a{% endif %}", "{% if messages[0].content is string and messages[2].content is none %}y{% endif %}",
])
each("macro", [
    "{% macro f(a, b=2) %}[{{ a }},{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=4) }}{{ f() }}", "{% macro f() %}{{ n }}{% endmacro %}{{ f() }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(z=2) }}", "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, q=3) }}", "{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f(1, 2, 3) }}", "{% macro f(x) %}{{ x }}{{ caller() }}{% endmacro %}{% call f(1) %}body{{ n }}{% endcall %}", "{% macro f() %}{{ caller('q') }}{% endmacro %}{% call(v) f() %}<{{ v }}>{% endcall %}", "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}", "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}", "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro f() %}{% set q = 1 %}{% endmacro %}{{ f() }}{{ q is defined }}", "{% set q = 1 %}{% macro f() %}{{ q }}{% endmacro %}{% set q = 2 %}{{ f() }}", "{% for i in [1, 2] %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}", "{% macro f() %}{{ i }}{% endmacro %}{% for i in [1] %}[{{ f() }}]{% endfor %}", "{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(3) }}", "{% macro f() %}x{% endmacro %}{{ f()|upper }}{{ f() + 'y' }}{{ f() is string }}", "{% macro f(m) %}{% if m %}{{ m }}{% endif %}{% endmacro %}{% set r = f('') %}[{{ r }}]{{ r == '' }}", "{{ f() }}{% macro f() %}{% endmacro %}", "{% macro f(a) %}{{ a.b.c }}{% endmacro %}{{ f() }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f is callable }}", "{% macro f(a=[]) %}{{ a }}{% endmacro %}{{ f() }}{{ f(*[1]) }}{{ f(**{'a': 2}) }}",
    "{% if true %}{% macro f() %}x{% endmacro %}{% endif %}{{ f() }}", "{% macro f() %}{%- for i in nums -%}{{ i }}{%- endfor -%}{% endmacro %}{{ f() }}", "{% macro f(x) %}{% if x is mapping %}{{ '{' }}{% for k, v in x|dictsort %}{{ k }}:{{ f(v) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}{% elif x is iterable and x is not string %}[{% for i in x %}{{ f(i) }};{% endfor %}]{% else %}{{ x }}{% endif %}{% endmacro %}{{ f(tools) }}", "{% macro f() %}<&>{% endmacro %}{{ f()|e }}{{ f() }}", "{% macro outer() %}{% macro inner() %}i{{ n }}{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}", "{% macro f(a, a2=1, *b) %}{% endmacro %}", "{% macro f(tools) %}{% for tool in tools %}{{ tool.function.name }}{% endfor %}{% endmacro %}{{ f(tools) }}", "{% macro m(x) %}{% set x = x ~ '!' %}{{ x }}{% endmacro %}{{ m('a') }}{{ m('b') }}", "{% macro m() %}{% if zz is not defined %}{% set zz = 'dflt' %}{% endif %}{{ zz }}{% endmacro %}{{ m() }}{{ zz is defined }}",
])
each("loop filters", [
    "{% set ns = namespace(f=false) %}{% for i in nums if not ns.f %}{{ i }}{% set ns.f = true %}{% endfor %}",
    "{% set ns = namespace(f=false) %}{% for i in nums if not ns.f %}{{ i }}{{ loop.last }}{% set ns.f = true %}{% endfor %}",
    "{% set ns = namespace(s=0) %}{% for i in nums if ns.s + i < 5 %}{{ i }}{% set ns.s = ns.s + i %}{% else %}none{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s=0) %}{% for i in nums if ns.s + i < 5 %}{{ i }}/{{ loop.length }}{% set ns.s = ns.s + i %}{% endfor %}",
    "{% set ns = namespace(s=0) %}{% for i in nums if i > ns.s %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {{ loop.revindex }}{% set ns.s = 2 %}{% endfor %}",
    "{% for k, v in [[1, 2], [3]] if k %}{{ k }}{{ v }}{% break %}{% endfor %}", "{% for i in [2, 1, 0] if 2 % i == 0 %}{{ i }}{% if i == 1 %}{% break %}{% endif %}{% endfor %}",
    "{% for i in nums if i > 5 %}{{ i }}{% else %}none{% endfor %}", "{% for i in nums if i > 1 %}{% for j in nums if j > i or loop.first %}{{ i }}{{ j }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for t in tree if t.v recursive %}{{ t.v }}{{ loop.last }}({{ loop(t.c) }}){% endfor %}", "{% for i in nums if i %}{{ loop|length }}{% if loop %}y{% endif %}{% endfor %}",
    "{% set ns = namespace(l=none) %}{% for i in nums if i > 1 %}{% set ns.l = loop %}{% break %}{% endfor %}{{ ns.l.index }}",
    "{% set ns = namespace(l=none) %}{% for i in nums if ns.l is none or ns.l.index < 3 %}{{ i }}{% set ns.l = loop %}{% endfor %}{{ ns.l.index }}",
    "{% set ns = namespace(f=true) %}{% for m in messages if m.role != 'system' and ns.f %}{{ m.role }}{% set ns.f = m.role == 'user' %}{% endfor %}",
])
each("functions", [
    "{{ raise_exception('no: ' ~ n) }}", "{{ raise_exception() }}", "{{ raise_exception(5) }}", "{{ strftime_now('%Y-%m-%d') }}", "{{ strftime_now('%d %b %Y %H:%M:%S %A %B %j %p %I %y %%') }}", "{{ strftime_now('') }}|", "{{ strftime_now(5) }}", "{{ strftime_now('é %d') }}", "{% if messages[0].role != 'user' %}{{ raise_exception('Roles \"must\" alternate — 你好') }}{% endif %}", "{{ dict(a=1).a }}", "{{ namespace(a=1).a }}", "{{ range(n)|list|length }}", "{{ 'x' if raise_exception is defined }}", "{{ bos_token }}{{ eos_token }}{{ pad_token }}|", "{{ add_generation_prompt }}",
    "a{{ d.q.z }}", "{{ nums[0].x.y }}", "{{ ''.x.y }}", "{{ none.x.y }}", "{{ messages[0].content.role.x }}", "{{ d[5].x }}", "{{ nums['q'].x }}", "{{ nums[77].x }}", "{{ namespace(a=1).b.c }}", "{{ (1, 2).a.b }}", "{{ x.a.b }}", "{{ true.a.b }}", "{{ n.a.b }}", "{{ messages.a.b }}",
])


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


class Generation(jinja2.ext.Extension):
    """The `generation` tag, which renders its body in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_generation_support")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _generation_support(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(source):
    env = environment()
    try:
        template = env.from_string(source)
    except (jinja2.exceptions.TemplateSyntaxError, SyntaxError) as error:
        return {"compile_error": str(error)}
    try:
        return {"output": template.render(**CONTEXT)}
    except Exception as error:  # every exception is a result here
        return {"error": str(error), "class": type(error).__name__}


def main():
    assert jinja2.__version__.startswith("3.1."), jinja2.__version__
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference.json")
    if len(sys.argv) > 1:
        path = sys.argv[1]
    cases = [{"name": name, "template": source, **render(source)}
             for name, source in CASES.items()]
    for entry in cases:
        assert " at 0x" not in entry.get("output", ""), entry
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"jinja2": jinja2.__version__, "context": CONTEXT, "cases": cases}, file,
                  ensure_ascii=False, indent=0)
        file.write("\n")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
