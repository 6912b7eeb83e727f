#!/usr/bin/env python3
"""Makes chat.json: what transformers' apply_chat_template writes for some conversations.

The templates are written down from knowledge of the released models' own, without their
branches for images; tool branches are kept where they bear on how a frame is recognised.
They are not copies of the released files. qwen3 and llama31 are believed word for word in
the plain-chat part, smollm2's is as it stands in a released GGUF file. qwen35, kimi,
deepseek31, glm46 were written after the released ones had been read; deepseek32 stands for
the code that this model has instead of a template; of glm5 the answers and the prompt had
been read, of glm53 texts for some conversations. From memory: ministral3 (its default
system text is our own), deepseek3, r1. `zoo` is the example pair's.

Run: python3 tests/golden/tokenizers/chat.py (transformers 5.24, jinja2; seconds).
"""
import json
import os

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))

QWEN2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
         "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
         "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
         "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\n" }}
    {{- "<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

QWEN3 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\n<|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

SMOLLM2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
           "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
           "Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
           "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
           "{{ '<|im_start|>assistant\n' }}{% endif %}")

ZOO = ("{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
       "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")

LLAMA31 = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message + builtin tools #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

LLAMA30 = ("{% set loop_messages = messages %}{% for message in loop_messages %}"
           "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
           "+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
           "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
           "{% endif %}")

MINISTRAL3 = r"""{#- Default system message if no system prompt is passed. #}
{%- set default_system_message = 'You are a model.\nIt\'s said that you answer "well".' %}

{#- Begin of sequence token. #}
{{- bos_token }}

{#- Handle system prompt if it exists. #}
{%- if messages[0]['role'] == 'system' %}
    {{- '[SYSTEM_PROMPT]' + messages[0]['content'] + '[/SYSTEM_PROMPT]' }}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
    {%- if default_system_message != '' %}
        {{- '[SYSTEM_PROMPT]' + default_system_message + '[/SYSTEM_PROMPT]' }}
    {%- endif %}
{%- endif %}

{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user and assistant roles.') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST]' + message['content'] + '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported.') }}
    {%- endif %}
{%- endfor %}
"""

QWEN35 = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content|trim + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(question=-1) %}
{%- for message in messages %}
    {%- set text = message.content|trim %}
    {%- if message.role == 'user' and not (text.startswith('<tool_response>') and text.endswith('</tool_response>')) %}
        {%- set ns.question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- if ns.question < 0 %}
    {{- raise_exception('No user query found in messages.') }}
{%- endif %}
{%- for message in messages %}
    {%- set text = message.content|trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif %}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\n' + text + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if '</think>' in text %}
            {%- set thought = text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set text = text.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.question %}
            {{- '<think>\n' + thought|trim + '\n</think>\n\n' }}
        {%- endif %}
        {{- text + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}
    {%- else %}
        {{- '<|im_start|>assistant\n<think>\n' }}
    {%- endif %}
{%- endif %}
"""

KIMI = """{%- for message in messages -%}
  {%- if loop.first and message['role'] != 'system' -%}
    {{ '<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>' }}
  {%- endif -%}
  {%- if message['role'] == 'system' -%}
    {{ '<|im_system|>system<|im_middle|>' }}
  {%- elif message['role'] == 'user' -%}
    {{ '<|im_user|>user<|im_middle|>' }}
  {%- else -%}
    {{ '<|im_assistant|>assistant<|im_middle|>' }}
  {%- endif -%}
  {{- message['content'] + '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<|im_assistant|>assistant<|im_middle|>' }}
{%- endif -%}
"""

DS_SYSTEM = """{%- set ns = namespace(is_output_first=true, is_first_sp=true, system='', asked=false) -%}
{%- for message in messages if message['role'] == 'system' -%}
  {%- set ns.system = ns.system + ('' if ns.is_first_sp else '\n\n') + message['content'] -%}
  {%- set ns.is_first_sp = false -%}
{%- endfor -%}
{{- bos_token + ns.system -}}
"""

DEEPSEEK3 = DS_SYSTEM + """{%- for message in messages -%}
  {%- if message['role'] == 'user' -%}
    {{ '<｜User｜>' + message['content'] }}
  {%- elif message['role'] == 'assistant' -%}
    {{ '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<｜Assistant｜>' }}{%- endif -%}
"""

R1 = DS_SYSTEM.replace("is_first_sp", "first").replace(
    "ns.system + ('' if ns.first else '\n\n') + message['content']", "message['content']") + (
    DEEPSEEK3[len(DS_SYSTEM):].replace(
        "'<｜Assistant｜>' + message['content'] +",
        "'<｜Assistant｜>' + message['content'].split('</think>')[-1] +").replace(
        "{{ '<｜Assistant｜>' }}", "{{ '<｜Assistant｜><think>\\n' }}"))

DEEPSEEK31 = DS_SYSTEM + """{%- for message in messages -%}
  {%- if message['role'] == 'user' -%}
    {{ '<｜User｜>' + message['content'] }}
    {%- set ns.asked = true -%}
  {%- elif message['role'] == 'assistant' -%}
    {%- if ns.asked -%}{{ '<｜Assistant｜></think>' }}{%- endif -%}
    {%- set ns.asked = false -%}
    {%- set text = message['content'] -%}
    {%- if '</think>' in text -%}{%- set text = text.split('</think>', 1)[1] -%}{%- endif -%}
    {{ text + '<｜end▁of▁sentence｜>' }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and ns.asked -%}
  {{ '<｜Assistant｜><think>' if enable_thinking else '<｜Assistant｜></think>' }}
{%- endif -%}
"""

DEEPSEEK32 = """{%- set ns = namespace(last=-1) -%}
{%- for message in messages if message.role == 'user' -%}
  {%- set ns.last = messages.index(message) -%}
{%- endfor -%}
{{- '<｜begin▁of▁sentence｜>' -}}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {{- '<｜User｜>' + message.content -}}
    {%- if add_generation_prompt or not loop.last -%}
      {{- '<｜Assistant｜>' -}}
      {{- '<think>' if enable_thinking and loop.index0 == ns.last else '</think>' -}}
    {%- endif -%}
  {%- elif message.role == 'system' -%}
    {{- message.content -}}
  {%- else -%}
    {%- set parts = message.content.split('</think>', 1) -%}
    {%- if enable_thinking and loop.index0 > ns.last -%}
      {%- if parts|length == 1 -%}{{ raise_exception('no thoughts') }}{%- endif -%}
      {{- parts[0].removeprefix('<think>') + '</think>' -}}
    {%- endif -%}
    {{- parts[-1] + '<｜end▁of▁sentence｜>' -}}
  {%- endif -%}
{%- endfor -%}
"""

GLM46 = r"""[gMASK]<sop>
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {% set ns.last_user_index = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{% for m in messages %}
{%- if m.role == 'assistant' -%}
    {%- set thought = '' %}
    {%- set text = m.content %}
    {%- if '</think>' in text %}
        {%- set thought = text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set text = text.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|assistant|>' }}
    {%- if loop.index0 > ns.last_user_index and thought %}
        {{- '\n<think>' + thought.strip() + '</think>' }}
    {%- else %}
        {{- '\n<think></think>' }}
    {%- endif %}
    {%- if text.strip() %}
        {{- '\n' + text.strip() }}
    {%- endif %}
{%- else %}
    {{- '<|' + m.role + '|>\n' + m.content }}
    {%- if m.role == 'user' and enable_thinking is defined and not enable_thinking and not m.content.endswith('/nothink') %}
        {{- '/nothink' }}
    {%- endif %}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}
"""

GLM5 = GLM46.replace(r"\n<think>' + thought", "<think>' + thought").replace(
    r"\n<think></think>' }}", "</think>' }}").replace(r"'\n' + text", "text").replace(
    r"'|>\n'", "'|>'").replace("/nothink", "/none").replace(
    "not enable_thinking and not m", "false and not m").replace(
    r"'\n<think></think>' if", "'</think>' if").replace("else '' -}}", "else '<think>' -}}").replace(
    "{%- if loop.index0 > ns.last_user_index and thought %}",
    "{%- set reasoning_content = thought %}{%- if ((clear_thinking is defined and not clear_thinking) "
    "or loop.index0 > ns.last_user_index) and reasoning_content -%}")

GLM53 = r"""[gMASK]<sop><|system|>Reasoning Effort: Max
{%- set clear_thinking = clear_thinking if clear_thinking is defined else false -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
    {%- set text = m.content %}
    {%- if '</think>' in text %}
        {%- set reasoning_content = text.split('</think>')[0].split('<think>')[-1] %}
        {%- set text = text.split('</think>')[-1] %}
    {%- endif %}
    {{- '<|assistant|>' }}
    {%- if not clear_thinking and reasoning_content is defined %}
        {{- '<think>' + reasoning_content + '</think>' }}
    {%- else %}
        {{- '<think></think>' }}
    {%- endif %}
    {{- text.strip() }}
{%- else %}
    {{- '<|' + m.role + '|>' + m.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '<think>' -}}
{%- endif -%}
"""

DS = ("deepseek", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
GLM = ("glm", None, "<|endoftext|>")
# name: template, golden tokenizer, bos, eos, frame
FRAMES = {
    "qwen2": (QWEN2, "qwen2", None, "<|im_end|>", "chatml"),
    "qwen25": (QWEN25, "qwen2", None, "<|im_end|>", "chatml"),
    "qwen3": (QWEN3, "qwen2", None, "<|im_end|>", "qwen3"),
    "qwen35": (QWEN35, "qwen35", None, "<|im_end|>", "qwen35"),
    "smollm2": (SMOLLM2, "smollm", "<|im_start|>", "<|im_end|>", "chatml"),
    "zoo": (ZOO, "qwen2", None, "<|im_end|>", "chatml"),
    "llama31": (LLAMA31, "llama3", "<|begin_of_text|>", "<|eot_id|>", "llama31"),
    "llama30": (LLAMA30, "llama3", "<|begin_of_text|>", "<|eot_id|>", "llama30"),
    "ministral3": (MINISTRAL3, "tekken", "<s>", "</s>", "ministral3"),
    "kimi": (KIMI, "kimi", "[BOS]", "[EOS]", "kimi"),
    "deepseek3": (DEEPSEEK3, *DS, "deepseek_v3"),
    "r1": (R1, *DS, "deepseek_v3"),
    "deepseek31": (DEEPSEEK31, *DS, "deepseek_v31"),
    "deepseek32": (DEEPSEEK32, *DS, "deepseek_v32"),
    "glm46": (GLM46, *GLM, "glm45"),
    "glm5": (GLM5, *GLM, "glm5"),
    "glm53": (GLM53, *GLM, "glm53"),
}
THINKING = ("qwen3", "qwen35", "deepseek31", "deepseek32", "glm46", "glm5")

S, U, A = "system", "user", "assistant"
TALKS = [
    [(U, "Hello")],
    [(S, "Be short."), (U, "What is 2+2?")],
    [(U, " spaced \n"), (A, "\n\n one \u00a0"), (U, "\u3000two\u2028")],
    [(S, "  Sys\ttem \n"), (U, "a"), (A, "b"), (U, "c"), (A, "d")],
    [(U, "q"), (A, "<think>\nold thought\n</think>\n\nold answer"), (U, "more")],
    [(U, "q"), (A, "<think>\n\nnew\nthought\n\n</think>\n\n\nnew answer\n")],
    [(U, "q"), (A, "no open tag</think>rest</think>\n\nx<think>y")],
    [(U, "q"), (A, "plain"), (U, "<tool_response>42</tool_response>"), (A, "<think>t</think>it is")],
    [(U, ""), (A, ""), (U, "\n"), (A, "<think></think>")],
    [(U, "q"), (A, "one"), (A, "<think>z</think>two"), (A, "three")],
    [(U, "late"), (S, "system"), (U, "again")],
    [(A, "first word"), (U, "ok")],
    [(U, "grüße 你好 🙂\r\n\x1c"), (A, "\x1f\x85 z \x0b")],
]


def folder(name):
    """what stands beside the golden tokenizer of this name in its own folder"""
    if name != "kimi":
        return {}
    with open(os.path.join(HERE, name, "tokenizer_config.json")) as f:
        return json.load(f)


def cases(name, tok):
    for i, talk in enumerate(TALKS):
        messages = [{"role": r, "content": c} for r, c in talk]
        for opened in (False, True):
            for thinking in ([True, False] if name in THINKING else [False]):
                for date in (["", "01 Feb 2026"] if name == "llama31" else [""]):
                    more = {"date_string": date} if date else {}
                    if name in THINKING:
                        more["enable_thinking"] = thinking
                    try:
                        text = tok.apply_chat_template(
                            messages, tokenize=False, add_generation_prompt=opened, **more)
                    except TemplateError:  # the template refuses
                        text = None
                    yield {"talk": i, **({"open": True} if opened else {}),
                           **({"thinking": True} if thinking else {}),
                           **({"date": date} if date else {}), "text": text}


def main():
    rows = []
    for name, (template, base, bos, eos, frame) in FRAMES.items():
        any_file = "glm" if base == "kimi" else base  # only the two names matter
        tok = PreTrainedTokenizerFast(tokenizer_file=os.path.join(HERE, any_file + ".json"),
                                      bos_token=bos, eos_token=eos)
        tok.chat_template = template
        config = {"bos_token": bos, "eos_token": {"content": eos}, **folder(base)}
        if name != "deepseek32":
            config["chat_template"] = template
        rows.append({"name": name, "tokenizer": base, "frame": frame, "config": config,
                     "cases": list(cases(name, tok))})
    with open(os.path.join(HERE, "chat.json"), "w") as f:
        f.write('{"talks": %s,\n"frames": [\n' % json.dumps(TALKS, separators=(",", ":")))
        for row in rows:
            text = json.dumps(row, separators=(",", ":"))
            f.write(text.replace('{"talk"', '\n{"talk"') + (",\n" if row != rows[-1] else "\n"))
        f.write("]}\n")
    print(sum(len(r["cases"]) for r in rows), "conversations,",
          sum(c["text"] is None for r in rows for c in r["cases"]), "refused")


main()
