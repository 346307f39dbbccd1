"""Makes a chat model of random weights with its tokenizer and a LoRA adapter: what it says is noise, what it caches and counts is real.

`PYTHON tiny_model.py FOLDER`, with the Python of an environment that has vLLM; writes `FOLDER/model` and `FOLDER/adapter`.
"""

import json
import sys
import sysconfig
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END, TURN = "<|end|>", "<|turn|>"
TEMPLATE = (
    f"{{% for message in messages %}}{TURN}{{{{ message['role'] }}}}: {{{{ message['content'] }}}}{END}{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{TURN}assistant: {{% endif %}}"
)
LONGEST = 8192
RANK = 4


def make_tokenizer(folder: Path) -> int:
    """A byte-level tokenizer that has read a little of Python's own library; returns how many tokens it knows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=[END, TURN], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library = Path(sysconfig.get_path("stdlib"))
    tokenizer.train_from_iterator((path.read_text() for path in sorted(library.glob("[a-d]*.py"))), trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, model_max_length=LONGEST, chat_template=TEMPLATE
    )
    fast.save_pretrained(folder)
    return len(fast)


def make_model(folder: Path, tokens: int) -> transformers.LlamaConfig:
    """Two layers of the smallest heads that vLLM's CPU attention takes."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=tokens,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=LONGEST,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        dtype="bfloat16",
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return config


def make_adapter(folder: Path, config: transformers.LlamaConfig) -> None:
    """A LoRA adapter in the format of peft, without peft."""
    folder.mkdir(exist_ok=True)
    weights = {}
    for layer in range(config.num_hidden_layers):
        target = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{target}.lora_A.weight"] = torch.randn(RANK, config.hidden_size)
        weights[f"{target}.lora_B.weight"] = torch.randn(config.num_attention_heads * config.head_dim, RANK)
    save_file(weights, folder / "adapter_model.safetensors")
    description = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(description | {"base_model_name_or_path": "tiny", "task_type": "CAUSAL_LM"}))


if __name__ == "__main__":
    root = Path(sys.argv[1])
    known = make_tokenizer(root / "model")
    make_adapter(root / "adapter", make_model(root / "model", known))
