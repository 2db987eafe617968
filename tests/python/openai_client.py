"""The official OpenAI client against an agent or a hub.

    python openai_client.py BASE_URL MODEL [--max-tokens N]

Prints one line per check and ends with an exit code: 0 when all hold. Says nothing about the text of answers: a small model
says what it likes.
"""

import argparse
import sys
import time
import traceback

import openai


class Checks:
    """Runs every check, also after one has failed."""

    def __init__(self):
        self.failed = 0

    def __call__(self, name, check):
        try:
            check()
        except Exception:
            self.failed += 1
            print(f"FAILED  {name}", flush=True)
            traceback.print_exc()
        else:
            print(f"ok      {name}", flush=True)


def want(condition, what):
    if not condition:
        raise AssertionError(what)


def raises(kind, call, code=None):
    try:
        call()
    except openai.APIError as error:
        want(type(error) is kind, f"want {kind.__name__}, got {type(error).__name__}: {error}")
        want(code is None or error.code == code, f"want code {code}, got {error.code}: {error}")
        want(error.message, "an error without a message")
    else:
        raise AssertionError(f"want {kind.__name__}, got an answer")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("base_url")
    arguments.add_argument("model")
    arguments.add_argument("--max-tokens", type=int, default=12)
    arguments.add_argument("--api-key", default="unused on loopback")
    options = arguments.parse_args()
    model, limit = options.model, options.max_tokens
    # No retries: an error must be seen as it is.
    client = openai.OpenAI(base_url=f"{options.base_url}/v1", api_key=options.api_key, max_retries=0, timeout=60)
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Count to five."}]
    ask = {"model": model, "messages": messages, "max_tokens": limit, "seed": 1}
    check = Checks()

    def models():
        names = [entry.id for entry in client.models.list()]
        want(model in names, f"{model} is not among {names}")
        want(client.models.retrieve(model).id == model, "one model by its name")

    def chat():
        answer = client.chat.completions.create(**ask)
        choice = answer.choices[0]
        want(choice.message.role == "assistant" and isinstance(choice.message.content, str), "a message")
        want(choice.finish_reason in ("stop", "length"), choice.finish_reason)
        usage = answer.usage
        want(usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= limit, f"{usage}")
        want(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"{usage}")
        want(answer.model_extra["tidegate"]["node"], "the answer says who served it")

    def raw_headers():
        raw = client.chat.completions.with_raw_response.create(**ask)
        for header in ("x-request-id", "x-tidegate-node", "x-tidegate-variant", "x-tidegate-predicted-first-token-ms"):
            want(raw.headers.get(header), f"no header {header}")

    def stream():
        parts, finish, usage = [], None, None
        for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
            if chunk.usage:
                usage = chunk.usage
            for choice in chunk.choices:
                if choice.delta.content:
                    parts.append(choice.delta.content)
                finish = choice.finish_reason or finish
        want(parts and finish in ("stop", "length"), f"{len(parts)} parts, finished by {finish}")
        want(usage and usage.completion_tokens > 0, f"{usage}")

    def same_seed_same_answer():
        whole = client.chat.completions.create(**ask, extra_body={"tidegate": {"min_quality": 0}})
        text = "".join(
            choice.delta.content or "" for chunk in client.chat.completions.create(**ask, stream=True) for choice in chunk.choices
        )
        if whole.model_extra["tidegate"]["hop"] == "local":
            want(whole.choices[0].message.content == text, "streamed and whole answers differ")

    def completion():
        answer = client.completions.create(model=model, prompt="One, two, three,", max_tokens=limit, temperature=0)
        want(isinstance(answer.choices[0].text, str) and answer.usage.completion_tokens > 0, "a text")

    def stop():
        answer = client.chat.completions.create(**{**ask, "max_tokens": 64}, temperature=0, stop=[" ", "\n"])
        content = answer.choices[0].message.content
        want(" " not in content and "\n" not in content, f"a stop text is part of the answer of {len(content)} characters")

    def errors():
        raises(openai.NotFoundError, lambda: client.chat.completions.create(**{**ask, "model": "nobody"}), "model_not_found")
        raises(openai.BadRequestError, lambda: client.chat.completions.create(**ask, temperature=99), "invalid_value")
        raises(openai.BadRequestError, lambda: client.chat.completions.create(**{**ask, "messages": []}))
        raises(openai.BadRequestError, lambda: client.chat.completions.create(**ask, n=3))
        raises(openai.BadRequestError, lambda: client.chat.completions.create(**ask, extra_body={"tidegate": {"residensy": "site"}}))
        raises(openai.BadRequestError, lambda: client.chat.completions.create(**ask, extra_body={"tidegate": {"min_quality": 1.0}}))
        too_long = [{"role": "user", "content": "tide " * 60_000}]
        raises(
            openai.BadRequestError,
            lambda: client.chat.completions.create(**{**ask, "messages": too_long}),
            "context_length_exceeded",
        )
        raises(openai.NotFoundError, lambda: client.get("/embeddings", cast_to=object))

    def cancelled_stream():
        # More of them than any node has slots: were one kept, the last would wait for a long answer.
        for _ in range(6):
            with client.chat.completions.create(**{**ask, "max_tokens": 256}, stream=True, temperature=1.5) as answer:
                for chunk in answer:
                    if chunk.choices and chunk.choices[0].delta.content:
                        break
        begun = time.monotonic()
        client.chat.completions.create(**{**ask, "max_tokens": 1})
        want(time.monotonic() - begun < 5, "cancelled streams hold their slots")

    check("models", models)
    check("chat", chat)
    check("headers", raw_headers)
    check("stream", stream)
    check("stream and whole agree", same_seed_same_answer)
    check("completion", completion)
    check("stop", stop)
    check("errors", errors)
    check("cancelled streams", cancelled_stream)
    sys.exit(1 if check.failed else 0)


main()
