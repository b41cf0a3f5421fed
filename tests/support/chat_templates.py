"""Chat templates, by how their work grows with the chat."""

from __future__ import annotations

PLAIN = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "first message apart": "{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{{ system }}"
    "{% for m in messages %}{{ m.content | trim }}{% endfor %}",
    "tools and calls": "{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}"
    "{% for m in messages %}{% if m.tool_calls is defined %}{% for call in m.tool_calls %}"
    "{% for name, value in call.function.arguments | items %}{{ name ~ '=' ~ (value | tojson) }}{% endfor %}"
    "{% endfor %}{% endif %}{% endfor %}",
    "thinking cut off": "{% for m in messages %}{% set content = m.content %}{% if '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ content }}{% endfor %}",
    "one branch or the other": "{% for m in messages %}{% if m.content is string %}"
    "{% set content = m.content %}"
    "{% else %}{% set content = '' %}{% endif %}{{ content | trim }}{% endfor %}",
    "neighbours": "{% for m in messages %}"
    "{% if loop.index0 > 0 and messages[loop.index0 - 1].role == 'tool' %}"
    "x{% endif %}{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}y{% endif %}{% endfor %}",
    "a counter": "{% set ns = namespace(i=0) %}{% for m in messages %}"
    "{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('no') }}{% endif %}"
    "{% set ns.i = ns.i + 1 %}{% endfor %}",
    "a place from behind": "{% set ns = namespace(last=messages | length - 1, found=false) %}"
    "{% for m in messages[::-1] %}{% set index = (messages | length - 1) - loop.index0 %}"
    "{% if not ns.found and m.role == 'user' %}{% set ns.found = true %}{% set ns.last = index %}{% endif %}"
    "{% endfor %}",
    "a date": "{{ strftime_now('%d %b %Y') }}",
    "a prefix": "{% set prefix = messages[0].content + '\n\n' %}{% for m in messages %}"
    "{{ (prefix if loop.first else '') + m.content }}{% endfor %}",
    "a macro": "{% macro text(content, last=false) %}{% if content is string %}{{ content }}{% else %}"
    "{% for part in content %}{{ part.text }}{% endfor %}{% endif %}{% endmacro %}"
    "{% for m in messages %}{% set content = text(m.content, loop.last) | trim %}{{ content }}{% endfor %}",
    "parts": "{% for m in messages %}"
    "{% for part in m.content %}{{ part.text | trim }}{% endfor %}{% endfor %}",
}
QUADRATIC = {
    "all in each": "{% for m in messages %}"
    "{% for other in messages %}{{ other.role }}{% endfor %}{% endfor %}",
    "the same in each": "{% for m in messages %}{% if 'x' in messages[0].content %}{% endif %}{% endfor %}",
    "an outer turn's": "{% for m in messages %}"
    "{% for c in m.content %}{{ m.content | trim }}{% endfor %}{% endfor %}",
    "a macro of all in each": "{% macro all() %}{{ messages[0].content }}{% endmacro %}"
    "{% for m in messages %}{{ all() }}{% endfor %}",
    "a macro that shadows": "{% macro of(m) %}{{ message }}{% endmacro %}"
    "{% for message in messages %}{{ of(1) }}{% endfor %}",
    "one branch alone": "{% set text = messages[0].content %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set text = m.content %}{% endif %}{{ text | upper }}{% endfor %}",
    "tools in each": "{% for m in messages %}{{ tools | tojson }}{% endfor %}",
}
UNPROVEN = {
    "a number that may be told": "{% set n = namespace(i=0) %}"
    "{% set n.i = messages[0].content | int('%999999999d') %}{{ n.i % 2 }}",
    "endless loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "doubling": "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "growing by a letter": "{% set n = namespace(x='a') %}"
    "{% for m in messages %}{% set n.x = n.x ~ 'a' %}{% endfor %}",
    "a namespace that is taken over": "{% set n = namespace(i=0) %}{% set n = given %}{{ n.i % 2 }}",
    "doubling by messages": "{% set n = namespace(x='a') %}"
    "{% for m in messages %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling by a variable between": "{% set n = namespace(x='a') %}{% for m in messages %}"
    "{% set y = n.x ~ n.x %}{% set n.x = y %}{% endfor %}",
    "doubling by parts of what was kept": "{% set n = namespace(x=['a']) %}"
    "{% for m in messages %}"
    "{% for c in n.x %}{% set t = c ~ c %}{% set n.x = t.split(',') %}{% endfor %}{% endfor %}",
    "doubling by a macro between": "{% macro f(t) %}{{ t }}{{ t }}{% endmacro %}"
    "{% set n = namespace(x='a') %}"
    "{% for m in messages %}{% set n.x = f(n.x) %}{% endfor %}",
    "doubling in a macro": "{% set n = namespace(x='a') %}{% macro f() %}{% set y = n.x ~ n.x %}"
    "{% set n.x = y %}{% endmacro %}{% for m in messages %}{{ f() }}{% endfor %}",
    "doubling in a row": "{% set x = messages[0].content %}" + "{% set x = x ~ x %}" * 40 + "{{ x }}",
    "doubling by names": "{% set x = 'a' %}{% set y = 'b' %}" + "{% set x = x ~ y %}{% set y = y ~ x %}" * 20,
    "doubling by joining": "{% set x = messages[0].content %}" + "{% set x = [x, x] | join %}" * 40,
    "doubling lists": "{% set x = 'a' %}" + "{% set x = [x, x] %}" * 40 + "{{ x }}",
    "doubling namespaces": "{% set a = namespace() %}{% set b = namespace(x=a, y=a) %}{{ b }}",
    "growing by replacing": "{% set x = messages[0].content %}" + "{% set x = x | replace('a', 'aa') %}" * 40,
    "replacing by what was sent": "{{ messages[0].content | replace('a', messages[0].content) }}",
    "joining by what was sent": "{{ messages | map(attribute='role') | join(messages[0].content) }}",
    "a width": "{{ '%999999999d' | format(1) }}",
    "a width by an operator": "{{ '%999999999d' % 1 }}",
    "a width that was sent": "{{ messages[0].content % 1 }}",
    "a width in a name": "{% if false %}{% set ns = namespace(i=0) %}{% endif %}{{ ns.i % 2 }}",
    "a width in a date": "{{ strftime_now('%999999999d') }}",
    "odd": "{{ messages[0].content is odd }}",
    "divided": "{{ messages[0].content is divisibleby 3 }}",
    "centre": "{{ 'a'.center(10**9) }}",
    "centre as a filter": "{{ 'a' | center(1000000000) }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "batch": "{{ [1] | batch(1000000000, 0) | list | length }}",
    "indent": "{{ '' | indent(1000000000) }}",
    "indented JSON": "{{ messages | tojson(indent=1000000000) }}",
    "indented by what was sent": "{{ messages | tojson(indent=width) }}",
    "a product": "{{ 'a' * 1000000 }}",
    "macros within macros": "{% macro f(x) %}{{ x ~ x }}{% endmacro %}"
    "{% set x = messages[0].content %}" + "{% set x = f(x) %}" * 40,
    "a macro that calls itself": "{% macro f(x) %}{% if x %}{{ f(x[1:]) ~ f(x[1:]) }}{% endif %}"
    "{% endmacro %}"
    "{{ f(messages[0].content) }}",
    "macros that call each other": "{% macro f() %}{{ g() }}{% endmacro %}"
    "{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a macro with two meanings": "{% macro f(x) %}{% endmacro %}"
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1) }}",
    "a macro that is a variable": "{% macro f(x) %}{% endmacro %}{% set f = 1 %}{{ f(1) }}",
    "a macro with more than it names": "{% macro f() %}{{ varargs }}{% endmacro %}{{ f(messages) }}",
    "a macro's caller": "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}x{% endcall %}",
    "macros in a tower": "".join(
        f"{{% macro f{i + 1}() %}}" + f"{{{{ f{i}() }}}}" * 10 + "{% endmacro %}" for i in range(1, 9)
    )
    + "{{ f9() }}",
    "a block that is set": "{% set x %}{{ messages }}{% endset %}",
    "recursion": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "text of the library": "{{ lipsum(1000000) }}",
    "letters as a list": "{{ messages[0].content | list }}",
    "an unknown filter by name": "{{ messages | map('center', 1000000000) | list }}",
    "an include": "{% include 'x' %}",
    "long": "{{ messages }}" * 6_000,
}
