"""transformers' own ``generate`` as a worker."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM


class Engine:
    """A model folder in bfloat16."""

    def __init__(self, options):
        """Load the model."""
        torch.set_num_threads(options["threads"])
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            options["folder"], dtype=torch.bfloat16
        ).eval()
        self.model.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def decode(self, prompts, num_tokens):
        """Generate greedily."""
        ids = torch.tensor(prompts)
        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
        )

    @torch.inference_mode()
    def logits(self, ids):
        """Return the logits of every position."""
        return self.model(torch.tensor([ids])).logits[0].float().numpy()
