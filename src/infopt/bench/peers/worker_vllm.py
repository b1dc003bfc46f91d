"""vLLM's CPU build as a worker."""

import importlib
import os

SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


class Engine:
    """A model folder in bfloat16."""

    def __init__(self, options):
        """Load the model."""
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self.vllm = importlib.import_module("vllm")  # only in the environment this runs in
        self.llm = self.vllm.LLM(
            options["folder"],
            dtype="bfloat16",
            max_model_len=1024,
            max_num_seqs=64,
            enable_prefix_caching=False,
        )

    def decode(self, prompts, num_tokens):
        """Generate greedily."""
        params = self.vllm.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        self.llm.generate(requests, params, use_tqdm=False)

    def logits(self, ids):
        """Say that there is no way to get them."""
        del ids
