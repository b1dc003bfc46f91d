"""llama.cpp through its Python binding's C interface, as a worker."""

import functools
import importlib
import pathlib

import numpy

CONTEXT = 256
"""Tokens per sequence that there is room for."""


@functools.cache
def llama():
    """Return the binding, which only the environment that this runs in has."""
    return importlib.import_module("llama_cpp")


class Engine:
    """A GGUF file, requantized to another type when it is first wanted."""

    def __init__(self, options):
        """Load the model."""
        llama().llama_backend_init()
        self.threads = options["threads"]
        path = options["gguf"]
        if options["type"] != options["stored_type"]:
            path = requantized(path, options["type"], options["folder"])
        params = llama().llama_model_default_params()
        self.model = llama().llama_model_load_from_file(str(path).encode(), params)
        self.vocab_size = llama().llama_vocab_n_tokens(llama().llama_model_get_vocab(self.model))

    def decode(self, prompts, num_tokens):
        """Generate greedily, all sequences in one batch per step."""
        context = self._context(len(prompts), CONTEXT)
        batch = llama().llama_batch_init(len(prompts) * max(map(len, prompts)), 0, 1)
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                is_last = position == len(prompt) - 1
                add(batch, token, position, sequence, is_last)
        tokens = self._step(context, batch, len(prompts), first=True, prompts=prompts)
        for index in range(num_tokens - 1):
            batch.n_tokens = 0
            for sequence, token in enumerate(tokens):
                add(batch, token, len(prompts[sequence]) + index, sequence, True)
            tokens = self._step(context, batch, len(prompts))
        llama().llama_batch_free(batch)
        llama().llama_free(context)

    def logits(self, ids):
        """Return the logits of every position."""
        context = self._context(1, len(ids))
        batch = llama().llama_batch_init(len(ids), 0, 1)
        for position, token in enumerate(ids):
            add(batch, token, position, 0, True)
        check(llama().llama_decode(context, batch))
        rows = [self._row(context, i).copy() for i in range(len(ids))]
        llama().llama_batch_free(batch)
        llama().llama_free(context)
        return numpy.stack(rows)

    def _context(self, num_seqs, length):
        params = llama().llama_context_default_params()
        params.n_ctx = num_seqs * length
        params.n_batch = num_seqs * length
        params.n_ubatch = 512
        params.n_seq_max = num_seqs
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = 1
        params.kv_unified = False
        return llama().llama_init_from_model(self.model, params)

    def _step(self, context, batch, num_seqs, first=False, prompts=()):
        check(llama().llama_decode(context, batch))
        llama().llama_synchronize(context)
        rows, place = [], -1
        for sequence in range(num_seqs):
            place = place + len(prompts[sequence]) if first else sequence
            rows.append(int(self._row(context, place).argmax()))
        return rows

    def _row(self, context, index):
        pointer = llama().llama_get_logits_ith(context, index)
        return numpy.ctypeslib.as_array(pointer, shape=(self.vocab_size,))


def add(batch, token, position, sequence, wants_logits):
    """Append one token to a batch."""
    i = batch.n_tokens
    batch.token[i], batch.pos[i], batch.logits[i] = token, position, wants_logits
    batch.n_seq_id[i] = 1
    batch.seq_id[i][0] = sequence
    batch.n_tokens += 1


def check(code):
    """Raise if llama.cpp reports a failure."""
    if code != 0:
        raise RuntimeError(f"llama_decode returned {code}")


def requantized(path, name, folder):
    """Return the file in another type; made once."""
    target = pathlib.Path(folder) / f"{pathlib.Path(path).stem}-{name.lower()}.gguf"
    if not target.exists():
        params = llama().llama_model_quantize_default_params()
        params.ftype = getattr(llama(), f"LLAMA_FTYPE_MOSTLY_{name}")
        params.allow_requantize = True
        part = target.with_suffix(".part")
        check(llama().llama_model_quantize(str(path).encode(), str(part).encode(), params))
        part.replace(target)
    return target
