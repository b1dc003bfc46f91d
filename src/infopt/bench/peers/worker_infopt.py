"""infopt as a worker."""

from infopt import LLM, SamplingParams


class Engine:
    """An ``LLM`` without a prefix cache, so that every prompt is read."""

    def __init__(self, options):
        """Load the model."""
        self.llm = LLM(
            options["model"],
            dtype=options["dtype"],
            quantization=options["quantization"],
            max_model_len=1024,
            max_num_seqs=64,
            enable_prefix_caching=False,
            kv_cache_memory_gib=0.5,
            num_threads=options["threads"],
        )

    def decode(self, prompts, num_tokens):
        """Generate greedily."""
        params = SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        self.llm.generate(prompts, params, use_tqdm=False)

    def logits(self, ids):
        """Return the logits of every position."""
        return self.llm.logits(ids).numpy()
