#!/usr/bin/env python3
"""Makes the tiny models that the engine's reference tests run, and what a well-known library says of them.

Three families (llama, qwen2, qwen3), each a few thousand random numbers with the traits that set it apart, as a GGUF file and
as JSON: logits and greedy continuations by `transformers`, token ids by `tokenizers` and `sentencepiece`. The outputs lie
beside this file and are committed; making them anew needs

    pip install -r requirements.txt && python make_reference.py

and changes nothing as long as the seeds stay.
"""

import io
import json
import pathlib

import gguf
import numpy
import sentencepiece
import tokenizers
import torch
import transformers

HERE = pathlib.Path(__file__).parent
LAYERS, HEADS, KV_HEADS, INNER, CONTEXT = 3, 4, 2, 64, 512
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# How each family cuts text into words before merging, as the models of that family define it.
CUTS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}

# Made for this file: words, numbers, breaks, other scripts, and things that only look alike.
CORPUS = """
The tide rises and the tide falls, and at 06:45 the gate opens; at 18:30 it closes again.
It's 12345 litres per second, they've measured, and we'll see 67890 tomorrow. I'M SURE, HE'D SAY.
A gate has two clocks: one slow, one fast. The slow clock bounds what the fast clock may do.
Zwei Tore, größer als früher, öffnen sich über Nacht. Où est la marée? Приливы и отливы. 潮の満ち引き。
    let gate = Gate::open(3.14);    // four spaces
\tindented by a tab, and trailing spaces   \n\n\nthree breaks
""" * 4

TEXTS = [
    "The tide rises at 06:45.",
    "It's 1234567 litres; they've measured, WE'LL see.",
    "größer, früher — où? Приливы 潮の満ち引き 🌊",
    "  two leading spaces,\n\n\tbreaks and a tab   ",
    "a\r\nb \r\n c",
    "",
    " ",
    "x",
]
CHAT = "<|im_start|>user\nWhen does the tide rise?<|im_end|>\n<|im_start|>assistant\n"


def bpe(family):
    """A small byte-level tokenizer that cuts as the family does."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    cut = tokenizers.pre_tokenizers.Split(tokenizers.Regex(CUTS[family]), "isolated")
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([cut, level])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=CONTROLS, initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    return tokenizer


def sentence_pieces():
    """A small SentencePiece tokenizer, as the first llama models have it."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.split("\n")),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        user_defined_symbols=CONTROLS[1:],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        character_coverage=0.99,
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def configuration(family, vocabulary):
    """Sizes in which every trait of a family shows."""
    common = dict(
        vocab_size=vocabulary,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        attn_implementation="eager",
        dtype="float32",
    )
    if family == "llama":
        rope = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
        return transformers.LlamaConfig(hidden_size=32, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=rope, **common)
    rope = dict(rope_type="default", rope_theta=1000000.0)
    if family == "qwen2":
        return transformers.Qwen2Config(hidden_size=32, rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=rope, **common)
    # Heads wider than hidden / heads.
    return transformers.Qwen3Config(hidden_size=32, head_dim=12, rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=rope, **common)


def random_model(family, vocabulary, seed):
    """Weights far enough from zero that a wrong sign, order or missing bias changes the answer."""
    config = configuration(family, vocabulary)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if name.endswith("norm.weight") else 0.25 if weight.ndim == 1 else 1.0 if "embed" in name or "lm_head" in name else 0.3
            middle = 1.0 if name.endswith("norm.weight") else 0.0
            # Eighths of a percent: exact in f32 on every machine.
            drawn = torch.randint(-1024, 1025, weight.shape, generator=chance).float() / 1024
            weight.copy_(middle + spread * drawn)
    return model


def interleaved(weight, heads):
    """GGUF holds llama's query and key rows so that the two halves of a rotated pair lie next to each other."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def tensors(family, model):
    """Names and values as GGUF has them."""
    for name, weight in model.state_dict().items():
        values = weight.detach().numpy().astype(numpy.float32)
        if name == "model.embed_tokens.weight":
            yield "token_embd.weight", values
        elif name == "model.norm.weight":
            yield "output_norm.weight", values
        elif name == "lm_head.weight":
            if not model.config.tie_word_embeddings:
                yield "output.weight", values
        else:
            _, _, layer, *rest, kind = name.split(".")
            part = NAMES[".".join(rest)]
            if family == "llama" and part in ("attn_q", "attn_k"):
                values = interleaved(values, HEADS if part == "attn_q" else KV_HEADS)
            yield f"blk.{layer}.{part}.{kind}", values
    if family == "llama":
        # The library's frequencies against the plain ones: what each is divided by.
        head = model.config.hidden_size // HEADS
        plain = 10000.0 ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
        yield "rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.double()).float().numpy()


def write(path, family, model, words):
    """The GGUF file."""
    config = model.config
    file = gguf.GGUFWriter(path, family)
    file.add_block_count(LAYERS)
    file.add_context_length(CONTEXT)
    file.add_embedding_length(config.hidden_size)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    if family == "qwen3":
        file.add_key_length(config.head_dim)
        file.add_value_length(config.head_dim)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    words(file)
    file.add_chat_template(TEMPLATE)
    for name, values in tensors(family, model):
        file.add_tensor(name, values)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def byte_level(family, tokenizer):
    """Metadata of a byte-level tokenizer."""
    state = json.loads(tokenizer.to_str())["model"]
    size = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(id) for id in range(size)]

    def add(file):
        file.add_tokenizer_model("gpt2")
        file.add_tokenizer_pre(family)
        file.add_token_list(tokens)
        file.add_token_types([gguf.TokenType.CONTROL if token in CONTROLS else gguf.TokenType.NORMAL for token in tokens])
        file.add_token_merges([" ".join(pair) for pair in state["merges"]])
        file.add_eos_token_id(tokens.index("<|im_end|>"))
        file.add_add_bos_token(False)

    return add


def piece_level(pieces):
    """Metadata of a SentencePiece tokenizer."""
    kinds = []
    for id in range(pieces.vocab_size()):
        kind = gguf.TokenType.NORMAL
        if pieces.is_unknown(id):
            kind = gguf.TokenType.UNKNOWN
        elif pieces.is_control(id):
            kind = gguf.TokenType.CONTROL
        elif pieces.is_byte(id):
            kind = gguf.TokenType.BYTE
        elif pieces.id_to_piece(id) in CONTROLS:
            kind = gguf.TokenType.CONTROL
        kinds.append(kind)

    def add(file):
        file.add_tokenizer_model("llama")
        file.add_token_list([pieces.id_to_piece(id) for id in range(pieces.vocab_size())])
        file.add_token_scores([pieces.get_score(id) for id in range(pieces.vocab_size())])
        file.add_token_types(kinds)
        file.add_bos_token_id(pieces.bos_id())
        file.add_eos_token_id(pieces.piece_to_id("<|im_end|>"))
        file.add_unk_token_id(pieces.unk_id())
        file.add_add_bos_token(True)
        file.add_add_space_prefix(True)

    return add


def judge(model, prompts):
    """Logits after the last token of each prompt, and the greedy continuation with the margin of each choice."""
    cases = []
    for prompt in prompts:
        ids, margins = list(prompt), []
        with torch.no_grad():
            last = model(torch.tensor([ids])).logits[0, -1]
            for _ in range(24):
                logits = model(torch.tensor([ids])).logits[0, -1]
                best = torch.topk(logits, 2)
                margins.append(round(float(best.values[0] - best.values[1]), 4))
                ids.append(int(best.indices[0]))
        cases.append(dict(prompt=list(prompt), logits=[round(float(x), 5) for x in last], greedy=ids[len(prompt):], margins=margins))
    return cases


def prompts_for(vocabulary, seed):
    """Ids at random; one prompt beyond the length for which the llama model was "trained" before its positions were stretched."""
    chance = numpy.random.default_rng(seed)
    return [[int(id) for id in chance.integers(3, vocabulary, size=length)] for length in (1, 7, 40, 200)]


def main():
    torch.set_num_threads(1)
    pieces = sentence_pieces()
    cut = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2"}
    for seed, family in enumerate(("llama", "qwen2", "qwen3"), start=7):
        tokenizer = bpe(cut[family])
        model = random_model(family, tokenizer.get_vocab_size(), seed)
        write(HERE / f"{family}.gguf", family, model, byte_level(cut[family], tokenizer))
        texts = [dict(text=text, ids=tokenizer.encode(text, add_special_tokens=False).ids) for text in [*TEXTS, CHAT]]
        answer = dict(family=family, texts=texts, cases=judge(model, prompts_for(tokenizer.get_vocab_size(), seed)))
        (HERE / f"{family}.json").write_text(json.dumps(answer, ensure_ascii=False) + "\n")

    # The first llama models brought pieces instead of merges.
    model = random_model("llama", pieces.vocab_size(), 11)
    write(HERE / "sentencepiece.gguf", "llama", model, piece_level(pieces))
    texts = [dict(text=text, ids=pieces.encode(text)) for text in TEXTS]
    answer = dict(family="sentencepiece", texts=texts, cases=judge(model, prompts_for(pieces.vocab_size(), 11))[:2])
    (HERE / "sentencepiece.json").write_text(json.dumps(answer, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
