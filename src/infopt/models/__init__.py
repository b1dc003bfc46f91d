"""Models: the registry, checkpoint formats, configurations, tokenizers and the native decoder.

``registry.resolve_model`` turns a name into a file or folder (and fetches it if need be),
``checkpoint.open_checkpoint`` reads it: one `ModelConfig`, one set of tensor names and one
`Tokenizer`, whether it was GGUF or safetensors.
"""
