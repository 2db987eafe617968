"""Checks a Tidegate agent or hub with the official `openai` client, as an application would use it.

    pip install openai
    python tests/python/openai_client.py --base-url http://127.0.0.1:8080/v1 --model assistant

Prints one line a check, and ends with a non-zero status at the first that fails. `--expect-key` also checks that a wrong key is
refused, which a listener on loopback need not do.
"""

import argparse
import sys
import time

import openai

PROMPT = "Tell me about the tide, in a few words."
# Something to go on with: after a whole sentence a model may well find that all has been said.
BEGINNING = "Once upon a time, by the sea, there was a"
MESSAGES = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": PROMPT}]


class Failed(Exception):
    """A check that does not hold."""


def want(holds, message):
    """Like `assert`, and also under `python -O`."""
    if not holds:
        raise Failed(message)


def raised(kind, call):
    """The exception of exactly this kind that `call` raises."""
    try:
        call()
    except kind as error:
        want(type(error) is kind or kind is openai.APIStatusError, f"want {kind.__name__}, got {type(error).__name__}")
        return error
    except openai.OpenAIError as error:
        raise Failed(f"want {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise Failed(f"want {kind.__name__}, got an answer")


class Checks:
    """All checks, in the order in which they run."""

    def __init__(self, client, model, expect_key):
        self.client, self.model, self.expect_key = client, model, expect_key

    def chat(self, **more):
        options = {"model": self.model, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
        return self.client.chat.completions.create(**{**options, **more})

    def completion(self, **more):
        options = {"model": self.model, "prompt": BEGINNING, "max_tokens": 12, "temperature": 0}
        return self.client.completions.create(**{**options, **more})

    def models_are_listed(self):
        models = list(self.client.models.list())
        want(self.model in [model.id for model in models], f"`{self.model}` is not among {[model.id for model in models]}")
        want(all(model.object == "model" and model.created > 0 for model in models), "a model object lacks something")

    def a_model_is_retrieved(self):
        want(self.client.models.retrieve(self.model).id == self.model, "another model came back")

    def a_chat_is_answered(self):
        answer = self.chat()
        choice = answer.choices[0]
        want(answer.object == "chat.completion" and answer.id and answer.model == self.model, "the frame is wrong")
        want(choice.message.role == "assistant" and choice.message.content, "no content")
        want(choice.finish_reason in ("stop", "length"), f"finish reason {choice.finish_reason}")
        usage = answer.usage
        want(usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 12, f"usage {usage}")
        want(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "the total is not the sum")

    def text_parts_are_read(self):
        parts = [{"type": "text", "text": "Say"}, {"type": "text", "text": "something."}]
        want(self.chat(messages=[{"role": "user", "content": parts}]).choices[0].message.content, "no content")

    def a_completion_is_answered(self):
        answer = self.completion()
        want(answer.object == "text_completion" and answer.choices[0].text, "no text")
        want(answer.usage.completion_tokens > 0, "no usage")

    def a_chat_streams(self):
        whole = self.chat(seed=7).choices[0].message.content
        chunks = list(self.chat(seed=7, stream=True))
        want(chunks[0].choices[0].delta.role == "assistant", "the first chunk has no role")
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        want(text == whole, f"the stream says {text!r}, the whole answer {whole!r}")
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        want(reasons[-1] in ("stop", "length") and not any(reasons[:-1]), f"finish reasons {reasons}")
        want(all(chunk.usage is None for chunk in chunks), "usage was not asked for")

    def usage_ends_a_stream(self):
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        want(not chunks[-1].choices and chunks[-1].usage.completion_tokens > 0, "the last chunk has no usage")
        want(all(chunk.usage is None for chunk in chunks[:-1]), "usage before the end")
        want("tidegate" in (chunks[-1].model_extra or {}), "the last chunk does not say who served")

    def a_completion_streams(self):
        chunks = list(self.completion(stream=True))
        want("".join(chunk.choices[0].text for chunk in chunks if chunk.choices), "no text")

    def stop_texts_end_the_answer(self):
        whole = self.chat(seed=3, max_tokens=24).choices[0].message.content
        words = whole.split()
        want(len(words) > 2, f"too short an answer to cut: {whole!r}")
        stop = words[2]
        cut = self.chat(seed=3, max_tokens=24, stop=[stop, "\0never"]).choices[0]
        want(cut.finish_reason == "stop", f"finish reason {cut.finish_reason}")
        content = cut.message.content or ""
        want(stop not in content and whole.startswith(content), f"{content!r} is not {whole!r} up to {stop!r}")

    def max_tokens_end_the_answer(self):
        answer = self.chat(max_tokens=3)
        want(answer.choices[0].finish_reason == "length", f"finish reason {answer.choices[0].finish_reason}")
        want(answer.usage.completion_tokens == 3, f"{answer.usage.completion_tokens} tokens")
        want(self.chat(max_completion_tokens=2, max_tokens=None).usage.completion_tokens == 2, "the newer name is ignored")

    def seeds_repeat(self):
        def draw(seed):
            return self.chat(seed=seed, temperature=1.0, max_tokens=16).choices[0].message.content

        want(draw(11) == draw(11), "the same seed, another answer")
        want(len({draw(seed) for seed in range(4)}) > 1, "four seeds, one answer")

    def penalties_are_taken(self):
        answer = self.chat(frequency_penalty=0.5, presence_penalty=-0.5, top_p=0.9)
        want(answer.choices[0].finish_reason in ("stop", "length"), "no answer")

    def needs_are_taken_and_explained(self):
        needs = {"deadline_ms": 60_000, "priority": 5, "min_quality": 0.0, "session": "checks", "residency": "anywhere"}
        response = self.client.chat.completions.with_raw_response.create(
            model=self.model, messages=MESSAGES, max_tokens=4, extra_body={"tidegate": needs}
        )
        for header in ("x-request-id", "x-tidegate-node", "x-tidegate-variant", "x-tidegate-hop", "x-tidegate-policy"):
            want(response.headers.get(header), f"no {header}")
        extra = (response.parse().model_extra or {}).get("tidegate") or {}
        want(extra.get("node") == response.headers["x-tidegate-node"], f"body and header disagree: {extra}")
        want(extra.get("request") == response.headers["x-request-id"], "another request id")
        want(extra["actual"]["total_ms"] > 0 and extra["predicted"]["total_ms"] > 0, f"no times: {extra}")

    def needs_are_taken_as_headers(self):
        self.chat(extra_headers={"x-tidegate-priority": "3"})
        error = raised(openai.BadRequestError, lambda: self.chat(extra_headers={"x-tidegate-priority": "33"}))
        want(error.param == "x-tidegate-priority", f"param {error.param}")

    def bad_requests_name_the_parameter(self):
        for parameter, options in [
            ("temperature", {"temperature": 9}),
            ("max_tokens", {"max_tokens": -1}),
            ("logit_bias", {"logit_bias": {"1": 5}}),
            ("messages", {"messages": []}),
            ("tidegate.deadline_ms", {"extra_body": {"tidegate": {"deadline_ms": -5}}}),
            ("tidegate.deadlin_ms", {"extra_body": {"tidegate": {"deadlin_ms": 5}}}),
        ]:
            error = raised(openai.BadRequestError, lambda options=options: self.chat(**options))
            want(error.param == parameter, f"want {parameter}, got {error.param}")
            want(error.status_code == 400 and error.type == "invalid_request_error", f"{error.status_code} {error.type}")

    def too_long_prompts_are_refused(self):
        error = raised(openai.BadRequestError, lambda: self.chat(messages=[{"role": "user", "content": "tide " * 200_000}]))
        want(error.code == "context_length_exceeded", f"code {error.code}")

    def oversized_bodies_are_refused(self):
        error = raised(openai.APIStatusError, lambda: self.completion(prompt="x" * 6_000_000))
        want(error.status_code == 413, f"status {error.status_code}")

    def unknown_models_are_not_found(self):
        error = raised(openai.NotFoundError, lambda: self.chat(model="no-such-model"))
        want(error.code == "model_not_found", f"code {error.code}")
        raised(openai.NotFoundError, lambda: self.client.models.retrieve("no-such-model"))

    def a_wrong_key_is_refused(self):
        if self.expect_key:
            stranger = self.client.with_options(api_key="sk-wrong")
            error = raised(openai.AuthenticationError, lambda: stranger.models.list())
            want(error.code == "invalid_api_key", f"code {error.code}")

    def a_cancelled_stream_frees_its_place(self):
        stream = self.chat(stream=True, max_tokens=1_500)
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        stream.close()
        start = time.monotonic()
        self.chat(max_tokens=1)
        want(time.monotonic() - start < 20, "the next request waited for a stream that nobody reads")


# A picture of one pixel.
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOL = {
    "type": "function",
    "function": {"name": "tide_at", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}},
}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "tide", "schema": {"type": "object", "properties": {"tide": {"type": "string"}}}},
}


class CapabilityChecks:
    """What only some variants can do. The model behind them answers from a script."""

    def __init__(self, client, model, lacking):
        self.client, self.model, self.lacking = client, model, lacking

    def chat(self, content=PROMPT, **more):
        options = {"model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": 12}
        return self.client.chat.completions.create(**{**options, **more})

    def pictured(self, model):
        parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
        return self.chat(content=parts, model=model)

    def a_tool_is_called(self):
        choice = self.chat(tools=[TOOL]).choices[0]
        want(choice.finish_reason == "tool_calls", f"finish reason {choice.finish_reason}")
        call = choice.message.tool_calls[0]
        want(call.function.name == "tide_at" and call.function.arguments == '{"place":"pier"}', f"call {call}")
        turn = [
            {"role": "user", "content": PROMPT},
            choice.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "high"},
        ]
        want(self.chat(messages=turn).choices[0].message.content == "aye", "no answer to the tool's")

    def a_tool_call_streams(self):
        name, arguments, reasons = "", "", []
        for chunk in self.chat(tools=[TOOL], stream=True):
            for choice in chunk.choices:
                reasons.append(choice.finish_reason)
                for call in choice.delta.tool_calls or []:
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
        want(name == "tide_at" and arguments == '{"place":"pier"}', f"{name}({arguments})")
        want(reasons[-1] == "tool_calls", f"finish reasons {reasons}")

    def an_object_of_a_schema_is_given(self):
        want(self.chat(response_format=SCHEMA).choices[0].message.content == '{"tide":"high"}', "another object")

    def a_picture_is_shown(self):
        want(self.pictured(self.model).choices[0].message.content == "aye", "no answer")

    def vectors_are_given(self):
        answer = self.client.embeddings.create(model=self.model, input=["tide", "the gate"], encoding_format="float")
        want([vector.embedding for vector in answer.data] == [[4, 0.5, -0.25], [8, 0.5, -0.25]], f"vectors {answer.data}")
        want([vector.index for vector in answer.data] == [0, 1] and answer.usage.prompt_tokens == 5, f"{answer.usage}")
        want(len(self.client.embeddings.create(model=self.model, input="tide").data) == 1, "one text, one vector")

    def what_a_variant_lacks_is_refused_by_name(self):
        for capability, call in [
            ("tools", lambda: self.chat(tools=[TOOL], model=self.lacking)),
            ("json_schema", lambda: self.chat(response_format=SCHEMA, model=self.lacking)),
            ("vision", lambda: self.pictured(self.lacking)),
            ("embeddings", lambda: self.client.embeddings.create(model=self.lacking, input="tide")),
        ]:
            error = raised(openai.BadRequestError, call)
            want(error.code == "unsupported_parameter" and f"`{capability}`" in error.message, f"{error.code} {error.message}")
            want("able" in error.message, f"who has it is not named: {error.message}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True, help="such as http://127.0.0.1:8080/v1")
    parser.add_argument("--api-key", default="none", help="any text on a loopback listener without keys")
    parser.add_argument("--model", default="assistant", help="service, alias or variant to ask for")
    parser.add_argument("--expect-key", action="store_true", help="also check that a wrong key is refused")
    parser.add_argument("--lacking", help="check capabilities: `--model` has them, and this one lacks them")
    options = parser.parse_args()
    client = openai.OpenAI(base_url=options.base_url, api_key=options.api_key, max_retries=0, timeout=120)
    if options.lacking:
        checks = CapabilityChecks(client, options.model, options.lacking)
    else:
        checks = Checks(client, options.model, options.expect_key)
    aids = ("chat", "completion", "pictured")
    names = [name for name in vars(type(checks)) if not name.startswith("_") and name not in aids]
    for name in names:
        start = time.monotonic()
        try:
            getattr(checks, name)()
        except (Failed, openai.OpenAIError) as error:
            print(f"FAILED  {name.replace('_', ' ')}: {type(error).__name__}: {error}", flush=True)
            return 1
        print(f"ok      {name.replace('_', ' ')} ({time.monotonic() - start:.2f} s)", flush=True)
    print(f"{len(names)} checks passed with openai {openai.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
