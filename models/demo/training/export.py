"""Write the Hugging Face model directory: weights in bf16, configuration, tokenizer."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from . import tokenizer as tokenization


def write(net, tok, directory):
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    bos, eos = tok.token_to_id(tokenization.BOS), tok.token_to_id(tokenization.EOS)
    im_end, pad = tok.token_to_id(tokenization.IM_END), tok.token_to_id(tokenization.PAD)
    config = dict(net.config, bos_token_id=bos, eos_token_id=[eos, im_end], pad_token_id=pad)
    generation = {"bos_token_id": bos, "eos_token_id": [eos, im_end], "pad_token_id": pad,
                  "do_sample": True, "temperature": 0.3}
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tokenization.save(tok, directory)
    tensors = {name: p.detach().to(torch.bfloat16).contiguous()
               for name, p in net.named_parameters()}
    weights = directory / "model.safetensors"
    save_file(tensors, str(weights), metadata={"format": "pt"})
    weights.chmod(0o644)
