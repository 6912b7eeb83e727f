#!/usr/bin/env python3
"""Makes chat.json: what transformers' apply_chat_template writes for some conversations.

The templates are written down from knowledge of the released models' own (Qwen2, Qwen2.5,
Qwen3, SmolLM2, Llama 3.0, Llama 3.1, Ministral 3), without their branches for images;
tool branches are kept where they bear on how a frame is recognised. They are not copies
of the released files: qwen3 and llama31 are believed word for word in the plain-chat
part, ministral3 is from memory and its default system text is our own. `zoo` is the
example pair's. smollm2's is as it stands in a released GGUF file.

Run: python3 tests/golden/tokenizers/chat.py (transformers 5.24, jinja2; seconds).
"""
import json
import os

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

# name: template, golden tokenizer, bos, eos, frame
FRAMES = {
    "qwen2": (QWEN2, "qwen2", None, "<|im_end|>", "chatml"),
    "qwen25": (QWEN25, "qwen2", None, "<|im_end|>", "chatml"),
    "qwen3": (QWEN3, "qwen2", None, "<|im_end|>", "qwen3"),
    "smollm2": (SMOLLM2, "smollm", "<|im_start|>", "<|im_end|>", "chatml"),
    "zoo": (ZOO, "qwen2", None, "<|im_end|>", "chatml"),
    "llama31": (LLAMA31, "llama3", "<|begin_of_text|>", "<|eot_id|>", "llama31"),
    "llama30": (LLAMA30, "llama3", "<|begin_of_text|>", "<|eot_id|>", "llama30"),
    "ministral3": (MINISTRAL3, "tekken", "<s>", "</s>", "ministral3"),
}

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


def main():
    rows = []
    for name, (template, base, bos, eos, frame) in FRAMES.items():
        tok = PreTrainedTokenizerFast(tokenizer_file=os.path.join(HERE, base + ".json"),
                                      bos_token=bos, eos_token=eos)
        tok.chat_template = template
        cases = []
        for talk in TALKS:
            messages = [{"role": r, "content": c} for r, c in talk]
            for opened in (False, True):
                for thinking in ([True, False] if name == "qwen3" else [False]):
                    for date in (["", "01 Feb 2026"] if name == "llama31" else [""]):
                        more = {"date_string": date} if date else {}
                        if name == "qwen3":
                            more["enable_thinking"] = thinking
                        try:
                            text = tok.apply_chat_template(
                                messages, tokenize=False, add_generation_prompt=opened, **more)
                        except Exception as e:  # the template refuses
                            assert "roles" in str(e), e
                            text = None
                        cases.append({"turns": talk, "open": opened, "thinking": thinking,
                                      "date": date, "text": text})
        rows.append({"name": name, "tokenizer": base, "frame": frame,
                     "config": {"bos_token": bos, "eos_token": {"content": eos},
                                "chat_template": template}, "cases": cases})
    with open(os.path.join(HERE, "chat.json"), "w") as f:
        json.dump(rows, f, indent=0, ensure_ascii=True)
        f.write("\n")
    print(sum(len(r["cases"]) for r in rows), "conversations")


main()
